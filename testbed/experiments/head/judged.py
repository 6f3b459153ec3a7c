"""Decoding many prompts in lockstep with a decision head on a constant channel: answers and rounds, without times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from testbed.bs.judging.base import Judge
from testbed.channel.csi import Csi
from testbed.experiments.lockstep.acceptance import JudgedRule
from testbed.experiments.lockstep.answers import AnswerTask
from testbed.experiments.lockstep.decoding import Decoding, draft_window
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
    rule = JudgedRule(setup.judge, setup.threshold, setup.csi, states_of(setup.drafter))
    ends, text, rounds, end = setup.task.completer.ends, list(prompt), 0, len(prompt) + setup.task.max_tokens
    sequence = setup.drafter.open(prompt)
    try:
        while len(text) < end:
            tokens = draft_window(sequence, min(setup.window, end - len(text)), ends)
            result = yield rule.request(f"prompt-{number}", text, tokens)
            accepted, token = rule.keep(tokens, result, None)
            added = [*(one.id for one in tokens[:accepted]), token][: end - len(text)]
            added = setup.task.completer.up_to_end(added)
            text, rounds = [*text, *added], rounds + 1
            if added[-1] in ends or len(text) >= end:
                break
            sequence.commit(accepted, added[-1])
    finally:
        sequence.close()
    return JudgedOutput(text[len(prompt) :], rounds)
