"""Energy, checked against independent integration; parts add up for any timing of rounds and samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy import integrate

from testbed.errors import BadInput
from testbed.power.accounting import Integral, Spans, account, heat, mean_w
from testbed.power.meter import Meter
from testbed.power.reading import Reading
from testbed.power.series import Samples, gather
from tests.support.refusals import refuse

Reals = NDArray[np.float64]
UNIX_S = 1.7e9


def samples_of(times_s: Any, power_w: Any, **more: Any) -> Samples:
    return Samples(np.asarray(times_s, np.float64), np.asarray(power_w, np.float64), **more)


def spans_of(*rounds: tuple[float, float, float, float, float], shares: tuple[float, float] = (0.5, 0.25)) -> Spans:
    instants = np.array(rounds, np.float64).T
    return Spans(*instants, np.full(len(rounds), shares[0]), np.full(len(rounds), shares[1]))


@st.composite
def recordings(draw: Any, origin_s: float = 0.0) -> Samples:
    """Uneven steps with occasional gaps."""
    steps = draw(st.lists(st.sampled_from([0.01, 0.03, 0.1, 0.11, 0.5, 7.0]), min_size=2, max_size=40))
    times_s = origin_s + np.cumsum([0.0, *steps])
    power_w = draw(hnp.arrays(np.float64, len(times_s), elements=st.floats(0, 60)))
    return samples_of(times_s, power_w, mean=draw(st.booleans()))


@st.composite
def rounds(draw: Any, samples: Samples) -> Spans:
    """Rounds before, after and during the samples, some concurrent."""
    begin, end = samples.time_s[0] - 1.0, samples.time_s[-1] + 1.0
    count = draw(st.integers(1, 6))
    instants = np.sort(draw(hnp.arrays(np.float64, (5, count), elements=st.floats(begin, end))), axis=0)
    links = draw(hnp.arrays(np.float64, count, elements=st.floats(0, 1)))
    works = (1 - links) * draw(hnp.arrays(np.float64, count, elements=st.floats(0, 1)))
    return Spans(*instants, links, works)


def power_at(samples: Samples, at_s: Reals) -> Reals:
    """Power on a grid, computed independently: linear or later sample between samples, 0 in gaps and outside."""
    after = np.searchsorted(samples.time_s, at_s, side="left").clip(1, len(samples.time_s) - 1)
    line = np.interp(at_s, samples.time_s, samples.total_w)
    power_w = samples.total_w[after] if samples.mean else line
    steps_s = samples.time_s[after] - samples.time_s[after - 1]
    inside = (at_s >= samples.time_s[0]) & (at_s <= samples.time_s[-1])
    return np.where(inside & (steps_s <= samples.gap_s), power_w, 0.0)


def by_grid(samples: Samples, from_s: float, to_s: float) -> float:
    """Energy between two instants, by the midpoint rule between all edges."""
    edges = np.unique(np.concatenate([np.linspace(from_s, to_s, 50), samples.time_s.clip(from_s, to_s)]))
    middles = (edges[1:] + edges[:-1]) / 2
    return float(np.sum(power_at(samples, middles) * np.diff(edges)))


# ---------------------------------------------------------------- against another integration


@settings(max_examples=150)
@given(st.data())
def test_energy_is_that_of_an_independent_integration(data: Any) -> None:
    samples = data.draw(recordings())
    instants = np.array([samples.time_s[0] - 1, samples.time_s[-1] + 1])
    a, b = np.sort(data.draw(hnp.arrays(np.float64, 2, elements=st.floats(*instants))))
    energy_j = np.diff(Integral(samples).energy_j(np.array([a, b])))[0]
    assert energy_j == pytest.approx(by_grid(samples, a, b), rel=1e-9, abs=1e-9)


def test_energy_is_that_of_scipy_where_there_is_no_gap() -> None:
    rng = np.random.default_rng(5)
    times_s = np.cumsum(rng.uniform(0.02, 0.06, 500))
    power_w = 5 + 3 * np.sin(times_s) + rng.normal(0, 0.3, 500)
    samples = samples_of(times_s, power_w)
    whole_j = np.diff(Integral(samples).energy_j(times_s[[0, -1]]))[0]
    assert whole_j == pytest.approx(integrate.trapezoid(power_w, times_s), rel=1e-12)
    for a, b in rng.uniform(times_s[0], times_s[-1], (20, 2)):
        a, b = min(a, b), max(a, b)
        dense = np.unique(np.concatenate([np.linspace(a, b, 20_000), times_s[(times_s > a) & (times_s < b)]]))
        expected_j = integrate.trapezoid(np.interp(dense, times_s, power_w), dense)
        assert np.diff(Integral(samples).energy_j(np.array([a, b])))[0] == pytest.approx(expected_j, rel=1e-9)


@settings(max_examples=100)
@given(st.data())
def test_the_running_meter_agrees(data: Any) -> None:
    steps = data.draw(st.lists(st.sampled_from([0.02, 0.1, 0.5, 0.7]), min_size=2, max_size=30))
    times_s = np.cumsum([0.0, *steps])
    power_w = data.draw(hnp.arrays(np.float64, len(times_s), elements=st.floats(0, 60)))
    mean = data.draw(st.booleans())

    class Source:
        name, period_s, total = "some", 0.1, "all"

    source = Source()
    source.mean = mean  # type: ignore[attr-defined]
    meter = Meter(source, 0.1)  # type: ignore[arg-type]
    for t, w in zip(times_s, power_w, strict=True):
        meter.take(Reading(float(t), {}, float(w), throttled="thermal"))
    found = meter.snapshot()
    known = np.diff(times_s) <= 0.55  # five of its steps, and jitter
    each = power_w[1:] if mean else (power_w[1:] + power_w[:-1]) / 2
    assert found["energy_j"] == pytest.approx(float(np.sum(np.where(known, each * np.diff(times_s), 0))), abs=1e-9)
    assert found["measured_s"] + found["gaps_s"] == pytest.approx(times_s[-1], abs=1e-9)
    assert found["samples"] == found["throttled_samples"] == len(times_s)


# ---------------------------------------------------------------- parts


@settings(max_examples=200)
@given(st.data())
def test_parts_add_up_to_rounds_and_rounds_to_the_total_energy(data: Any) -> None:
    samples = data.draw(recordings(origin_s=UNIX_S))
    spans = data.draw(rounds(samples))
    found = account(samples, spans)
    np.testing.assert_allclose(found.draft_j + found.link_j + found.wait_j + found.other_j, found.energy_j, atol=1e-6)
    edges = np.unique(np.concatenate(spans[:5]))
    middles = (edges[1:] + edges[:-1]) / 2
    busy = ((spans.begin_s[:, None] < middles) & (middles < spans.end_s[:, None])).any(axis=0)
    whole_j = sum(by_grid(samples, a, b) for a, b, on in zip(edges, edges[1:], busy, strict=False) if on)
    assert found.energy_j.sum() == pytest.approx(whole_j, rel=1e-6, abs=1e-4)  # Unix times have a resolution of 0.24 µs
    assert (found.energy_j >= -1e-6).all() and (found.unknown_s >= -1e-6).all()
    assert (found.unknown_s <= spans.end_s - spans.begin_s + 1e-6).all()


def test_parts_by_hand() -> None:
    samples = samples_of([0, 1, 2, 3, 4], [10, 10, 20, 20, 4])
    # drafts in [0, 1]; sent at 1.5; the verdict at 3.5; over at 4
    found = account(samples, spans_of((0.0, 1.0, 1.5, 3.5, 4.0)))
    waited = (15 + 20) / 2 * 0.5 + 20 + (20 + 12) / 2 * 0.5
    assert found.draft_j == pytest.approx([10.0])
    assert found.link_j == pytest.approx([waited / 2])
    assert found.wait_j == pytest.approx([waited / 4])
    assert found.other_j == pytest.approx([(10 + 15) / 2 * 0.5 + waited / 4 + (12 + 4) / 2 * 0.5])
    assert found.energy_j == pytest.approx([10 + 15 + 20 + 12])
    assert found.unknown_s == pytest.approx([0.0])


def test_a_counters_samples_are_means_of_the_time_before_them() -> None:
    samples = samples_of([0, 1, 2], [99, 4, 8], mean=True)
    found = account(samples, spans_of((0.0, 0.5, 0.5, 1.5, 2.0)))
    assert found.draft_j == pytest.approx([2.0])
    assert found.energy_j == pytest.approx([12.0])


def test_rounds_at_the_same_time_share_the_power() -> None:
    samples = samples_of(np.arange(0, 10.1, 0.1), np.full(101, 6.0))
    found = account(samples, spans_of((1.0, 1.0, 1.0, 3.0, 3.0), (2.0, 2.0, 2.0, 5.0, 5.0), (7.0, 7.0, 8.0, 8.0, 8.0)))
    assert found.energy_j == pytest.approx([6 + 3, 3 + 12, 6])


def test_gaps_are_reported_and_not_bridged() -> None:
    times_s = np.concatenate([np.arange(0, 1.01, 0.1), np.arange(3, 4.01, 0.1)])
    samples = samples_of(times_s, np.full(len(times_s), 10.0))
    inside, across, beyond = (0.0, 0.2, 0.2, 0.6, 0.8), (0.5, 0.5, 0.5, 3.5, 3.5), (3.9, 3.9, 3.9, 4.5, 4.5)
    found = account(samples, spans_of(inside, across, beyond))
    assert found.unknown_s == pytest.approx([0.0, 2.0, 0.5])
    assert found.energy_j[0] == pytest.approx(0.5 * 10 + 0.3 * 5)  # shared with the second from 0.5 on
    assert found.energy_j[1] == pytest.approx(0.3 * 5 + 0.2 * 10 + 0.5 * 10)  # no energy in the gap
    assert found.energy_j[2] == pytest.approx(1.0)


def test_no_rounds_have_no_energy() -> None:
    none = np.zeros(0)
    found = account(samples_of([0, 1], [1, 1]), Spans(*[none] * 7))
    assert [len(column) for column in found] == [0] * 6


@pytest.mark.parametrize(
    "spans",
    [
        spans_of((0.0, 2.0, 1.0, 3.0, 4.0)),
        spans_of((0.0, np.nan, 1.0, 3.0, 4.0)),
        spans_of((0.0, 1.0, 1.0, 3.0, 4.0), shares=(0.9, 0.2)),
        spans_of((0.0, 1.0, 1.0, 3.0, 4.0), shares=(-0.1, 0.2)),
    ],
)
def test_invalid_rounds_are_refused(spans: Spans) -> None:
    refuse(lambda: account(samples_of([0, 5], [1, 1]), spans), BadInput)


# ---------------------------------------------------------------- heat, idle, samples


def test_heat_of_rounds() -> None:
    samples = samples_of(
        [0, 1, 2, 3], [1, 1, 1, 1], temp_c=np.array([40.0, np.nan, 70.0, 50.0]),
        throttled=("", "thermal", "over-current+thermal", None),
    )  # fmt: skip
    temps, reasons = heat(samples, np.array([0.1, 0.5, 1.2, 2.5, 3.5]), np.array([0.9, 1.5, 1.3, 3.5, 9.0]))
    np.testing.assert_array_equal(temps, [40.0, 40.0, np.nan, 70.0, 50.0])
    assert reasons == ["", "thermal", "thermal", "over-current+thermal", None]
    bare = samples_of([0, 1], [1, 1])
    temps, reasons = heat(bare, np.array([0.0]), np.array([1.0]))
    assert np.isnan(temps).all() and reasons == [None]


def test_idle_power_is_a_mean_of_what_is_known() -> None:
    times_s = np.concatenate([np.arange(0, 1.01, 0.1), [3.0, 3.1]])
    samples = samples_of(times_s, np.linspace(2, 4, len(times_s)))
    assert mean_w(samples, 0.0, 1.0) == pytest.approx(np.mean(samples.total_w[[0, 10]]))
    assert mean_w(samples, 0.5, 2.5) is None  # unknown for three quarters


@pytest.mark.parametrize(
    ("times_s", "power_w", "word"),
    [
        ([0], [1], "two samples"),
        ([0, 0], [1, 1], "increase"),
        ([1, 0], [1, 1], "increase"),
        ([0, 1], [1, np.inf], "finite"),
    ],
)
def test_invalid_samples_are_refused(times_s: list[float], power_w: list[float], word: str) -> None:
    refuse(lambda: samples_of(times_s, power_w), BadInput, word)


def test_readings_that_come_late_are_counted() -> None:
    readings = [Reading(t, {"a": w}, w) for t, w in [(0, 1.0), (1, 2.0), (0.5, 9.0), (2, np.nan), (3, 4.0)]]
    found = gather([None, *readings, None], False, "some", "a")
    assert found.skipped == 4
    np.testing.assert_array_equal(found.time_s, [0, 1, 3])
    np.testing.assert_array_equal(found.rails["a"], [1, 2, 4])
