"""C1,R, C2,R and break-even loads: the review's worked example, and six known coefficients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from testbed.errors import BadInput
from testbed.optim.serving.points import Points
from testbed.optim.serving.ratios import LoadSeries, ratios
from tests.support.refusals import refuse

LOADS = np.linspace(0.5, 11.0, 8)
DENSE, A, B = (1.20, 0.07), (0.78, 0.085), (0.92, 0.072)
"""C1 and C2 of Section 9 of the review; it states break-even loads of 8.9 and 12.6 requests/s."""
SIX = {"c1_p": 0.20, "c1_v": 0.020, "c1_d": 0.002, "c2_p": 0.010, "c2_v": 0.0006, "c2_d": 0.00080}
DECODE = 64.0


def series(
    costs: tuple[float, float], k: int, alpha: float = 0.75, sigma: float = 0.0, repeats: int = 3,
    loads: Sequence[float] | np.ndarray = LOADS,
) -> LoadSeries:  # fmt: skip
    """Latencies by eq. 1 written out, with noise of its own in each repeat."""
    c1, c2 = costs
    rps = np.tile(np.asarray(loads, float), repeats)
    noise = np.exp(sigma * np.random.default_rng([k, round(100 * alpha)]).standard_normal(rps.size))
    full = {"alpha": alpha if k else 0.0, "k": float(k), "prefill": 100.0, "decode": DECODE}
    points = Points(rps, **{name: np.full(rps.size, value) for name, value in full.items()})
    return LoadSeries(
        k, alpha if k else None, points, c1 / (1 - rps * c2) * noise, np.repeat(np.arange(repeats), len(loads))
    )


def six(alpha: float, k: int) -> tuple[float, float]:
    """C1 and C2 by eq. 3 written out."""
    cycles = DECODE / sum(alpha**j for j in range(k + 1))
    return tuple(SIX[f"{c}_p"] + cycles * (SIX[f"{c}_v"] + k * SIX[f"{c}_d"]) for c in ("c1", "c2"))  # type: ignore[return-value]


def test_the_worked_example() -> None:
    a, b = ratios([series(DENSE, 0), series(A, 6), series(B, 2)])
    assert (a.c1_ratio.value, a.c2_ratio.value) == pytest.approx((0.65, 1.214), rel=1e-3)
    assert a.wins == b.wins == "below" and a.decided
    assert a.predicted_rps is not None and a.predicted_rps.value == pytest.approx(8.9, abs=0.06)
    assert b.predicted_rps is not None and b.predicted_rps.value == pytest.approx(
        12.6, abs=0.5
    )  # the text rounds first
    # curves of eq. 1 are straight in 1/L, so that their crossing is exact; B's lies beyond the loads
    assert a.measured_rps is not None and a.measured_rps.value == pytest.approx(a.predicted_rps.value, rel=1e-6)
    assert b.measured_rps is None
    assert (a.measured_from, a.measured_to) == pytest.approx((0.5, 11.0))


def test_intervals_over_repeats_hold_the_truth_and_a_single_repeat_has_none() -> None:
    truth = np.array([0.65, 0.085 / 0.07, 8.93])
    inside = np.zeros(3)
    for trial in range(15):
        alpha = 0.5 + trial / 100  # seeds the noise
        (found,) = ratios([series(DENSE, 0, alpha, 0.02, 4), series(A, 6, alpha, 0.02, 4)])
        for i, each in enumerate((found.c1_ratio, found.c2_ratio, found.measured_rps)):
            inside[i] += each is not None and each.low <= truth[i] <= each.high
    assert np.all(inside >= 11)
    (single,) = ratios([series(DENSE, 0, repeats=1), series(A, 6, repeats=1)])
    assert single.c1_ratio.ends == (None, None)
    assert single.measured_rps is not None and single.measured_rps.ends == (None, None) and not single.decided


def test_a_repeat_with_too_few_loads_is_in_the_fit_of_all_and_in_no_interval() -> None:
    """Requests piled up at two of its four loads, and nothing was compared at all."""
    plain, one = series(DENSE, 0, sigma=0.05), series(A, 6, sigma=0.05)
    rows = (one.repeat > 0) | (np.arange(one.repeat.size) < 2)
    points = Points(**{name: getattr(one.points, name)[rows] for name in ("rps", "alpha", "k", "prefill", "decode")})
    (found,) = ratios([plain, LoadSeries(one.k, one.imposed, points, one.latency_s[rows], one.repeat[rows])])
    assert found.c1_ratio.low < 0.65 < found.c1_ratio.high
    (whole,) = ratios([plain, one])
    assert whole.c1_ratio.value != found.c1_ratio.value


def test_where_speculation_wins_is_decided_only_by_both_ratios() -> None:
    """C2 of the window is a hundredth above that of plain decoding, which noise hides; its C1 is far below."""
    near = (0.78, 1.01 * DENSE[1])
    for sigma, decided in ((0.0, True), (0.05, False)):
        (found,) = ratios([series(DENSE, 0, sigma=sigma), series(near, 6, sigma=sigma)])
        assert found.decided == decided and (found.wins == "below" or not decided)


def test_the_forecast_takes_the_other_series_alone() -> None:
    chosen = [(alpha, k) for alpha in (0.6, 0.8, 0.95) for k in (1, 3, 6)]
    loads, dense = np.linspace(0.5, 5.0, 6), series(six(0.0, 0), 0, loads=np.linspace(0.5, 5.0, 6))
    rows = ratios([dense, *(series(six(alpha, k), k, alpha, loads=loads) for alpha, k in chosen)])
    assert [row.forecast_rps is None for row in rows] == [row.predicted_rps is None for row in rows]
    known = [(row.forecast_rps, row.predicted_rps.value) for row in rows if row.predicted_rps and row.forecast_rps]
    assert known
    for forecast, predicted in known:
        assert forecast == pytest.approx(predicted, rel=0.02)
    wrong = series((2 * six(0.6, 1)[0], six(0.6, 1)[1]), 1, 0.6, loads=loads)
    first = ratios([dense, wrong, *(series(six(alpha, k), k, alpha, loads=loads) for alpha, k in chosen[1:])])[0]
    assert first.c1_ratio.value == pytest.approx(2 * rows[0].c1_ratio.value, rel=1e-3) and first.wins == "never"
    assert first.predicted_rps is None and first.forecast_rps == pytest.approx(rows[0].forecast_rps, rel=1e-6)


def test_what_cannot_be_compared_is_refused() -> None:
    for given in ([series(A, 6)], [series(DENSE, 0)], [series(DENSE, 0), series(DENSE, 0), series(A, 6)]):
        refuse(lambda given=given: ratios(given), BadInput, "one series with k = 0")  # type: ignore[misc]
