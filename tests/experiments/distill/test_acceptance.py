"""Acceptance from recorded answers against the rounds of the testbed's own decoding."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.experiments.distill.acceptance import acceptance, replay, rounds_of, token_ms
from testbed.experiments.distill.answering import through_engine
from testbed.experiments.distill.answers import AnswerTaking, TargetAnswer, take_answers
from testbed.experiments.lockstep.acceptance import STRICT
from testbed.experiments.predictor.collect import TraceDecoder
from testbed.ue.drafters.synthetic import SyntheticDrafter
from tests.support.stations import VOCAB

WINDOW, TOKENS = 5, 40
PROMPTS = [[3, i, 4, 1, 5] for i in range(6)]


def test_rounds_follow_the_first_mismatch() -> None:
    right = np.array([1, 1, 0, 1, 1, 1, 1, 1, 0, 1], bool)
    assert [(one.drafted, one.accepted) for one in rounds_of(right, 4)] == [(4, 2), (4, 4), (2, 0), (1, 1)]
    assert acceptance([right], 4) == 7 / 11
    assert acceptance([], 4) == 0.0


@pytest.fixture
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[TargetAnswer]:
    folder = tmp_path_factory.mktemp("answers")
    taking = AnswerTaking(TOKENS, (), 4, 2)
    answering = functools.partial(through_engine, SyntheticEngine(vocab_size=VOCAB))
    return take_answers(PROMPTS, taking, answering, folder, lambda *told: None)[0]


def test_replayed_rounds_are_those_of_decoding(answers: list[TargetAnswer]) -> None:
    drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.7)
    replayed = replay(drafter, answers, WINDOW)
    traces = TraceDecoder(drafter, SyntheticEngine(vocab_size=VOCAB), WINDOW, TOKENS, (), STRICT).run(PROMPTS, 0)
    accepted = sum(one.accepted for rounds in replayed for one in rounds)
    ends = sum(one.drafted < WINDOW for rounds in replayed for one in rounds)  # windows that the end cuts short
    assert abs(accepted - int(traces.accepted.sum())) <= WINDOW * (ends + len(PROMPTS))
    assert accepted > 0 and token_ms(replayed) > 0


def test_right_tokens_give_the_rounds_that_were_drafted(answers: list[TargetAnswer]) -> None:
    drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.7)
    right = []
    for answer in answers:
        text, mine = answer.prompt.tolist(), []
        for token in answer.output.tolist():
            sequence = drafter.open(text)
            mine.append(sequence.draft_one().id == token)
            sequence.close()
            text.append(token)
        right.append(np.array(mine))
    for known, drafted in zip(right, replay(drafter, answers, WINDOW), strict=True):
        assert [one[:2] for one in rounds_of(known, WINDOW)] == [one[:2] for one in drafted]


def test_answers_are_the_targets_and_kept(
    answers: list[TargetAnswer], tmp_path_factory: pytest.TempPathFactory
) -> None:
    for answer, prompt in zip(answers, PROMPTS, strict=True):
        assert answer.prompt.tolist() == prompt and len(answer.output) == TOKENS
        assert np.array_equal(answer.top[:, 0], answer.output)
        assert (np.diff(answer.logprobs.astype(np.float32), axis=1) <= 0).all()
