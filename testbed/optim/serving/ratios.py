"""C1,R, C2,R and break-even load of speculation over windows and acceptance rates: from fits, and as measured.

The measured break-even is where the measured curves of speculation and plain decoding cross. 1/L is linear in the load
by eq. 1, so that each curve is interpolated linearly in 1/L between neighbouring loads; no fit is involved.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput
from testbed.intervals import Interval, compared, repeats_interval
from testbed.optim.serving.fit import fit
from testbed.optim.serving.model import Array, Comparison, Costs, CycleCosts, Wins, compare
from testbed.optim.serving.points import Points

LEAST_LOADS = 3
"""Loads that a fit of C1 and C2 needs."""


class LoadSeries(NamedTuple):
    """Loads of one window and imposed acceptance rate, over all repeats; k = 0 is plain decoding."""

    k: int
    imposed: float | None
    points: Points
    """[n], with α as measured."""
    latency_s: Array
    """[n]"""
    repeat: NDArray[np.float64]
    """[n]"""


class SpeculationRatios(NamedTuple):
    """One window and acceptance rate compared with plain decoding. Intervals are over the repeats with `LEAST_LOADS` or
    more in both series; None for a single one.
    """

    k: int
    imposed: float | None
    c1_ratio: Interval
    c2_ratio: Interval
    wins: Wins
    """Loads at which speculation wins, according to the fits of the two series."""
    decided: bool
    """Whether the intervals of both ratios exclude 1; if not, `wins` is undecided."""
    predicted_rps: Interval | None
    """Break-even by the fits of the two series; None: the curves do not cross."""
    forecast_rps: float | None
    """Break-even by six coefficients fitted to all other series with speculation; None: no crossing, or too few."""
    measured_rps: Interval | None
    """Where the measured curves cross; None: they do not within `measured_from` to `measured_to`, or only in some
    repeats."""
    measured_from: float
    measured_to: float


def ratios(series: list[LoadSeries]) -> list[SpeculationRatios]:
    """Compare every series with k > 0 with the one with k = 0.

    Raises:
        BadInput: not exactly one series with k = 0, none with k > 0, or a series that cannot be fitted.
    """
    plain = [one for one in series if one.k == 0]
    others = [one for one in series if one.k > 0]
    if len(plain) != 1 or not others:
        raise BadInput("ratios need one series with k = 0 and one or more with speculation")
    return [_compared(plain[0], one, [each for each in others if each is not one]) for one in others]


def _compared(plain: LoadSeries, one: LoadSeries, others: list[LoadSeries]) -> SpeculationRatios:
    whole = compare(_costs(plain), _costs(one))
    numbers = sorted(_fitted(plain) & _fitted(one))
    each = [compare(_costs(plain, number), _costs(one, number)) for number in numbers] if len(numbers) > 1 else []
    low, high = _common(plain, one)
    both = (
        _over(whole.c1_ratio, [found.c1_ratio for found in each]),
        _over(whole.c2_ratio, [found.c2_ratio for found in each]),
    )
    return SpeculationRatios(
        one.k,
        one.imposed,
        *both,
        whole.wins,
        all(compared(ratio, 1.0) != "undecided" for ratio in both),
        None if whole.break_even_rps is None else _over(whole.break_even_rps, [c.break_even_rps for c in each]),
        _forecast(plain, one, others),
        _measured(plain, one, numbers),
        low,
        high,
    )


def _fitted(series: LoadSeries) -> set[float]:
    """Repeats with loads enough for a fit of their own: where requests piled up, a load has no mean latency."""
    numbers, counts = np.unique(series.repeat, return_counts=True)
    return set(numbers[counts >= LEAST_LOADS].tolist())


def _costs(series: LoadSeries, repeat: float | None = None) -> Costs:
    rows = np.ones(series.repeat.size, bool) if repeat is None else series.repeat == repeat
    found = fit(Points(series.points.rps[rows]), series.latency_s[rows])
    return Costs(*found.values.tolist())


def _over(value: float, repeats: list[float | None] | list[float]) -> Interval:
    """The value of all repeats together with the interval of the single ones; nan where one has none."""
    known = [each for each in repeats if each is not None]
    if len(known) < 2 or len(known) < len(repeats):
        return Interval(value, np.nan, np.nan)
    found = repeats_interval(known)
    half = found.high - found.value
    return Interval(value, value - half, value + half)


def _forecast(plain: LoadSeries, one: LoadSeries, others: list[LoadSeries]) -> float | None:
    columns = {
        name: np.concatenate([getattr(each.points, name) for each in others]) if others else np.zeros(0)
        for name in ("rps", "alpha", "k", "prefill", "decode")
    }
    try:
        found = fit(Points(**columns), np.concatenate([each.latency_s for each in others]), form="speculation")
    except (BadInput, ValueError):  # too few windows and acceptance rates
        return None
    assert one.points.alpha is not None and one.points.decode is not None
    alpha, decode = float(np.mean(one.points.alpha)), float(np.mean(one.points.decode))
    there: Comparison = compare(_costs(plain), CycleCosts(*found.values.tolist()).effective(alpha, one.k, decode))
    return there.break_even_rps


def _measured(plain: LoadSeries, one: LoadSeries, numbers: list[float]) -> Interval | None:
    crossing = _crossing(_curve(plain, None), _curve(one, None))
    if crossing is None:
        return None
    each = [_crossing(_curve(plain, number), _curve(one, number), crossing) for number in numbers]
    return _over(crossing, each if len(numbers) > 1 else [])


def _curve(series: LoadSeries, repeat: float | None) -> tuple[Array, Array]:
    """Loads and mean latencies, ascending; those of all repeats are means over the loads in the same order."""
    rows = np.ones(series.repeat.size, bool) if repeat is None else series.repeat == repeat
    rps, latency_s = series.points.rps[rows], series.latency_s[rows]
    if repeat is None and len(set(series.repeat.tolist())) > 1:
        by_repeat = [_curve(series, number) for number in sorted(set(series.repeat.tolist()))]
        sizes = {load.size for load, _ in by_repeat}
        if len(sizes) == 1:
            return np.mean([load for load, _ in by_repeat], axis=0), np.mean([took for _, took in by_repeat], axis=0)
    order = np.argsort(rps)
    return rps[order], latency_s[order]


def _common(plain: LoadSeries, one: LoadSeries) -> tuple[float, float]:
    """Range of loads that both series cover."""
    both = [each.points.rps for each in (plain, one)]
    return float(max(rps.min() for rps in both)), float(min(rps.max() for rps in both))


def _crossing(plain: tuple[Array, Array], one: tuple[Array, Array], near: float | None = None) -> float | None:
    """Load at which two curves cross, interpolated linearly in 1/L; of several the nearest to `near`, else the last."""
    low, high = max(plain[0][0], one[0][0]), min(plain[0][-1], one[0][-1])
    loads = np.unique(np.concatenate([plain[0], one[0]]))
    loads = loads[(loads >= low) & (loads <= high)]
    if loads.size < 2:
        return None
    gap = np.interp(loads, plain[0], 1 / plain[1]) - np.interp(loads, one[0], 1 / one[1])
    at = np.flatnonzero(np.diff(np.sign(gap)) != 0)
    if not at.size:
        return None
    found = loads[at] + np.diff(loads)[at] * gap[at] / (gap[at] - gap[at + 1])
    return float(found[-1] if near is None else found[np.argmin(np.abs(found - near))])
