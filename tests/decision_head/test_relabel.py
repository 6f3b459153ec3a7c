"""Relabelling, checked against exhaustive search, a convex solver, and statements of the paper."""

from __future__ import annotations

import itertools
import math
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.channel.csi import Csi, QualityKind, quality
from testbed.decision_head.relabel import episodes, multiplier_for, policy, relabel, smoothed_importance
from testbed.decision_head.settings import Relabelling
from testbed.errors import BadInput
from tests.support.mismatches import some_mismatches

LABELS = st.lists(st.booleans(), min_size=1, max_size=9).map(np.array)
TAU = st.floats(0.2, 6)


def test_importance_sums_what_is_near() -> None:
    labels = np.array([True, False, False, True])
    found = smoothed_importance(labels, np.arange(4), 2.0)
    near, far = math.exp(-0.5), math.exp(-1)
    np.testing.assert_allclose(found, [1 + math.exp(-1.5), near + far, far + near, 1 + math.exp(-1.5)])


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=20), TAU)
def test_importance_is_the_sum_of_the_equation(mismatches: list[tuple[bool, int]], tau: float) -> None:
    labels, order = np.array([label for label, _ in mismatches], bool), np.array([at for _, at in mismatches], int)
    expected = [sum(math.exp(-abs(i - j) / tau) for label, j in mismatches if label) for i in order]
    np.testing.assert_allclose(smoothed_importance(labels, order, tau), expected, rtol=1e-12)


def test_importance_takes_time_and_memory_as_the_length_of_an_episode() -> None:
    """An episode of 60,000 mismatches took 14 GB; one of 2 million would take 32 TB, or a day in parts."""
    labels = np.ones(2_000_000, bool)
    assert smoothed_importance(labels, np.arange(len(labels)), 1.0)[len(labels) // 2] == pytest.approx(
        (1 + math.exp(-1)) / (1 - math.exp(-1))
    )


@given(LABELS, TAU)
def test_importance_of_a_critical_mismatch_is_at_least_one(labels: Any, tau: float) -> None:
    found = smoothed_importance(labels, np.arange(len(labels)), tau)
    assert (found[labels] >= 1).all()
    assert (found <= labels.sum() + 1e-12).all()


@given(LABELS, TAU, st.integers(0, 9))
def test_the_rule_is_the_best_subset_within_a_tight_budget(labels: Any, tau: float, rank: int) -> None:
    """At low temperature, Σ s_i·a_i is the largest over subsets of critical mismatches within the budget of λ."""
    importance = smoothed_importance(labels, np.arange(len(labels)), tau)
    multiplier = sorted({0.0, *importance[labels].tolist()})[-1 - rank % (1 + len(set(importance[labels].tolist())))]
    chosen = policy(importance, labels, multiplier, 1e-4) > 0.5
    assert not (chosen & ~labels).any()
    budget = int(chosen.sum())
    best = max(
        float(importance @ subset)
        for subset in map(np.array, itertools.product([0, 1], repeat=len(labels)))
        if subset.sum() <= budget and (subset <= labels).all()
    )
    assert float(importance @ chosen) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("temperature", [0.15, 0.6])
def test_the_policy_solves_the_relaxed_problem(seed: int, temperature: float) -> None:
    """max Σ s_i·π_i + T·Σ H(π_i) over 0 ≤ π ≤ y with Σ π = B, by a conic solver; where λ ≥ 0, also with Σ π ≤ B."""
    rng = np.random.default_rng(seed)
    labels = rng.random(12) < 0.6
    importance = smoothed_importance(labels, np.arange(12), 1.5)
    for share in (0.15, 0.5, 0.8, 0.99):
        budget = share * int(labels.sum())
        multiplier = multiplier_for(importance, labels, budget, temperature)
        found = policy(importance, labels, multiplier, temperature)
        pi = cp.Variable(int(labels.sum()))
        goal = importance[labels] @ pi + temperature * cp.sum(cp.entr(pi) + cp.entr(1 - pi))
        for limit in [cp.sum(pi) == budget, *([cp.sum(pi) <= budget] if multiplier >= 0 else [])]:
            cp.Problem(cp.Maximize(goal), [limit]).solve(solver=cp.CLARABEL)
            np.testing.assert_allclose(found[labels], pi.value, atol=2e-4)
        assert (found[~labels] == 0).all()


@given(LABELS, TAU, st.floats(0.02, 3), st.floats(0, 1.2))
def test_expected_repairs_meet_the_budget(labels: Any, tau: float, temperature: float, share: float) -> None:
    importance = smoothed_importance(labels, np.arange(len(labels)), tau)
    budget = share * float(labels.sum())
    multiplier = multiplier_for(importance, labels, budget, temperature)
    found = policy(importance, labels, multiplier, temperature)
    assert found.sum() == pytest.approx(min(budget, float(labels.sum())), abs=1e-6)
    assert (found <= labels).all()


@given(LABELS, st.floats(0.05, 0.9), st.floats(0.01, 0.1))
def test_less_budget_means_a_higher_multiplier(labels: Any, share: float, less: float) -> None:
    importance = smoothed_importance(labels, np.arange(len(labels)), 2.0)
    if not labels.any():
        return
    total = float(labels.sum())
    rich, poor = (multiplier_for(importance, labels, s * total, 0.3) for s in (share, share - less / 3))
    assert poor > rich


def test_the_policy_at_low_temperature_is_the_threshold_rule() -> None:
    labels = np.array([True, False, True, True, False, False, False, True])
    importance = smoothed_importance(labels, np.arange(8), 1.0)
    multiplier = multiplier_for(importance, labels, 3, 1e-4)
    found = policy(importance, labels, multiplier, 1e-4)
    np.testing.assert_allclose(found, labels & (importance > multiplier), atol=1e-6)
    assert found[7] < 1e-6  # the isolated one is skipped first


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0.01, 1))
def test_the_budget_never_falls_as_the_channel_gets_better(one: float, other: float, least: float, full: float) -> None:
    config = Relabelling(least_share=least, full_quality=full)
    low, high = sorted((one, other))
    assert least <= config.share(low) <= config.share(high) + 1e-12
    assert config.share(full) == pytest.approx(1)


@pytest.mark.parametrize("kind", ["goodput", "goodput-rtt"])
def test_the_papers_channels_lie_on_both_sides(kind: QualityKind) -> None:
    config = Relabelling(quality=kind)
    assert config.share(quality(Csi(500.0, 500.0, 50.0), kind)) == 1
    assert 0.7 < config.share(quality(Csi(20.0, 20.0, 50.0), kind)) < 0.9


def test_good_channels_keep_labels_and_poor_ones_only_relax_them() -> None:
    found, critical, _ = some_mismatches(300, 1)
    made = relabel(found, critical, Relabelling(draws=6, seed=3, least_share=0.2))
    assert len(made) == 6 * len(found)
    base, good = critical[made.row], made.quality >= 0.6
    assert (made.action[good] == base[good]).all()
    assert not (made.action & ~base).any()
    for low, high in ((0.2, 0.3), (0.4, 0.5)):  # on average as the budget says, within three standard deviations
        mine = base & (made.quality >= low) & (made.quality < high)
        wanted = np.mean([0.2 + 0.8 * q / 0.6 for q in made.quality[mine]])
        assert made.p_repair[mine].mean() == pytest.approx(wanted, abs=0.01)
        spread = 3 * math.sqrt(0.25 / mine.sum())
        assert made.action[mine].mean() == pytest.approx(made.p_repair[mine].mean(), abs=spread)


def test_every_episode_sees_its_own_channels() -> None:
    found, critical, _ = some_mismatches(40, 2)
    config = Relabelling(draws=3, seed=1, rate_mbps=(10.0, 50.0), rtt_ms=(5.0, 9.0), per=(0.01, 0.02))
    made = relabel(found, critical, config)
    up, down, rtt = (10.0 ** made.features[:, i] for i in range(3))
    for rates in (up, down):
        assert rates.min() > 9.999 and rates.max() < 50.001
    assert rtt.min() > 4.999 and rtt.max() < 9.001
    assert made.features[:, 3:].min() >= 0.0099 and made.features[:, 3:].max() <= 0.0201
    assert len(np.unique(up)) == 40 * 3
    for rows in episodes(found):
        mine = (made.row >= rows.start) & (made.row < rows.stop)
        assert len(np.unique(up[mine])) == 3
        assert mine.sum() == 3 * (rows.stop - rows.start)


def test_the_seed_decides() -> None:
    found, critical, _ = some_mismatches(40, 2)
    one, same, other = (relabel(found, critical, Relabelling(seed=seed, least_share=0.0)) for seed in (5, 5, 6))
    assert (one.action == same.action).all() and (one.features == same.features).all()
    assert (one.action != other.action).any()


def test_episodes_end_with_their_prompt_and_where_numbers_begin_again() -> None:
    found, *_ = some_mismatches(5, 3)
    rows = list(episodes(found))
    assert [found.prompt[r].tolist() for r in rows] == [[p] * (r.stop - r.start) for p, r in enumerate(rows)]
    found.prompt[:] = 7
    assert list(episodes(found)) == rows


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draws": 0}, "draws"),
        ({"seed": -1}, "seed"),
        ({"tau": 0.0}, "tau"),
        ({"temperature": math.inf}, "temperature"),
        ({"least_share": 1.1}, "least-share"),
        ({"full_quality": 0.0}, "full-quality"),
        ({"rate_mbps": (10.0, 5.0)}, "rates"),
        ({"rtt_ms": (0.0, 5.0)}, "RTTs"),
        ({"per": (0.0, 1.0)}, "packet error"),
    ],
)
def test_bad_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Relabelling(**changes)
