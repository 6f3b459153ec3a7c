"""Serving latency model: the review's worked example, root finding, a simulated server, known coefficients."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from testbed.errors import BadInput
from testbed.optim.serving.fit import ServingFit, fit, from_document
from testbed.optim.serving.lengths import by_lengths, length
from testbed.optim.serving.model import (
    Comparison,
    Costs,
    CycleCosts,
    collapse,
    collapsed,
    compare,
    coverage,
    latency,
    tokens_per_cycle,
)
from testbed.optim.serving.points import Points
from testbed.optim.serving.problem import FitProblem
from tests.support.refusals import refuse

DENSE, A, B = Costs(1.20, 0.07), Costs(0.78, 0.085), Costs(0.92, 0.072)
"""Section 9 of the review."""
CYCLE = CycleCosts(0.30, 0.020, 0.002, 0.010, 0.0004, 0.00008)
EXPERTS = np.array([0.5, 0.4, 0.02, 0.03])
"""c1_u, c1_s, c2_u, c2_s of a model that routes each token to 8 of 128 experts."""


def expert_latency(
    rps: np.ndarray | float, k: int = 0, values: np.ndarray = EXPERTS, experts: tuple[int, int] = (8, 128)
) -> np.ndarray:
    """[n] L of eq. 4."""
    loads = np.atleast_1d(np.asarray(rps, np.float64))
    model = ServingFit("load", values, np.zeros((0, 4)), math.nan, 0, experts)
    return model.predict(Points(loads, k=np.full(loads.size, float(k))))


# ---------------------------------------------------------------- the review's numbers


@pytest.mark.parametrize(("rps", "printed"), [(10, 4.0), (12, 7.5), (13, 13.3)])
def test_dense_latencies_of_the_worked_example(rps: float, printed: float) -> None:
    assert round(float(latency(rps, *DENSE)), 1) == printed


@pytest.mark.parametrize(("alpha", "k", "printed"), [(0.75, 6, 3.466), (0.75, 2, 2.31)])
def test_tokens_per_cycle_of_the_worked_example(alpha: float, k: int, printed: float) -> None:
    assert float(tokens_per_cycle(alpha, k)) == pytest.approx(printed, abs=0.003)


@pytest.mark.parametrize(
    ("costs", "zero_load", "at_eight", "c1_ratio", "c2_ratio", "star"),
    [(A, 1.54, 1.13, 0.65, 1.21, 8.9), (B, 1.30, 1.25, 0.77, 1.03, 12.7)],
)
def test_speedups_of_the_worked_example(
    costs: Costs, zero_load: float, at_eight: float, c1_ratio: float, c2_ratio: float, star: float
) -> None:
    found = compare(DENSE, costs)
    assert found.zero_load == pytest.approx(zero_load, abs=0.006)
    assert float(found.speedup(8.0)) == pytest.approx(at_eight, abs=0.015)  # the text rounds its ratios first
    assert (round(found.c1_ratio, 2), round(found.c2_ratio, 2)) == (c1_ratio, c2_ratio)
    assert found.break_even_rps is not None and round(found.break_even_rps, 1) == star
    assert found.wins == "below"


def test_a_and_b_cross_where_the_errata_say() -> None:
    assert compare(B, A).break_even_rps == pytest.approx(6.35, abs=0.005)


def wins_by_looking(found: Comparison) -> str:
    """Side of the crossing on which speculation wins, from latencies only, up to saturation of either."""
    end = min(found.dense.saturation_rps, found.speculative.saturation_rps)
    loads = np.linspace(0, end * (1 - 1e-9), 4001)[1:]
    faster = latency(loads, *found.speculative) < latency(loads, *found.dense)
    if faster.all() or not faster.any():
        return "always" if faster.all() else "never"
    assert np.count_nonzero(np.diff(faster)) == 1
    assert found.break_even_rps == pytest.approx(loads[np.flatnonzero(np.diff(faster))[0]], abs=loads[1])
    return "below" if faster[0] else "above"


ratio = st.floats(0.2, 5.0)


@settings(deadline=None)
@given(ratio, ratio)
def test_the_direction_is_the_one_that_latencies_show(c1_ratio: float, c2_ratio: float) -> None:
    found = compare(DENSE, Costs(DENSE.c1_s * c1_ratio, DENSE.c2_s * c2_ratio))
    star = found.break_even_rps
    assume(abs(c1_ratio - 1) > 0.01 and abs(c2_ratio - 1) > 0.01)
    assume(star is None or 0.01 < star * DENSE.c2_s < 0.99)
    assert found.wins == wins_by_looking(found)


@pytest.mark.parametrize(
    ("speculative", "wins"),
    [(DENSE, "never"), (Costs(1.2, 0.06), "always"), (Costs(1.2, 0.08), "never"), (Costs(1.0, 0.07), "always"),
     (Costs(1.3, 0.07), "never"), (Costs(1.5, 0.05), "above"), (Costs(1.0, 0.0), "always")],
)  # fmt: skip
def test_ties_are_no_wins(speculative: Costs, wins: str) -> None:
    found = compare(DENSE, speculative)
    assert found.wins == wins
    assert (found.break_even_rps is not None) is (wins in ("above", "below"))


# ---------------------------------------------------------------- cycles and experts


@given(st.floats(0, 1), st.integers(0, 60))
def test_tokens_per_cycle_are_the_sum_over_j(alpha: float, k: int) -> None:
    assert float(tokens_per_cycle(alpha, k)) == pytest.approx(math.fsum(alpha**j for j in range(k + 1)), rel=1e-12)


def test_no_speculation_costs_a_verification_for_every_token() -> None:
    costs = CYCLE.effective(0.4, 0, 512)
    assert costs == pytest.approx((0.30 + 512 * 0.020, 0.010 + 512 * 0.0004))


def test_perfect_drafts_need_one_cycle_for_every_k_plus_one_tokens() -> None:
    assert CYCLE.effective(1.0, 7, 512).c1_s == pytest.approx(0.30 + 64 * (0.020 + 7 * 0.002))


@given(st.integers(1, 16), st.integers(16, 256), st.integers(0, 500))
def test_coverage_is_what_random_routing_touches_on_average(active: int, experts: int, tokens: int) -> None:
    untouched = (1 - active / experts) ** tokens if active < experts else float(tokens == 0)
    assert float(coverage(tokens, active, experts)) == pytest.approx(1 - untouched, abs=1e-9)


@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize("rps", [0.0, 0.3, 2.0, 8.0, 15.0, 19.0])
def test_the_fixed_point_is_the_root_that_bracketing_finds(rps: float, k: int) -> None:
    found = float(expert_latency(rps, k)[0])

    def gap(seconds: float) -> float:
        phi = 1 - (1 - 8 / 128) ** (rps * seconds * (k + 1))
        return (0.5 + phi * 0.4) - seconds * (1 - rps * (0.02 + phi * 0.03))

    low = 0.5 / (1 - rps * 0.02)
    root = low if gap(low) == 0 else brentq(gap, low * (1 - 1e-9), found * 1.0001, xtol=1e-14, rtol=1e-13)
    assert found == pytest.approx(root, rel=1e-8)
    assert all(gap(s) > 0 for s in np.linspace(low, found, 50)[1:-1] if rps)  # no lower one


def test_all_experts_in_use_is_the_dense_model() -> None:
    assert float(expert_latency(5.0, experts=(4, 4))[0]) == pytest.approx(float(latency(5.0, 0.9, 0.05)))


def test_more_drafted_tokens_cover_more_experts_and_take_longer() -> None:
    by_k = [float(expert_latency(4.0, k)[0]) for k in range(8)]
    assert by_k == sorted(by_k) and by_k[0] < by_k[-1]


# ---------------------------------------------------------------- saturation


@pytest.mark.parametrize("rps", [1 / 0.07, 20.0])
def test_no_latency_at_or_beyond_saturation(rps: float) -> None:
    refuse(lambda: latency(rps, *DENSE), BadInput, "saturation", "below 1", "less than 14.29")


def test_the_load_that_is_refused_is_named() -> None:
    refuse(lambda: latency([1.0, 15.0, 2.0], *DENSE), BadInput, "15 requests/s")
    refuse(lambda: expert_latency(np.array([1.0, 80.0])), BadInput, "80 requests/s", "saturation")
    refuse(lambda: compare(DENSE, A).speedup(13.0), BadInput, "saturation")


@given(st.floats(0, 0.999), st.floats(0.01, 100), st.floats(1e-4, 10))
def test_every_configuration_lies_on_the_one_curve(x: float, c1: float, c2: float) -> None:
    costs = Costs(c1, c2)
    shown = collapse(x / c2, latency(x / c2, *costs), *costs)
    assert float(shown[1]) == pytest.approx(float(collapsed(x)), rel=1e-6)


# ---------------------------------------------------------------- a server that knows no formula


def simulated_server(rps: float, tokens: int, base_s: float, each_s: float, requests: int, seed: int) -> float:
    """Mean seconds of a request; passes run back to back, and each yields a token for every request in it."""
    random = np.random.default_rng(seed)
    arrivals = np.cumsum(random.exponential(1 / rps, requests)).tolist()
    now, coming, total = 0.0, 0, 0.0
    running: list[list[float]] = []  # arrival, tokens left
    while coming < requests or running:
        if not running:
            now = max(now, arrivals[coming])
        while coming < requests and arrivals[coming] <= now:
            running.append([arrivals[coming], tokens])
            coming += 1
        now += base_s + each_s * len(running)
        for request in running:
            request[1] -= 1
        total += sum(now - start for start, left in running if left == 0)
        running = [request for request in running if request[1] > 0]
    return total / requests


def test_the_shape_is_what_a_simulated_server_shows() -> None:
    tokens, base_s, each_s = 40, 0.02, 0.002
    loads = np.linspace(0.2, 10.0, 9)
    measured = np.array([simulated_server(rps, tokens, base_s, each_s, 1200, 3) for rps in loads])
    found = fit(Points(loads), measured)
    assert found.r2 > 0.98
    c1, c2 = found.values
    assert c1 == pytest.approx(tokens * (base_s + each_s), rel=0.06)  # a request alone
    assert c2 == pytest.approx(tokens * each_s, rel=0.06)  # what each other one adds
    assert measured[-1] > 3 * measured[0]


# ---------------------------------------------------------------- fits


def noisy(truth: np.ndarray, sigma: float, seed: int) -> np.ndarray:
    return truth * np.exp(sigma * np.random.default_rng(seed).standard_normal(truth.shape))


def repeated(truth: np.ndarray, sigma: float, seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` repeats of all points, one after the other, and the number of each one's repeat."""
    return np.concatenate([noisy(truth, sigma, 1000 * seed + i) for i in range(count)]), np.repeat(
        np.arange(count), truth.size
    )


def test_two_coefficients_come_back_within_their_intervals() -> None:
    loads = np.linspace(0.5, 13.0, 9)
    inside = np.zeros(2)
    for seed in range(20):
        measured, repeats = repeated(latency(loads, *DENSE), 0.03, seed, 5)
        found = fit(Points(np.tile(loads, 5)), measured, repeats=repeats)
        assert found.values == pytest.approx([1.20, 0.07], rel=0.04)
        assert found.intervals is not None
        inside += (found.intervals[:, 0] <= DENSE) & (found.intervals[:, 1] >= DENSE)
    assert np.all(inside >= 16)


def test_one_repeat_has_no_interval() -> None:
    loads = np.linspace(0.5, 13.0, 9)
    for repeats in (None, np.zeros(9)):
        found = fit(Points(loads), noisy(latency(loads, *DENSE), 0.03, 0), repeats=repeats)
        assert found.intervals is None and found.interval(Points(loads)) is None
    refuse(
        lambda: fit(Points(loads), latency(loads, *DENSE), repeats=np.arange(9) > 6), BadInput, "repeat 1", "3 points"
    )


def queue_means(loads: np.ndarray, requests: int, rng: np.random.Generator) -> np.ndarray:
    """Mean time in an M/M/1 queue with a service of 1 s [loads], by Lindley's recursion: eq. 1 with C1 = C2 = 1 s."""
    service = rng.exponential(1.0, (requests, loads.size))
    gaps = rng.exponential(1 / loads, (requests, loads.size))
    waiting, total = np.zeros(loads.size), np.zeros(loads.size)
    for i in range(requests):
        if i >= requests // 5:
            total += waiting + service[i]
        waiting = np.maximum(waiting + service[i] - gaps[i], 0.0)
    return total / (requests - requests // 5)


@pytest.mark.slow
def test_the_interval_of_c2_covers_the_scatter_between_seeds() -> None:
    """200 series of nine loads, three repeats with independent arrivals: 95 ± 3 % of the intervals hold what all series
    give together.
    """
    loads, rng = np.linspace(0.1, 0.7, 9), np.random.default_rng(0)
    found = []
    for _ in range(200):
        measured = np.concatenate([queue_means(loads, 400, rng) for _ in range(3)])
        found.append(fit(Points(np.tile(loads, 3)), measured, repeats=np.repeat(np.arange(3), 9)))
    together = np.mean([each.values[1] for each in found])
    spans = np.array([each.intervals[1] for each in found if each.intervals is not None])
    covered = np.mean((spans[:, 0] <= together) & (together <= spans[:, 1]))
    assert len(spans) == 200 and 0.92 <= covered <= 0.98


def test_the_fit_is_robust_to_outliers() -> None:
    loads = np.linspace(0.5, 13.0, 15)
    measured = noisy(latency(loads, *DENSE), 0.01, 1)
    measured[[3, 9]] *= 3
    assert fit(Points(loads), measured).values == pytest.approx([1.20, 0.07], rel=0.03)


def speculation_points(
    prefill: float = 512, decode: float = 512, costs: CycleCosts = CYCLE
) -> tuple[Points, np.ndarray]:
    """All (α, k) at five loads relative to their saturation, with latencies by eqs. 1 and 3 written out."""
    rows = []
    for alpha in (0.5, 0.7, 0.9, 1.0):
        for k in (0, 1, 3, 6, 10):
            cycles = decode / sum(alpha**j for j in range(k + 1))
            c1 = costs.c1_p + cycles * (costs.c1_v + k * costs.c1_d)
            c2 = costs.c2_p + cycles * (costs.c2_v + k * costs.c2_d)
            rows += [(x / c2, alpha, k, prefill, decode, c1 / (1 - x)) for x in (0.05, 0.25, 0.45, 0.65, 0.85)]
    *columns, latencies = np.array(rows, float).T
    return Points(*columns), latencies


def test_six_coefficients_come_back_within_their_intervals() -> None:
    points, latencies = speculation_points()
    exact = fit(points, latencies)
    assert exact.form == "speculation" and exact.names == CycleCosts._fields
    assert exact.values == pytest.approx(CYCLE, rel=1e-5) and exact.r2 == pytest.approx(1.0)
    inside = np.zeros(6)
    many = Points(**{name: np.tile(getattr(points, name), 4) for name in ("rps", "alpha", "k", "prefill", "decode")})
    for seed in range(6):
        measured, repeats = repeated(latencies, 0.03, seed, 4)
        found = fit(many, measured, repeats=repeats)
        assert found.r2 > 0.98 and found.values[1:] == pytest.approx(CYCLE[1:], rel=0.12)
        assert found.intervals is not None
        inside += (found.intervals[:, 0] <= CYCLE) & (found.intervals[:, 1] >= CYCLE)
    assert np.all(inside >= 4)


def test_two_coefficients_fit_worse_than_six() -> None:
    points, latencies = speculation_points()
    assert fit(points, latencies, form="load").r2 < 0.8  # Figure 4a against 4c


def test_coverage_coefficients_come_back_and_the_dense_form_falls_short() -> None:
    loads = np.linspace(0.1, 12.0, 25)
    truth = expert_latency(loads)
    exact = fit(Points(loads), truth, (8, 128))
    assert exact.names == ("c1_u", "c1_s", "c2_u", "c2_s")
    assert exact.values == pytest.approx(EXPERTS, rel=1e-4)
    measured, repeats = repeated(truth, 0.01, 2, 4)
    found = fit(Points(np.tile(loads, 4)), measured, (8, 128), repeats=repeats)
    assert found.intervals is not None
    assert np.all((found.intervals[:, 0] <= EXPERTS) & (found.intervals[:, 1] >= EXPERTS))
    low = loads < 4.0
    errors = [
        np.abs(each.predict(Points(loads[low])) / truth[low] - 1).max() for each in (found, fit(Points(loads), truth))
    ]
    assert errors[0] < 0.03 < errors[1]


def test_slopes_are_the_differences_of_the_residuals() -> None:
    loads = np.linspace(0.1, 12.0, 12)
    k = np.tile([0.0, 2.0, 5.0], 4)
    for experts, values in ((None, [0.9, 0.06]), ((8, 128), [0.5, 0.4, 0.02, 0.03])):
        points = Points(loads / 3, k=k)
        problem = FitProblem(points.features("load"), points, experts)
        at = np.array(values) * problem.scales
        slopes = problem.slopes(at, np.ones(12))
        for i in range(at.size):
            step = np.zeros_like(at)
            step[i] = 1e-6 * at[i]
            change = problem.residuals(at + step, np.ones(12)) - problem.residuals(at - step, np.ones(12))
            assert slopes[:, i] == pytest.approx(change / (2 * step[i]), rel=1e-4, abs=1e-7)


def test_predictions_have_intervals_that_hold_the_truth_and_widen_towards_saturation() -> None:
    loads = np.linspace(0.5, 13.0, 9)
    measured, repeats = repeated(latency(loads, *DENSE), 0.02, 4, 5)
    found = fit(Points(np.tile(loads, 5)), measured, repeats=repeats)
    asked = Points(np.array([1.0, 8.0, 13.5]))
    spans = found.interval(asked)
    assert spans is not None
    truth = latency(asked.rps, *DENSE)
    assert np.all((spans[:, 0] <= truth) & (truth <= spans[:, 1]))
    widths = np.ptp(spans, axis=1) / truth
    assert widths[0] < widths[-1]
    refuse(lambda: found.predict(Points(np.array([3.0, 16.0]))), BadInput, "16 requests/s", "saturation")


def test_a_fit_round_trips_through_its_document() -> None:
    for points, latencies, experts in (
        (*speculation_points(), None),
        (Points(np.linspace(0.1, 12, 9)), expert_latency(np.linspace(0.1, 12, 9)), (8, 128)),
    ):
        twice = Points(**{n: np.tile(v, 2) for n, v in points._given().items()})
        measured, repeats = repeated(latencies, 0.01, 1, 2)
        found = fit(twice, measured, experts, repeats=repeats)
        again = from_document(found.document())
        assert isinstance(again, ServingFit) and again.names == found.names
        assert again.predict(points) == pytest.approx(found.predict(points), rel=1e-12)
        assert again.repeats == pytest.approx(found.repeats, rel=1e-6) and len(again.repeats) == 2


@pytest.mark.parametrize(
    ("document", "said"),
    [({}, "no fit"), ({"c1": "x", "c2": 1}, "no fit"), ({"c1": 1}, "c2"), ({"c1": 1, "c2": -1}, "not negative"),
     ({"c1": 1, "c2": 1, "repeats": [[1]]}, "2 numbers"), ({"c1": 1, "c2": 1, "repeats": 3}, "2 numbers"),
     ({"c1_u": 1, "c1_s": 1, "c2_u": 1, "c2_s": 1, "experts": [9, 3]}, "m <= M"),
     ({"c1": math.nan, "c2": 1}, "finite")],
)  # fmt: skip
def test_invalid_fit_documents_are_refused(document: dict[str, object], said: str) -> None:
    refuse(lambda: from_document(document), BadInput, said)


# ---------------------------------------------------------------- lengths


def grown(prefill: float, decode: float) -> CycleCosts:
    """Coefficients that are linear in the lengths."""
    cache = prefill + 0.5 * decode
    return CycleCosts(0.05 + 4e-4 * prefill, 0.015 + 5e-6 * cache, 0.001 + 1e-6 * cache, 0.004 + 2e-5 * prefill,
                      2e-4 + 3e-7 * cache, 4e-5 + 4e-8 * cache)  # fmt: skip


def sweep(noise: float) -> tuple[Points, np.ndarray]:
    """Points at the paper's sixteen pairs of lengths."""
    parts = [speculation_points(p, g, grown(p, g)) for p in (256, 512, 768, 1024) for g in (256, 512, 768, 1024)]
    columns = [
        np.concatenate([getattr(each[0], name) for each in parts])
        for name in ("rps", "alpha", "k", "prefill", "decode")
    ]
    return Points(*columns), noisy(np.concatenate([each[1] for each in parts]), noise, 7)


def test_laws_over_length_hold_for_lengths_left_out() -> None:
    lengths = by_lengths(*sweep(0.005))
    assert len(lengths.pairs) == 16
    laws = lengths.laws()
    assert laws["c2_p"].against == "prefill" and laws["c2_v"].against == "prefill + 0.5*decode"
    assert laws["c2_v"].slope == pytest.approx(3e-7, rel=0.1) and laws["c2_p"].slope == pytest.approx(2e-5, rel=0.2)
    for count, folds in ((1, 16), (2, 120), (4, 1820)):
        left = lengths.leave_out(count)
        assert left.folds == folds
        assert min(left.r2["c2_p"], left.r2["c2_v"]) > 0.9
        assert left.latency_r2 is not None and left.latency_r2 > 0.97
        assert left.beyond <= 0.01 * folds * count * 100


def test_laws_of_exact_points_are_exact_and_leaving_out_changes_nothing() -> None:
    lengths = by_lengths(*sweep(0.0))
    left = lengths.leave_out(4)
    assert min(left.r2.values()) > 0.999 and left.beyond == 0
    assert left.latency_r2 == pytest.approx(1.0, abs=1e-4)
    assert length("c2_v", 300, 100) == 350 and length("c1_p", 300, 100) == 300


def test_lengths_that_cannot_be_left_out_are_refused() -> None:
    lengths = by_lengths(*sweep(0.0))
    for count in (0, 15, 99):
        refuse(lambda count=count: lengths.leave_out(count), BadInput, "1 to 14")
    refuse(lambda: by_lengths(Points(np.ones(3)), np.ones(3)), BadInput, "prefill and decode")
    refuse(lambda: by_lengths(*speculation_points()).laws(), BadInput, "two prompt lengths")


# ---------------------------------------------------------------- bad input

LOADS = np.linspace(1.0, 10.0, 9)
REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: Points(np.array([])), "no points"),
    (lambda: Points(LOADS, k=np.full(9, 1.5)), "whole number"),
    (lambda: Points(LOADS, alpha=np.full(9, 1.5)), "[0, 1]"),
    (lambda: Points(LOADS, decode=np.zeros(9)), "decode"),
    (lambda: Points(LOADS, k=np.ones(3)), "9 points"),
    (lambda: Points(-LOADS), "rps"),
    (lambda: fit(Points(LOADS[:2]), np.ones(2)), "3 points"),
    (lambda: fit(Points(LOADS), np.zeros(9)), "positive"),
    (lambda: fit(Points(LOADS), np.ones(4)), "each point"),
    (lambda: fit(Points(np.ones(9)), np.ones(9)), "two loads"),
    (lambda: fit(Points(LOADS, k=np.arange(9.0)), np.ones(9)), "alpha and decode"),
    (lambda: fit(Points(LOADS), np.ones(9), form="speculation"), "alpha, k, decode"),
    (lambda: fit(Points(LOADS), np.ones(9), (9, 8)), "m <= M"),
    (lambda: fit(Points(LOADS, *np.tile([[0.5], [4], [9], [9]], 9)), LOADS), "apart"),
    (lambda: tokens_per_cycle(1.1, 3), "alpha"),
    (lambda: tokens_per_cycle(0.5, -1), "k must"),
    (lambda: latency(-1, 1, 1), "not negative"),
    (lambda: latency(math.nan, 1, 1), "finite"),
    (lambda: latency(1, 0, 0.1), "C1"),
    (lambda: CYCLE.effective(0.5, 3, 0), "decode"),
    (lambda: compare(Costs(1, 0), A), "C2 of the dense"),
    (lambda: compare(DENSE, Costs(0, 1)), "C1 of the speculative"),
    (lambda: compare(DENSE, Costs(1, -1)), "C2 of the speculative"),
    (lambda: compare(Costs(math.inf, 1), A), "C1 of the dense"),
    (lambda: expert_latency(1.0, experts=(3, 2)), "m <= M"),
]


@pytest.mark.parametrize(("call", "said"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_invalid_input_is_refused_in_one_line(call: Callable[[], object], said: str) -> None:
    refuse(call, BadInput, said)


any_number = st.floats(0.1, 20) | st.floats(allow_subnormal=False)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(any_number, any_number), min_size=1, max_size=8), st.sampled_from([None, None, (1, 4), (4, 4)])
)
def test_any_points_are_fitted_or_refused(rows: list[tuple[float, float]], experts: tuple[int, int] | None) -> None:
    loads, latencies = np.array(rows).T
    said = ""
    try:
        values = fit(Points(loads), latencies, experts).values
        assert np.all(np.isfinite(values) & (values >= 0))
    except BadInput as exc:
        said = str(exc)
    assert "\n" not in said
