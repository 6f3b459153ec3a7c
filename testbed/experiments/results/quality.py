"""Accuracy of the answers, and its loss against the target's own outputs, with a paired confidence interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from testbed.experiments.inputs.formats import Example
from testbed.experiments.inputs.marks import Marker, by_answer
from testbed.intervals import mean_interval
from testbed.models.scoring import final_number

NUMBER = by_answer(final_number)


def quality(
    texts: Mapping[int, str],
    examples: Sequence[Example],
    own: Mapping[int, str] | None = None,
    mark: Marker = NUMBER,
) -> dict[str, Any]:
    """Columns of a row: `accuracy`; `unparsed`, the share of outputs without an answer, which count as wrong;
    `accuracy_lost` against the target's own outputs (a fraction, positive if the target is better) with its interval,
    `accuracy_lost_low` and `_high`. None if unknown.

    Args:
        texts: outputs by request.
        examples: prompts by request; those without a reference answer are ignored.
        own: the target's own outputs by request.
        mark: marks an output.
    """
    own_text = own or {}
    marks = {i: mark(examples[i], text, own_text.get(i)) for i, text in texts.items()}
    scored = {i: one for i, one in marks.items() if one is not None}
    right = [one.right for one in scored.values()]
    names = ("accuracy", "unparsed", "accuracy_lost", "accuracy_lost_low", "accuracy_lost_high")
    columns: dict[str, Any] = dict.fromkeys(names)
    if not scored:
        return columns
    columns |= {
        "accuracy": float(np.mean(right)),
        "unparsed": float(np.mean([not one.parsed for one in scored.values()])),
    }
    if own is not None and all(i in own for i in scored):
        marked = [mark(examples[i], own[i], own[i]) for i in scored]
        target = [one is not None and one.right for one in marked]
        lost = np.array(target, float) - np.array(right, float)
        low, high = np.clip(mean_interval(lost), -1.0, 1.0).tolist()  # few prompts have wide intervals
        columns |= {"accuracy_lost": float(lost.mean()), "accuracy_lost_low": low, "accuracy_lost_high": high}
    return columns
