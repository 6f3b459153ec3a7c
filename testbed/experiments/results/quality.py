"""Accuracy of the answers, and its loss against the target's own outputs, with a paired confidence interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from testbed.experiments.inputs.formats import Example
from testbed.experiments.inputs.scorers import Scorer, expected
from testbed.intervals import mean_interval
from testbed.models.scoring import final_number


def quality(
    texts: Mapping[int, str],
    examples: Sequence[Example],
    own: Mapping[int, str] | None = None,
    score: Scorer = final_number,
) -> dict[str, Any]:
    """Columns of a row: `accuracy`; `unparsed`, the share of outputs without an answer, which count as wrong;
    `accuracy_lost` against the target's own outputs (a fraction, positive if the target is better) with its interval,
    `accuracy_lost_low` and `_high`. None if unknown.

    Args:
        texts: outputs by request.
        examples: prompts by request; those without a reference answer are ignored.
        own: the target's own outputs by request.
        score: extracts the answer from a text.
    """
    wanted = {i: expected(examples[i], score) for i in texts}
    scored = [i for i in texts if wanted[i] is not None]
    answers = [score(texts[i]) for i in scored]
    right = [answer == wanted[i] for i, answer in zip(scored, answers, strict=True)]
    names = ("accuracy", "unparsed", "accuracy_lost", "accuracy_lost_low", "accuracy_lost_high")
    columns: dict[str, Any] = dict.fromkeys(names)
    if not scored:
        return columns
    columns |= {"accuracy": float(np.mean(right)), "unparsed": float(np.mean([answer is None for answer in answers]))}
    if own is not None and all(i in own for i in scored):
        target = [score(own[i]) == wanted[i] for i in scored]
        lost = np.array(target, float) - np.array(right, float)
        low, high = np.clip(mean_interval(lost), -1.0, 1.0).tolist()  # few prompts have wide intervals
        columns |= {"accuracy_lost": float(lost.mean()), "accuracy_lost_low": low, "accuracy_lost_high": high}
    return columns
