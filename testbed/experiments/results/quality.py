"""Accuracy of the answers, and its loss against the target's own outputs, with a paired confidence interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput
from testbed.experiments.inputs.datasets import Example
from testbed.models.scoring import final_number

LEVEL = 0.95
"""Confidence level of intervals."""
RESAMPLES = 10_000
SEED = 0


def quality(
    texts: Mapping[int, str], examples: Sequence[Example], own: Mapping[int, str] | None = None
) -> dict[str, Any]:
    """Columns of a row: `accuracy`, and `accuracy_lost` against the target's own outputs (a fraction, positive if the
    target is better) with its interval, `accuracy_lost_low` and `_high`; None if unknown.

    Args:
        texts: outputs by request.
        examples: prompts by request; those without a reference answer are ignored.
        own: the target's own outputs by request.
    """
    scored = [i for i in texts if examples[i].result is not None]
    right = [final_number(texts[i]) == examples[i].result for i in scored]
    columns = dict.fromkeys(("accuracy", "accuracy_lost", "accuracy_lost_low", "accuracy_lost_high"))
    if not scored:
        return columns
    found: dict[str, Any] = {**columns, "accuracy": float(np.mean(right))}
    if own is not None and all(i in own for i in scored):
        target = [final_number(own[i]) == examples[i].result for i in scored]
        lost = np.array(target, float) - np.array(right, float)
        low, high = interval(lost)
        found |= {"accuracy_lost": float(lost.mean()), "accuracy_lost_low": low, "accuracy_lost_high": high}
    return found


def interval(values: NDArray[np.float64], level: float = LEVEL) -> tuple[float, float]:
    """Bootstrap percentile interval of a mean, efficient for few distinct values; the seed is fixed.

    Raises:
        BadInput: no values, or a level outside (0, 1).
    """
    if not len(values) or not 0 < level < 1:
        raise BadInput(f"an interval needs values and a level in (0, 1), not {len(values)} values and {level:g}")
    kinds, counts = np.unique(values, return_counts=True)
    draws = np.random.default_rng(SEED).multinomial(len(values), counts / len(values), RESAMPLES)
    low, high = np.quantile(draws @ kinds / len(values), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
