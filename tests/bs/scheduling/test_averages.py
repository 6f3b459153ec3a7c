"""Means of rounds: the guess first, then what is measured of a UE and of the others; none moves those of others."""

from __future__ import annotations

import random
from statistics import median, median_low

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.bs.scheduling.averages import GUESS, GUESS_ROUNDS, MEMORY, Averages, OverheadEstimator, TypicalMean
from testbed.optim.pass_time import PassOverhead

HONEST = (6.0, 300.0, 3.0, 0.2, 0.04)
Values = tuple[float, float, float, float, float]


def test_nothing_measured_is_the_guess() -> None:
    averages = Averages()
    assert averages.expected() == averages.expected(b"ue") == GUESS
    assert averages.acceptance(b"ue", 0, 0) is None


def test_the_rounds_of_a_ue_outweigh_the_guess() -> None:
    averages = Averages()
    rng = np.random.default_rng(0)
    rounds = rng.uniform([1, 50, 2, 0.01, 0.01], [20, 600, 6, 0.3, 0.1], (6000, 5))
    for row in rounds:
        averages.add(b"ue", tuple(row), 0, 0)
    weights = np.exp(-np.arange(6000)[::-1] / MEMORY)
    means = (rounds * weights[:, None]).sum(axis=0) / weights.sum()
    guess = np.array(list(vars(averages.expected()).values()))
    expected = (means * weights.sum() + GUESS_ROUNDS * guess) / (weights.sum() + GUESS_ROUNDS)
    assert list(vars(averages.expected(b"ue")).values()) == pytest.approx(expected.tolist(), rel=1e-9)


@given(st.lists(st.tuples(*[st.floats(0.01, 50.0)] * 5), min_size=1, max_size=9))
def test_a_typical_round_has_the_medians_of_the_ues_and_the_guess(means: list[Values]) -> None:
    averages = Averages()
    for _ in range(4):
        for number, values in enumerate(means):
            averages.add(b"%d" % number, values, 3, 1)
    found = averages.expected()
    for i, (name, guess) in enumerate(vars(GUESS).items()):
        guesses = [guess] if len(means) % 2 == 0 else [guess, guess]
        assert getattr(found, name) == pytest.approx(median([*guesses, *(values[i] for values in means)]), rel=1e-9)


def test_acceptance_of_a_session_with_a_record_of_its_own() -> None:
    averages = Averages()
    for _ in range(2000):
        averages.add(b"ue", HONEST, 3, 1)
    assert averages.acceptance(b"ue", 0, 0) == pytest.approx(0.75)
    assert averages.acceptance(b"ue", 10, 0) == pytest.approx((10 + 7.5) / 20)
    assert averages.acceptance(b"ue", 0, 1000) == pytest.approx(0, abs=0.01)
    assert averages.acceptance(b"other", 0, 0) is None  # one UE says nothing about others


@pytest.mark.parametrize(
    "lie", [(6.0, 300.0, 3.0, 1e6, 1e6), (257.0, 4000.0, 1.0, 50.0, 50.0), (1.0, 0.0, 9.0, 0.0, 0.0)]
)
@pytest.mark.parametrize("honest", [0, 1, 2, 10])
def test_one_ue_does_not_change_what_is_expected_of_others(lie: Values, honest: int) -> None:
    averages, names = Averages(), [b"%d" % number for number in range(honest)]
    rng = random.Random(0)
    for _ in range(50):
        for name in names:
            tokens = rng.choice((0, 1, 3, 5))
            averages.add(name, HONEST, tokens, int(tokens < 5))
    before = [averages.expected(name) for name in (*names, b"new")]
    rates = [averages.acceptance(name, 0, 0) for name in names]
    for _ in range(3000):
        averages.add(b"liar", lie, 0, 1)
    after = [averages.expected(name) for name in (*names, b"new")]
    bounds = np.sort([HONEST, list(vars(GUESS).values())], axis=0)
    for one, other in zip(before, after, strict=True):
        assert all(
            low - 1e-9 <= value <= high + 1e-9 for value, low, high in zip(vars(other).values(), *bounds, strict=True)
        )
        if honest > 2:
            assert vars(one) == pytest.approx(vars(other), rel=0.35)
    assert [averages.acceptance(name, 0, 0) for name in names] == pytest.approx(rates, abs=0.03)


def test_times_count_up_to_a_minute_and_tokens_from_half_of_what_is_typical() -> None:
    averages = Averages()
    for _ in range(3000):
        averages.add(b"ue", (6.0, 300.0, 0.0, 1e6, 1e6), 0, 1)
    found = averages.expected(b"ue")
    assert found.draft_s <= 60 and found.network_s <= 60 and found.committed == GUESS.committed / 2


def test_the_means_of_few_ues_are_kept() -> None:
    averages = Averages()
    for number in range(3000):
        averages.add(b"%d" % number, HONEST, 3, 1)
    assert len(averages._ues) == 1024
    assert averages.expected(b"0") == averages.expected()


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=9))
def test_a_typical_mean_is_a_median(values: list[float]) -> None:
    typical, free = TypicalMean(0.5), TypicalMean()
    for _ in range(3):
        for number, value in enumerate(values):
            typical.add(b"%d" % number, value)
            free.add(b"%d" % number, value)
    start = [0.5] if len(values) % 2 == 0 else [0.5, 0.5]
    assert typical.value == pytest.approx(median([*start, *values]), abs=1e-12)
    assert free.value == pytest.approx(median_low(values), abs=1e-12) and free.ues == len(values)


def test_what_is_between_passes_is_a_line_over_their_requests() -> None:
    rng, between = np.random.default_rng(0), OverheadEstimator()
    assert between.line == PassOverhead(0.0, 0.0)
    for requests in rng.integers(1, 20, 2000).tolist():
        between.add(requests, 0.001 + 0.0002 * requests + rng.normal(0.0, 1e-4))
    assert between.line.pass_s == pytest.approx(0.001, rel=0.1)
    assert between.line.request_s == pytest.approx(0.0002, rel=0.1)


@given(requests=st.lists(st.integers(1, 64), min_size=1, max_size=60))
def test_the_overhead_is_never_negative_not_even_by_rounding(requests: list[int]) -> None:
    between = OverheadEstimator()
    for n in requests:
        between.add(n, n * n * 1e-6)
        assert min(between.line) >= 0


@pytest.mark.parametrize(("requests", "times"), [((4, 4), (0.01, 0.02)), ((1, 9), (0.02, 0.01)), ((1, 2), (0.0, 0.01))])
def test_what_passes_do_not_tell_is_not_made_up_and_nothing_is_negative(
    requests: tuple[int, int], times: tuple[float, float]
) -> None:
    between = OverheadEstimator()
    for _ in range(300):
        for n, stood_s in zip(requests, times, strict=True):
            between.add(n, stood_s)
    base_s, each_s = between.line
    assert base_s >= 0 and each_s >= 0
    assert base_s + each_s * np.mean(requests) == pytest.approx(np.mean(times), rel=0.02)
    assert (requests[0] == 1 and times[0] < times[1]) or each_s == 0
