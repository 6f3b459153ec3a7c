"""Decoding many prompts in lockstep with a decision head on a constant channel: answers and rounds, without times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from testbed.bs.engines.base import VerifyRequest
from testbed.bs.judging.base import Candidates, Judge
from testbed.channel.csi import Csi
from testbed.experiments.lockstep.answers import AnswerTask
from testbed.experiments.lockstep.decoding import Decoding, draft_window
from testbed.protocols.messages import Reading
from testbed.ue.drafters.after import states_of
from testbed.ue.drafters.base import Drafter


@dataclass(frozen=True)
class JudgedSetup:
    """Settings of a judged decoding.

    Attributes:
        threshold: θ; 0 is strict.
    """

    drafter: Drafter
    task: AnswerTask
    window: int
    judge: Judge
    csi: Csi
    threshold: float


class JudgedOutput(NamedTuple):
    """An output and what it took."""

    token_ids: list[int]
    rounds: int


def decode_judged(setup: JudgedSetup, number: int, prompt: Sequence[int]) -> Decoding[JudgedOutput]:
    """Decode prompt `number` round by round, as a UE and a BS with this judge would."""
    reading, ends = states_of(setup.drafter), setup.task.completer.ends
    text, rounds, end = np.array(prompt, np.int32), 0, len(prompt) + setup.task.max_tokens
    sequence = setup.drafter.open(prompt)
    try:
        while len(text) < end:
            tokens = draft_window(sequence, min(setup.window, end - len(text)), ends)
            ids = np.array([token.id for token in tokens], np.int32)
            result = yield VerifyRequest(f"prompt-{number}", text, ids, hidden=setup.threshold > 0)
            states = np.stack([token.hidden for token in tokens])
            accepted = _accepted(setup, ids, states, result.argmax, result.hidden, reading)
            added = [*ids[:accepted].tolist(), int(result.argmax[accepted])][: end - len(text)]
            added = setup.task.completer.up_to_end(added)
            text, rounds = np.append(text, np.array(added, np.int32)), rounds + 1
            if added[-1] in ends or len(text) >= end:
                break
            sequence.commit(accepted, added[-1])
    finally:
        sequence.close()
    return JudgedOutput(text[len(prompt) :].tolist(), rounds)


def _accepted(
    setup: JudgedSetup,
    ids: np.ndarray,
    states: np.ndarray,
    argmax: np.ndarray,
    hidden: np.ndarray | None,
    reading: Reading,
) -> int:
    """Number of drafted tokens [K] that stay."""
    rows = np.flatnonzero(ids != argmax[:-1])
    if not len(rows):
        return len(ids)
    if hidden is None:
        return int(rows[0])
    target = hidden[rows + (reading == "after")]
    asked = Candidates(ids[rows], argmax[rows], states[rows], target, setup.csi, setup.threshold)
    (kept,) = setup.judge.judge([asked])
    return len(ids) if kept.all() else int(rows[np.argmin(kept)])
