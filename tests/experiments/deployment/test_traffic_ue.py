"""Model-free traffic: what is accepted, what a predictor says of it, and how long windows get."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from testbed.experiments.deployment.traffic_ue import (
    LANGUAGE,
    Chance,
    DraftChances,
    TrafficSequence,
    policy,
    predictor,
)  # fmt: skip
from testbed.ue.drafters.base import DraftToken
from testbed.ue.windows.base import WindowPolicy, window_of
from testbed.ue.windows.registry import WINDOW_RULES

WINDOWS = 20_000


def window(sequence: TrafficSequence, rule: WindowPolicy) -> list[DraftToken]:
    """One window, drafted as a session does."""
    tokens = [sequence.draft_one()]
    while len(tokens) < rule.max_window and rule.keep_drafting(tokens):
        tokens.append(sequence.draft_one())
    return tokens[: window_of(rule, tokens)]


def right(tokens: list[DraftToken]) -> int:
    agree = [token.id == LANGUAGE[place] for place, token in enumerate(tokens)]
    return agree.index(False) if False in agree else len(agree)


def committed(kind: str, shortest: Literal[0, 1] = 0) -> float:
    """Mean tokens of a round, the verifier's own included."""
    chance, rule = Chance(DraftChances(), 1), policy(DraftChances(), WINDOW_RULES[kind], 5, shortest)
    return 1 + float(np.mean([right(window(TrafficSequence(chance, 0), rule)) for _ in range(WINDOWS)]))


@pytest.mark.parametrize(("kind", "tokens"), [("fixed", 3.35), ("before-rejection", 2.41)])
def test_rounds_commit_what_the_errata_say(kind: str, tokens: float) -> None:
    assert committed(kind) == pytest.approx(tokens, abs=0.03)


def test_a_token_at_least_commits_more() -> None:
    """1 + α + Σ (α·TPR)^i, i = 2 … K."""
    expected = 1 + 0.758 + sum((0.758 * 0.8) ** i for i in range(2, 6))
    assert committed("before-rejection", 1) == pytest.approx(expected, abs=0.03)


def test_the_predictor_knows_how_far_what_is_shown_can_be_trusted() -> None:
    """Its probabilities against counts, over first tokens of windows."""
    chance, known = Chance(DraftChances(), 2), predictor(DraftChances())
    seen: dict[float, list[bool]] = {0.0: [], 1.0: []}
    for _ in range(WINDOWS):
        token = TrafficSequence(chance, 0).draft_one()
        seen[token.top1].append(token.id == LANGUAGE[0])
    for shown, kept in seen.items():
        token = DraftToken(0, shown, 0.0, 0.0, 0.0, np.zeros(1, np.float16))
        assert known.accept_probability(token, 1) == pytest.approx(np.mean(kept), abs=0.02)


def test_what_follows_a_rejection_is_believed_as_often_as_told() -> None:
    chance = Chance(DraftChances(acceptance=0.0, after=0.3), 3)
    liked = []
    for _ in range(WINDOWS):
        chance.begin()
        chance.draw()
        liked.append(chance.draw()[1])
    assert np.mean(liked) == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize("bias", [-1.0, 1.0])
def test_a_predictor_that_is_badly_calibrated_doubts_the_same_tokens(bias: float) -> None:
    right, wrong = predictor(DraftChances()), predictor(DraftChances(calibration_bias=bias))
    for liked in (0.0, 1.0):
        x = (liked, 0.0, 0.0, 0.0, 1.0)
        p, shifted = right.probability(x), wrong.probability(x)
        assert np.log(shifted / (1 - shifted)) - np.log(p / (1 - p)) == pytest.approx(bias)
        assert (p >= right.info.threshold) == (shifted >= wrong.info.threshold) == bool(liked)
