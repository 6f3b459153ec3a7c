"""Acceptance of a distilled drafter on the target's recorded answers: greedy rounds, without a target.

A drafted token is compared with the target's only as long as all before it in its window were accepted, so that it
follows the target's own text: whether it is right at every place of an answer decides all rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.experiments.distill.answers import TargetAnswer
from testbed.ue.drafters.base import Drafter

WARMUP = 1
"""Answers whose times are left out."""


class ReplayedRound(NamedTuple):
    """A round of greedy speculation on a known answer."""

    drafted: int
    accepted: int
    draft_s: float = 0.0


def rounds_of(right: NDArray[np.bool_], window: int) -> list[ReplayedRound]:
    """The rounds on an answer whose token j the drafter would say after the tokens before it if `right[j]`."""
    rounds, at = [], 0
    while at < len(right):
        mine = right[at : at + window]
        accepted = len(mine) if mine.all() else int(mine.argmin())
        rounds.append(ReplayedRound(len(mine), accepted))
        at += accepted + 1
    return rounds


def acceptance(right: Iterable[NDArray[np.bool_]], window: int) -> float:
    """Accepted over drafted tokens on all answers; 0 without any."""
    rounds = [one for each in right for one in rounds_of(each, window)]
    return sum(one.accepted for one in rounds) / max(1, sum(one.drafted for one in rounds))


def replay(
    drafter: Drafter, answers: Sequence[TargetAnswer], window: int, told: Callable[[int], None] = lambda done: None
) -> list[list[ReplayedRound]]:
    """The rounds on every answer, drafted as a UE drafts them."""
    found = []
    for number, answer in enumerate(answers):
        found.append(_replayed(drafter, answer, window))
        told(number + 1)
    return found


def _replayed(drafter: Drafter, answer: TargetAnswer, window: int) -> list[ReplayedRound]:
    rounds: list[ReplayedRound] = []
    output, at = answer.output.tolist(), 0
    sequence = drafter.open(answer.prompt.tolist())
    try:
        while at < len(output):
            start_s = time.perf_counter()
            drafted = [sequence.draft_one().id for _ in output[at : at + window]]
            draft_s = time.perf_counter() - start_s
            wrong = (i for i, (mine, said) in enumerate(zip(drafted, output[at:], strict=False)) if mine != said)
            accepted = next(wrong, len(drafted))
            rounds.append(ReplayedRound(len(drafted), accepted, draft_s))
            at += accepted + 1
            if at < len(output):
                sequence.commit(accepted, output[at - 1])
    finally:
        sequence.close()
    return rounds


def token_ms(replayed: Sequence[Sequence[ReplayedRound]]) -> float:
    """Milliseconds per drafted token, what the drafter reads of verdicts included."""
    timed = [one for rounds in replayed[WARMUP:] or replayed for one in rounds]
    return 1e3 * sum(one.draft_s for one in timed) / max(1, sum(one.drafted for one in timed))
