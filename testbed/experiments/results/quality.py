"""Accuracy of the answers, and its loss against the target's own outputs, with a paired confidence interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from testbed.experiments.inputs.datasets import Example
from testbed.intervals import mean_interval
from testbed.models.scoring import final_number


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
        low, high = mean_interval(lost)
        found |= {"accuracy_lost": float(lost.mean()), "accuracy_lost_low": low, "accuracy_lost_high": high}
    return found
