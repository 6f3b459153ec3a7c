"""Averages of rounds: the guess first, then what is measured, then what was measured lately."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from testbed.bs.scheduling.averages import GUESS, GUESS_ROUNDS, MEMORY, Averages, OverheadEstimator, PassOverhead


def test_nothing_measured_is_the_guess() -> None:
    averages = Averages()
    assert averages.shape() == GUESS
    assert averages.acceptance(0, 0) is None


def test_many_rounds_outweigh_the_guess() -> None:
    averages = Averages()
    rng = np.random.default_rng(0)
    rounds = rng.uniform([1, 50, 1, 0.01, 0.01], [20, 600, 6, 0.3, 0.1], (6000, 5))
    for row in rounds:
        averages.add(b"ue", tuple(row), 0, 0)
    weights = np.exp(-np.arange(6000)[::-1] / 1000)
    expected = (rounds * weights[:, None]).sum(axis=0) / weights.sum()
    shape = averages.shape()
    found = [shape.new, shape.cached, shape.committed, shape.draft_s, shape.network_s]
    assert found == pytest.approx(expected.tolist(), rel=2e-3)


def test_acceptance_of_a_session_with_a_record_of_its_own() -> None:
    averages = Averages()
    for _ in range(200):
        averages.add(b"ue", (6, 300, 3, 0.1, 0.05), 3, 1)
    assert averages.acceptance(0, 0) == pytest.approx(0.75)
    assert averages.acceptance(10, 0) == pytest.approx((10 + 7.5) / 20)
    assert averages.acceptance(0, 1000) == pytest.approx(0, abs=0.01)


def test_what_is_between_passes_is_a_line_over_their_requests() -> None:
    rng, between = np.random.default_rng(0), OverheadEstimator()
    assert between.line == PassOverhead(0.0, 0.0)
    for requests in rng.integers(1, 20, 2000).tolist():
        between.add(requests, 0.001 + 0.0002 * requests + rng.normal(0.0, 1e-4))
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


HONEST = (6.0, 300.0, 3.0, 0.2, 0.04)


def plain(rounds: list[tuple[float, ...]]) -> list[float]:
    """Means without regard to who had the rounds."""
    weight, sums = float(GUESS_ROUNDS), [GUESS_ROUNDS * value for value in vars(GUESS).values()]
    for values in rounds:
        weight = math.exp(-1 / MEMORY) * weight + 1
        sums = [math.exp(-1 / MEMORY) * total + value for total, value in zip(sums, values, strict=True)]
    return [total / weight for total in sums]


def test_means_of_ues_that_are_alike_are_those_of_all_rounds_to_the_last_bit() -> None:
    rng, averages, rounds = random.Random(1), Averages(), []
    for _ in range(2500):
        number = rng.randrange(12)
        values = tuple(value * rng.uniform(0.3, 1.0 + 0.2 * number) for value in HONEST)
        averages.add(b"%d" % number, values, 3, 1)  # type: ignore[arg-type]
        rounds.append(values)
    assert list(vars(averages.shape()).values()) == plain(rounds)


@pytest.mark.parametrize("lie_s", [30.0, 1e6])
@pytest.mark.parametrize("rounds", [1, 10, 5000])
def test_times_that_one_ue_reports_count_up_to_a_multiple_of_the_median(lie_s: float, rounds: int) -> None:
    averages = Averages()
    for _ in range(rounds):
        averages.add(b"liar", (6.0, 300.0, 3.0, lie_s, lie_s), 3, 1)
    found = averages.shape()
    assert found.draft_s <= 5 * GUESS.draft_s and found.network_s <= 5 * GUESS.network_s
    for _ in range(300):
        for number in range(10):
            averages.add(b"%d" % number, HONEST, 3, 1)
    assert averages.shape().draft_s < 1.5 * HONEST[3]


def test_one_ue_among_many_moves_nothing_by_more_than_its_share() -> None:
    averages = Averages()
    for _ in range(50):
        for number in range(10):
            averages.add(b"%d" % number, HONEST, 3, 1)
    before = averages.shape()
    for _ in range(3000):  # alone: all others are thinking
        averages.add(b"flood", (257.0, 4000.0, 1.0, 50.0, 50.0), 0, 1)
    share, after = 4 / (4 + 10), averages.shape()
    assert after.new < 6 + share * (257 - 6)
    assert after.cached < 300 + share * (4000 - 300)
    assert after.committed > 3 - share * (3 - 1)
    assert after.draft_s < 0.2 + share * (5 - 1) * 0.2
    assert before.committed == pytest.approx(3)


def test_values_of_a_round_stay_finite_after_a_million_rounds() -> None:
    averages = Averages()
    averages._unit = 1e100 / math.exp(1)
    for _ in range(3000):
        averages.add(b"ue", HONEST, 3, 1)
    assert averages._unit < 1e10
    assert averages.shape().draft_s == pytest.approx(0.2, rel=0.1)
