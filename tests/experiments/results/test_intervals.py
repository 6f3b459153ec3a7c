"""Bootstrap intervals against scipy's, normal theory, and their properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from testbed.errors import BadInput
from testbed.experiments.results.intervals import Bootstrap
from testbed.experiments.results.quality import interval
from tests.support.refusals import refuse

DICE = np.random.default_rng(3)
A, B = DICE.gamma(3, 1, 120), DICE.gamma(3, 1, 120)


def test_a_ratio_of_sums_has_scipys_interval() -> None:
    found = Bootstrap({"a": A, "b": B}).ratio("a", "b")
    known = stats.bootstrap(
        (A, B),
        lambda a, b, axis: a.sum(axis) / b.sum(axis),
        paired=True,
        method="percentile",
        rng=5,
        n_resamples=10_000,
    ).confidence_interval
    assert found.value == pytest.approx(A.sum() / B.sum())
    assert (found.low, found.high) == pytest.approx((known.low, known.high), abs=0.01)


def test_a_paired_difference_is_narrower_than_its_parts() -> None:
    """Common variation cancels: the interval is that of the per-prompt difference."""
    noise = 0.1 * DICE.standard_normal(120)
    drawn = Bootstrap({"a": A, "b": A + 0.5 + noise})
    found = drawn.difference("b", "a")
    known = interval(0.5 + noise)
    assert (found.low, found.high) == pytest.approx(known, abs=0.003)
    assert found.high - found.low < 0.1 * (drawn.mean("a").high - drawn.mean("a").low)


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    dice, inside = np.random.default_rng(0), 0
    for _ in range(300):
        found = Bootstrap({"x": dice.exponential(2, 80)}, resamples=400).mean("x")
        inside += found.low <= 2 <= found.high
    assert 0.89 <= inside / 300 <= 0.98


@settings(max_examples=40)
@given(values=st.lists(st.floats(0.1, 100), min_size=1, max_size=30), factor=st.floats(0.1, 10))
def test_intervals_hold_their_value_and_scale(values: list[float], factor: float) -> None:
    column = np.array(values)
    drawn = Bootstrap({"a": column, "b": factor * column}, resamples=200)
    mean = drawn.mean("a")
    assert mean.value == pytest.approx(column.mean())
    assert min(values) <= mean.low * (1 + 1e-9) and mean.high <= max(values) * (1 + 1e-9)
    assert drawn.ratio("b", "a") == pytest.approx((factor, factor, factor))
    assert drawn.difference("a", "a") == pytest.approx((0, 0, 0))
    assert drawn.mean("b") == pytest.approx(tuple(factor * x for x in mean))


def test_the_same_prompts_give_the_same_intervals() -> None:
    assert Bootstrap({"a": A}).mean("a") == pytest.approx(Bootstrap({"a": A, "b": B}).mean("a"))


@pytest.mark.parametrize("columns", [{}, {"a": []}, {"a": [1.0], "b": [1.0, 2.0]}])
def test_columns_that_cannot_be_paired(columns: dict[str, list[float]]) -> None:
    refuse(lambda: Bootstrap(columns), BadInput, "columns over the same prompts")


def test_what_is_not_finite_is_refused() -> None:
    refuse(lambda: Bootstrap({"a": [1.0, float("nan")]}), BadInput, "finite")
