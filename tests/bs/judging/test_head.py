"""Judges that ask a head: thresholds at their ends and between, windows judged as if alone, budgets that are kept."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.bs.judging import head as head_judge
from testbed.bs.judging.base import Candidates
from testbed.bs.judging.head import BudgetJudge, HeadJudge, TableJudge
from testbed.channel.csi import PERFECT, Csi, quality
from testbed.errors import BadInput
from tests.support.heads import random_head

POOR = Csi(5.0, 5.0, 200.0, 0.1, 0.1)


def window(seed: int, size: int, threshold: float, csi: Csi | None = PERFECT, session: int = 0) -> Candidates:
    rng = np.random.default_rng(seed)
    ids = np.arange(size, dtype=np.int32)
    drafter = rng.standard_normal((size, 64)).astype(np.float16)
    return Candidates(ids, ids + 1, drafter, rng.standard_normal((size, 64), np.float32), csi, threshold, session)


def alone(judge: HeadJudge, w: Candidates, csi: Csi | None) -> np.ndarray:
    """p_rej of every position by itself: the head's own answer to one row."""
    features = (csi or PERFECT).features[None]
    rows = range(len(w.draft_ids))
    assert w.target_hidden is not None
    hidden = w.target_hidden
    return np.array(
        [judge.head.reject_probability(w.drafter_hidden[i : i + 1], hidden[i : i + 1], features)[0] for i in rows]
    )


STATES = st.sampled_from([None, PERFECT, POOR])
WINDOWS = st.lists(st.tuples(st.integers(0, 99), st.integers(1, 5), st.floats(0, 1), STATES), min_size=1, max_size=6)


@given(WINDOWS)
def test_windows_are_judged_as_if_alone(given_: list[tuple[int, int, float, Csi | None]]) -> None:
    judge = HeadJudge(random_head())
    batch = [window(*one) for one in given_]
    for w, kept in zip(batch, judge.judge(batch), strict=True):
        p = alone(judge, w, w.csi)
        clear = np.abs(p - w.threshold) > 1e-5
        expected = p < w.threshold if w.threshold <= 1 - 1e-6 else np.ones(len(p), bool)
        np.testing.assert_array_equal(kept[clear], expected[clear])


def test_the_ends_of_the_threshold_need_no_head() -> None:
    judge = HeadJudge(random_head())
    bare = Candidates(np.arange(3), np.arange(3), np.zeros((3, 64), np.float16), None, None, 0.0)
    strict, open_ = judge.judge([bare, Candidates(*(getattr(bare, n) for n in bare.__slots__[:5]), threshold=1.0)])
    assert not strict.any() and open_.all()
    assert [judge.needs_hidden(t) for t in (0.0, 0.5, 1.0)] == [False, True, False]


@given(st.integers(0, 99), st.floats(0, 1), st.floats(0, 1))
def test_a_higher_threshold_keeps_no_less(seed: int, one: float, other: float) -> None:
    judge = HeadJudge(random_head())
    low, high = (judge.judge([window(seed, 8, t)])[0] for t in sorted((one, other)))
    assert not (low & ~high).any()


def test_an_unknown_channel_is_judged_as_a_perfect_one() -> None:
    judge = HeadJudge(random_head())
    unknown, perfect, poor = judge.probabilities([window(3, 20, 0.5)] * 3, [PERFECT, PERFECT, POOR])
    np.testing.assert_array_equal(unknown, perfect)
    assert np.abs(perfect - poor).max() > 0.01
    assert quality(PERFECT, "goodput") == quality(PERFECT, "goodput-rtt") == 1.0
    for threshold in np.linspace(0.05, 0.95, 7):
        a, b = judge.judge([window(3, 20, threshold, None), window(3, 20, threshold)])
        np.testing.assert_array_equal(a, b)


def test_the_table_sets_the_threshold_by_the_channel() -> None:
    head = random_head(features=(), thresholds=((0.0, 1.0), (1.0, 0.0)))
    judge = TableJudge(head)
    for csi in (POOR, Csi(20.0, 20.0, 50.0), Csi(500.0, 500.0, 5.0)):
        kept, strict = judge.judge([window(1, 40, 1.0, csi), window(1, 40, 0.0, csi)])
        expected = HeadJudge(head).judge([window(1, 40, 1 - quality(csi, "goodput-rtt"), csi)])[0]
        np.testing.assert_array_equal(kept, expected)
        assert not strict.any()
    poor, good = (judge.judge([window(1, 40, 1.0, csi)])[0].sum() for csi in (POOR, Csi(500.0, 500.0, 5.0)))
    assert poor > good


class Given:
    """A head that says what it is told: the first entry of each drafter state."""

    class info:
        features = ()

    def reject_probability(self, drafter: np.ndarray, target: np.ndarray, channel: np.ndarray) -> np.ndarray:
        assert channel.shape == (len(drafter), 0)
        return drafter[:, 0].astype(np.float32)


def risky(session: int, risks: list[float], threshold: float = 1.0, spent: float = 0.0) -> Candidates:
    ids = np.zeros(len(risks), np.int32)
    states = np.array(risks, np.float32)[:, None]
    return Candidates(ids, ids, states, np.zeros((len(risks), 1), np.float32), None, threshold, session, spent)  # type: ignore[arg-type]


def judged(judge: BudgetJudge, session: int, risks: list[float]) -> np.ndarray:
    """Candidates that the judge keeps after the response has spent the given part of its budget."""
    return judge.judge([risky(session, risks, spent=judge.risk(session))])[0]


def budget_judge(share: float) -> BudgetJudge:
    head: Any = Given()
    return BudgetJudge(head, share)


RISKS = st.lists(st.floats(0, 1), min_size=1, max_size=5)


@given(st.lists(st.tuples(st.integers(0, 2), RISKS), max_size=20), st.floats(0.001, 0.9))
def test_no_response_ever_passes_its_budget(rounds: list[tuple[int, list[float]]], share: float) -> None:
    judge = budget_judge(share)
    unchanged = {0: 1.0, 1: 1.0, 2: 1.0}
    for session, risks in rounds:
        kept = judged(judge, session, risks)
        first = int(np.argmin(kept)) if not kept.all() else len(kept)
        assert not kept[first:].any()
        for risk in np.array(risks[:first], np.float32).tolist():
            unchanged[session] *= 1 - risk
        if first < len(risks):  # what was rejected did not fit
            assert 1 - unchanged[session] * (1 - risks[first]) > share - 1e-6
    assert all(1 - kept <= share + 1e-9 for kept in unchanged.values())


def test_of_many_answers_at_most_the_budgets_share_changes() -> None:
    """Mismatches that are critical with just the probability that the head says."""
    rng, share, answers = np.random.default_rng(7), 0.05, 4000
    judge = budget_judge(share)
    changed = 0
    for answer in range(answers):
        harmed = False
        for _ in range(10):
            risks = rng.beta(0.3, 6, 4)
            kept = judged(judge, answer, risks.tolist())
            harmed |= bool((kept & (rng.random(4) < risks)).any())
        changed += harmed
    spread = 3 * (share * (1 - share) / answers) ** 0.5
    assert share / 2 < changed / answers < share + spread


def test_sessions_of_one_pass_keep_their_own_accounts_and_theta_still_holds() -> None:
    judge = budget_judge(0.1)
    first, second, strict, capped = judge.judge(
        [risky(1, [0.06, 0.03]), risky(2, [0.09]), risky(3, [0.0], 0.0), risky(4, [0.01, 0.05], 0.02)]
    )
    assert first.all() and second.all() and not strict.any()
    assert capped.tolist() == [True, False]
    assert not judged(judge, 1, [0.05]).any()
    assert judged(judge, 5, [0.05]).all()


def test_what_was_spent_elsewhere_counts() -> None:
    here, there = budget_judge(0.1), budget_judge(0.1)
    assert judged(here, 1, [0.06]).all()
    assert not there.judge([risky(1, [0.05], spent=here.risk(1))])[0].any()
    assert there.judge([risky(1, [0.03], spent=here.risk(1))])[0].all()
    assert there.risk(1) == pytest.approx(-math.log(0.94 * 0.97))


def test_accounts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_judge, "ACCOUNTS", 3)
    judge = budget_judge(0.1)
    for session in (1, 2, 1, 3, 4):
        judged(judge, session, [0.04])
    assert judge.risk(2) == judge.risk(99) == 0 < judge.risk(3) < judge.risk(1)


class Slow(int):
    """A key whose hash lets other threads run."""

    def __hash__(self) -> int:
        time.sleep(1e-5)
        return super().__hash__()


def test_accounts_are_kept_by_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long rounds are judged in a thread, others meanwhile in the event loop."""
    monkeypatch.setattr(head_judge, "ACCOUNTS", 1)
    judge = budget_judge(0.1)

    def rounds(session: int) -> bool:
        return all(judge.judge([risky(Slow(session), [0.04])])[0].all() for _ in range(100))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(rounds, range(4)))
    assert len(judge._spent) == 1


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1])
def test_a_share_that_is_none(share: float) -> None:
    with pytest.raises(BadInput, match=r"in \(0, 1\)"):
        budget_judge(share)


def test_a_drafter_that_the_head_does_not_know_is_refused() -> None:
    judge = HeadJudge(random_head(drafter_fingerprint="0123456789abcdef"))
    judge.check("0123456789abcdef", 64)
    for drafter, size in (("fedcba9876543210", 64), ("", 64), ("0123456789abcdef", 32)):
        with pytest.raises(BadInput):
            judge.check(drafter, size)
    with pytest.raises(BadInput, match="16 bits, not of 4"):
        judge.check("0123456789abcdef", 64, 4)
