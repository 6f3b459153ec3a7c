"""Windows that the expected gain ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.ue.drafters.base import DraftToken
from testbed.ue.records import RoundRecord
from testbed.ue.windows.base import WindowPolicy
from testbed.ue.windows.fixed import FixedWindow
from testbed.ue.windows.gain import ExpectedGain, ForgettingLine
from tests.support.predictors import draft, stump

TOKEN = DraftToken(1, 1.0, 0.0, 1.0, 0.0, np.zeros(1, np.float16))


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=2, max_size=30))
def test_a_line_is_the_weighted_least_squares_fit(points: list[tuple[float, float]]) -> None:
    line = ForgettingLine(memory=7.0)
    for point in points:
        line.add(*point)
    x, y = np.array(points).T
    if np.ptp(x) < 0.5:
        return
    weights = (1 - 1 / 7) ** np.arange(len(x))[::-1]
    slope, intercept = np.polyfit(x, y, 1, w=np.sqrt(weights))
    assert line.slope == pytest.approx(slope, abs=1e-6)
    assert line.at(2.0) == pytest.approx(intercept + 2 * slope, abs=1e-6)


def test_a_line_through_one_place_is_flat() -> None:
    line = ForgettingLine(memory=10.0)
    line.add(3.0, 1.0)
    line.add(3.0, 2.0)
    assert line.slope == 0.0
    assert line.at(99.0) == pytest.approx(1.0 + 1 / 1.9)


# ---------------------------------------------------------------- the expected gain, in a world whose rates are known

EASY, HARD = 0.95, 0.3
SHARE = 0.75
"""Share of easy tokens; the predictor knows which are easy, and its probabilities are the true ones."""
MOST = 12


class World:
    """Rounds whose tokens are accepted with known probabilities and whose time is linear in them."""

    def __init__(self, draft_s: float, rest_s: float, per_token_s: float, seed: int) -> None:
        self.draft_s, self.rest_s, self.per_token_s = draft_s, rest_s, per_token_s
        self._rng = np.random.default_rng(seed)

    def rate(self, policy: WindowPolicy, rounds: int = 2500) -> float:
        """Tokens committed a second, after as many rounds for learning as are told by the policy's own memory."""
        tokens = seconds = 0.0
        for number in range(rounds + 500):
            tops = np.where(self._rng.random(MOST) < SHARE, 0.9, 0.1)
            drafted = draft(policy, tops.tolist())
            kept = self._rng.random(MOST) < np.where(tops > 0.5, EASY, HARD)
            accepted = int(np.append(np.flatnonzero(~kept[:drafted]), drafted)[0])
            record = made(drafted, accepted, drafted * self.draft_s, self.rest_s + drafted * self.per_token_s)
            policy.observe(record)
            if number >= 500:
                tokens += record.committed
                seconds += record.draft_s + record.link_s
        return tokens / seconds


def made(drafted: int, accepted: int, draft_s: float, rest_s: float, number: int = 1) -> RoundRecord:
    """A round whose time beside drafting is all on the link."""
    return RoundRecord(
        number, "greedy", 10, drafted, accepted, accepted + 1, 0, 0, 1, draft_s, rest_s, 0.0, 0.0, 0.0, 0.0, 1, 1, 0.0
    )  # fmt: skip


@pytest.mark.parametrize(
    ("draft_s", "rest_s", "per_token_s", "ahead"),
    [(0.02, 0.01, 0.0, 1.0), (0.02, 0.06, 0.002, 1.02), (0.005, 0.2, 0.005, 1.05)],  # first: one token is the best
)
def test_the_expected_gain_finds_the_best_rate(draft_s: float, rest_s: float, per_token_s: float, ahead: float) -> None:
    """Against fixed windows, and rules that stop below a given probability that all are kept."""
    predictor = stump(HARD, EASY)

    @dataclass(frozen=True)
    class Floor(FixedWindow):
        floor: float = 0.0

        def keep_drafting(self, drafted: Sequence[DraftToken]) -> bool:
            easy = sum(t.top1 > 0.5 for t in drafted)
            return len(drafted) < MOST and EASY**easy * HARD ** (len(drafted) - easy) > self.floor

    def rate(policy: WindowPolicy) -> float:
        return World(draft_s, rest_s, per_token_s, seed=1).rate(policy)

    found = rate(ExpectedGain(predictor, MOST))
    fixed = max(rate(FixedWindow(k)) for k in (1, 2, 3, 4, 6, 8, MOST))
    floors = max(rate(Floor(MOST, floor)) for floor in (0.05, 0.2, 0.4, 0.6, 0.8, 0.95))
    assert found >= ahead * fixed
    assert found > 0.97 * floors


def test_a_longer_round_trip_makes_longer_windows() -> None:
    lengths = []
    for rest_s in (0.001, 0.05, 0.5):
        policy = ExpectedGain(stump(HARD, EASY), MOST)
        World(0.02, rest_s, 0.0, seed=2).rate(policy, 200)
        lengths.append(draft(policy, [0.9] * MOST))
    assert lengths[0] < lengths[1] < lengths[2]


def test_prompts_are_left_out_of_what_is_measured() -> None:
    policy = ExpectedGain(stump(HARD, EASY), MOST)
    policy.observe(made(4, 3, 9.0, 9.0, number=0))
    assert policy.rate_tps == policy.token_s == 0.0
    policy.observe(made(4, 3, 0.08, 0.12))
    assert policy.rate_tps == pytest.approx(4 / 0.2)
    assert policy.token_s == pytest.approx(0.02)
    assert policy.fresh().rate_tps == 0.0
