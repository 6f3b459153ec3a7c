"""Estimates against published tables and simulation."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.channel.measuring.probe import Estimate, mean_estimate, median_estimate, rtt_estimate
from testbed.errors import BadInput

# ranks of the 95 % interval of a median, as tables of the sign test print them
RANKS = {6: 1, 7: 1, 8: 1, 9: 2, 10: 2, 15: 4, 20: 6, 25: 8, 50: 18, 100: 40}


@pytest.mark.parametrize(("n", "rank"), RANKS.items())
def test_a_medians_interval_is_the_tables(n: int, rank: int) -> None:
    shuffled = np.random.default_rng(n).permutation(np.arange(1.0, n + 1)).tolist()
    assert median_estimate(shuffled) == Estimate((n + 1) / 2, rank, n + 1 - rank, n)


def test_fewer_than_six_samples_give_a_median_no_interval() -> None:
    assert median_estimate([5.0, 1.0, 3.0, 2.0, 4.0]) == Estimate(3.0, None, None, 5)
    assert mean_estimate([4.0]) == Estimate(4.0, None, None, 1)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(7)
    medians = [median_estimate(rng.lognormal(0.0, 1.0, 20).tolist()) for _ in range(2000)]
    means = [mean_estimate(rng.normal(3.0, 2.0, 5).tolist()) for _ in range(2000)]
    # order statistics are discrete: with 20 samples the interval holds 95.9 %
    for estimates, truth in ((medians, 1.0), (means, 3.0)):
        inside = np.mean([e.low is not None and e.high is not None and e.low <= truth <= e.high for e in estimates])
        assert 0.94 < inside < 0.97


def test_many_samples_are_no_trouble() -> None:
    estimate = median_estimate(np.random.default_rng(0).normal(10.0, 1.0, 5000).tolist())
    assert estimate.low is not None and estimate.high is not None
    # a median's standard error is sqrt(π/2) that of a mean: 0.0177, so the interval is about 0.069 wide
    assert 0.055 < estimate.high - estimate.low < 0.085


def test_rtt_by_hand() -> None:
    rtt = rtt_estimate([0.010, 0.012, 0.011])
    assert rtt.median_ms.value == pytest.approx(11.0)
    assert rtt.jitter_ms == pytest.approx((2 + 1) / 2)
    assert rtt.least_ms == pytest.approx(10.0)
    assert rtt_estimate([0.01]).jitter_ms is None


@pytest.mark.parametrize("samples", [[], [1.0, float("nan")], [float("inf")]])
def test_samples_that_are_none(samples: list[float]) -> None:
    for make in (median_estimate, mean_estimate, rtt_estimate):
        with pytest.raises(BadInput, match="finite numbers"):
            make(samples)
