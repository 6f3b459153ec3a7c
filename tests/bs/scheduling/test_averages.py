"""Averages of rounds: the guess first, then what is measured, then what was measured lately."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.bs.scheduling.averages import GUESS, Averages, OverheadEstimator, PassOverhead


def test_nothing_measured_is_the_guess() -> None:
    averages = Averages()
    assert averages.shape() == GUESS
    assert averages.acceptance(0, 0) is None


def test_many_rounds_outweigh_the_guess() -> None:
    averages = Averages()
    rng = np.random.default_rng(0)
    rounds = rng.uniform([1, 50, 1, 0.01, 0.01], [20, 600, 6, 0.3, 0.1], (6000, 5))
    for row in rounds:
        averages.add(tuple(row), 0, 0)
    weights = np.exp(-np.arange(6000)[::-1] / 1000)
    expected = (rounds * weights[:, None]).sum(axis=0) / weights.sum()
    shape = averages.shape()
    found = [shape.new, shape.cached, shape.committed, shape.draft_s, shape.network_s]
    assert found == pytest.approx(expected.tolist(), rel=2e-3)


def test_acceptance_of_a_session_with_a_record_of_its_own() -> None:
    averages = Averages()
    for _ in range(200):
        averages.add((6, 300, 3, 0.1, 0.05), 3, 1)
    assert averages.acceptance(0, 0) == pytest.approx(0.75)
    assert averages.acceptance(10, 0) == pytest.approx((10 + 7.5) / 20)
    assert averages.acceptance(0, 1000) == pytest.approx(0, abs=0.01)


def test_what_is_between_passes_is_a_line_over_their_requests() -> None:
    random, between = np.random.default_rng(0), OverheadEstimator()
    assert between.line == PassOverhead(0.0, 0.0)
    for requests in random.integers(1, 20, 2000).tolist():
        between.add(requests, 0.001 + 0.0002 * requests + random.normal(0.0, 1e-4))
    assert between.line.pass_s == pytest.approx(0.001, rel=0.1)
    assert between.line.request_s == pytest.approx(0.0002, rel=0.1)


@pytest.mark.parametrize(("requests", "times"), [((4, 4), (0.01, 0.02)), ((1, 9), (0.02, 0.01)), ((1, 2), (0.0, 0.01))])
def test_what_passes_do_not_tell_is_not_made_up_and_nothing_is_negative(
    requests: tuple[int, int], times: tuple[float, float]
) -> None:
    between = OverheadEstimator()
    for _ in range(300):
        for n, stood_s in zip(requests, times, strict=True):
            between.add(n, stood_s)
    base_s, each_s = between.line
    assert base_s >= -1e-12 and each_s >= 0
    assert base_s + each_s * np.mean(requests) == pytest.approx(np.mean(times), rel=0.02)
    assert (requests[0] == 1 and times[0] < times[1]) or each_s == 0
