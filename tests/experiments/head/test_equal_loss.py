"""Comparison at equal loss: curves known in closed form, heads with a known difference, coverage of intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import isotonic_regression

from testbed.experiments.head.equal_loss import Tradeoff, at_equal_loss, non_decreasing
from testbed.intervals import student_t

GRID = np.linspace(0, 1, 11)


def head(seed: int, ability: float, problems: int = 400, run: int = 0) -> Tradeoff:
    """Problems whose answers break at a θ of their own, shifted by `ability`; rounds fall with θ alike."""
    shared, own = np.random.default_rng((1, seed)), np.random.default_rng((2, seed, run))
    breaks = shared.random(problems) * 4 + 0.05 * own.standard_normal(problems) + ability
    lost = (breaks[None, :] < GRID[:, None]).astype(float)
    tokens = shared.integers(50, 150, problems).astype(float)
    rounds = tokens[None, :] / (5 + 10 * GRID[:, None])
    return Tradeoff(GRID, lost, np.ones(problems), np.tile(tokens, (len(GRID), 1)), rounds)


def test_the_gain_at_a_loss_is_read_off_the_curve() -> None:
    """25 % of the answers are lost at θ = 1, evenly: a loss of 10 points is at θ = 0.4, an AAL of 9."""
    found = head(0, 0.0, problems=40_000)
    assert found.at_loss(10.0, found.whole)[0] == pytest.approx(9.0, abs=0.15)
    assert found.at_loss(0.0, found.whole)[0] == pytest.approx(5.0, abs=0.6)
    assert found.at_loss(99.0, found.whole)[0] == pytest.approx(15.0)
    assert found.reaches(20.0, found.whole)[0] and not found.reaches(99.0, found.whole)[0]  # beyond the largest θ
    assert GRID[found.threshold_at(10.3)] == pytest.approx(0.4)


def test_a_curve_that_ends_before_the_loss_decides_nothing_in_that_direction() -> None:
    """A head whose curve ended earlier was "behind" one that loses as much at θ = 0.4."""
    long = head(0, 0.0)
    short = Tradeoff(GRID[:3], long.lost[:3], long.lost_of, long.won[:3], long.won_per[:3])  # loses up to 5 %
    (_, more) = at_equal_loss({"short": [short], "long": [long]}, 10.0)
    assert more["difference"] > 1 and more["verdict"] == "undecided"
    assert more["difference_low"] is None and more["difference_high"] > 1 and more["reached"]
    (before, less) = at_equal_loss({"long": [long], "short": [short]}, 10.0)
    assert less["difference"] < -1 and less["verdict"] == "undecided" and not less["reached"]
    assert less["difference_high"] is less["value_high"] is None and less["difference_low"] < -1
    assert before["value_low"] < before["value"] < before["value_high"]
    better = head(0, 1.0)  # loses nothing up to θ = 0.2: ahead even by what its curve shows
    ended = Tradeoff(GRID[:8], better.lost[:8], better.lost_of, better.won[:8], better.won_per[:8])
    (_, ahead) = at_equal_loss({"long": [long], "ended": [ended]}, 10.0)
    assert not ahead["reached"] and ahead["verdict"] == "ahead" and ahead["difference_high"] is None


def test_the_interval_of_few_problems_is_wider_than_their_resamples() -> None:
    """Those of ten problems covered the gain at a loss in 36 % of cases."""
    few = head(0, 0.0, problems=10)
    (row,) = at_equal_loss({"a": [few]}, 10.0)
    weights = np.random.default_rng(0).multinomial(10, np.full(10, 0.1), 1000).astype(np.float64)
    drawn = few.at_loss(10.0, weights[weights @ few.lost_of > 0])
    spread = student_t(9) * float(drawn.std()) * (10 / 9) ** 0.5
    assert row["value_high"] is None or row["value_high"] - row["value"] == pytest.approx(spread)
    assert row["value_low"] == pytest.approx(max(0.0, row["value"] - spread))


def test_resamples_without_anything_to_lose_are_left_out() -> None:
    """One of them made every interval NaN."""
    few = head(0, 0.0, problems=8)
    lost_of = np.array([1.0] + [0.0] * 7)
    one = Tradeoff(GRID, few.lost * lost_of, lost_of, few.won, few.won_per)
    for row in at_equal_loss({"a": [one], "b": [one]}, 10.0):
        assert all(value is None or np.isfinite(value) for value in row.values() if isinstance(value, float | None))


@given(st.lists(st.lists(st.floats(-5, 5), min_size=6, max_size=6), min_size=1, max_size=4))
def test_losses_are_made_non_decreasing_as_sklearn_does(rows: list[list[float]]) -> None:
    for row, found in zip(rows, non_decreasing(np.array(rows)), strict=True):
        np.testing.assert_allclose(found, isotonic_regression(row), atol=1e-9)


@given(st.lists(st.floats(-3, 5), min_size=5, max_size=5), st.floats(0, 5))
def test_an_unlucky_point_does_not_end_the_search_and_no_theta_beyond_the_loss_is_taken(
    losses: list[float], points: float
) -> None:
    lost = np.array([[0.0, *losses]]).T / 100
    curve = Tradeoff(np.arange(6.0), lost, np.ones(1), np.arange(6.0)[:, None], np.ones((6, 1)))
    best = curve.threshold_at(points)
    tail_means = [np.mean(lost[best + 1 : end + 1]) for end in range(best + 1, 6)]
    assert all(mean * 100 > points - 1e-6 for mean in tail_means)  # pooled with what follows, it would lose more
    assert best == 0 or min(np.mean(lost[start : best + 1]) for start in range(1, best + 1)) * 100 <= points + 1e-6


def test_a_better_head_is_ahead_and_the_same_head_is_undecided() -> None:
    heads = {"base": [head(4, 0.0)], "better": [head(4, 0.2)], "same": [head(4, 0.0, run=1)]}
    rows = {row["head"]: row for row in at_equal_loss(heads, 5.0)}
    assert rows["better"]["verdict"] == "ahead" and rows["same"]["verdict"] == "undecided"
    assert "verdict" not in rows["base"]
    better = rows["better"]
    assert better["difference"] == pytest.approx(better["value"] - rows["base"]["value"])
    assert better["difference_high"] - better["difference_low"] < better["value_high"] - better["value_low"]  # paired


@pytest.mark.parametrize("seeds", [1, 4])
def test_intervals_cover_the_truth(seeds: int) -> None:
    """The truth: no difference. Of 60 draws of the problems, 95 % of the intervals hold 0, within three deviations."""
    covered = 0
    for draw in range(60):
        heads = {n: [head(draw, 0.0, 100, 10 * k + i) for i in range(seeds)] for k, n in enumerate(("a", "b"))}
        row = at_equal_loss(heads, 5.0)[1]
        covered += row["difference_low"] <= 0 <= row["difference_high"]
    assert covered >= 0.95 * 60 - 3 * (60 * 0.95 * 0.05) ** 0.5
