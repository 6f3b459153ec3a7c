"""Bandwidth allocation, checked against a convex solver."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import BadInput
from testbed.optim.bandwidth import (
    POLICIES,
    Array,
    allocate,
    bits_per_token,
    communication_s,
    rates_bps,
    spectral_efficiency,
    upload_s,
)

BANDWIDTH_HZ, NOISE_W = 20e6, 2.5e-14
TASK = st.tuples(st.floats(1e3, 1e9), st.floats(1e-3, 10.0), st.floats(1e-15, 1e-6))


def cell(seed: int, tasks: int) -> tuple[Array, Array]:
    """Uploads and spectral efficiencies of users in a cell of 400 m."""
    rng = np.random.default_rng(seed)
    metres = 400 * np.sqrt(rng.random(tasks))
    gains = 1e-6 * rng.exponential(size=tasks) * metres**-2
    return rng.integers(1, 513, tasks) * 98304.0, spectral_efficiency(np.full(tasks, 0.2), gains, NOISE_W)


def solved(objective: Callable[..., object], tasks: int) -> Array:
    """Shares that maximise a concave objective."""
    cvxpy = pytest.importorskip("cvxpy")
    shares = cvxpy.Variable(tasks, nonneg=True)
    problem = cvxpy.Problem(cvxpy.Maximize(objective(cvxpy, shares)), [cvxpy.sum(shares) <= 1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    assert problem.status == "optimal"
    return np.asarray(shares.value)


@pytest.mark.parametrize(("seed", "tasks"), [(0, 1), (1, 2), (2, 7), (3, 40)])
def test_a_convex_solver_finds_the_same_shares(seed: int, tasks: int) -> None:
    bits, efficiency = cell(seed, tasks)
    need = bits / bits.mean() / efficiency
    # the slowest upload is fastest where the least share, in units of what a task needs, is largest
    shares = solved(lambda cvxpy, w: cvxpy.min(cvxpy.multiply(1 / need, w)) * need.sum(), tasks)
    ours = allocate("optimal", bits, efficiency)
    assert ours == pytest.approx(shares, abs=1e-6)
    ours_s = communication_s(bits, ours, BANDWIDTH_HZ, efficiency)
    assert ours_s == pytest.approx(communication_s(bits, shares, BANDWIDTH_HZ, efficiency), rel=1e-6)


def test_the_fair_policies_against_a_convex_solver() -> None:
    bits, efficiency = cell(4, 12)
    weights = bits / bits.sum()
    fair = solved(lambda cvxpy, w: weights @ cvxpy.log(w), 12)
    assert allocate("proportional-fair", bits, efficiency) == pytest.approx(fair, abs=1e-5)
    level = solved(lambda cvxpy, w: cvxpy.min(cvxpy.multiply(efficiency / efficiency.max(), w)) * 12, 12)
    assert allocate("max-min", bits, efficiency) == pytest.approx(level, abs=1e-6)


@given(st.lists(TASK, min_size=1, max_size=30))
def test_shares_add_up_and_no_policy_beats_the_optimum(tasks: list[tuple[float, float, float]]) -> None:
    bits, powers, gains = (np.array(column) for column in zip(*tasks, strict=True))
    efficiency = spectral_efficiency(powers, gains, NOISE_W)
    times = {}
    for policy in POLICIES:
        shares = allocate(policy, bits, efficiency)
        assert shares.sum() == pytest.approx(1, abs=1e-12)
        assert (shares > 0).all()
        times[policy] = communication_s(bits, shares, BANDWIDTH_HZ, efficiency)
    assert min(times.values()) >= times["optimal"] * (1 - 1e-12)
    done_s = upload_s(bits, allocate("optimal", bits, efficiency), BANDWIDTH_HZ, efficiency)
    assert done_s == pytest.approx(np.full(len(tasks), times["optimal"]), rel=1e-9)


def test_an_example_by_hand() -> None:
    # SNR 3 and 1: 2 and 1 bit/s/Hz; 8 Mbit and 2 Mbit need 4 and 2 megahertz-seconds, so 2/3 and 1/3 of 3 MHz, 2 s
    efficiency = spectral_efficiency([0.3, 0.1], [1e-9, 1e-9], 1e-10)
    assert efficiency == pytest.approx([2.0, 1.0])
    bits = [8e6, 2e6]
    shares = allocate("optimal", bits, efficiency)
    assert shares == pytest.approx([2 / 3, 1 / 3])
    assert rates_bps(shares, 3e6, efficiency) == pytest.approx([4e6, 1e6])
    assert communication_s(bits, shares, 3e6, efficiency) == pytest.approx(2.0)
    assert communication_s(bits, allocate("uniform", bits, efficiency), 3e6, efficiency) == pytest.approx(8 / 3)
    assert allocate("proportional-fair", bits, efficiency) == pytest.approx([0.8, 0.2])
    assert allocate("max-min", bits, efficiency) == pytest.approx([1 / 3, 2 / 3])


def test_the_worst_channel_gets_the_largest_share() -> None:
    efficiency = spectral_efficiency([0.2] * 3, [1e-9, 1e-11, 1e-13], NOISE_W)
    shares = allocate("optimal", [1e6] * 3, efficiency)
    assert shares[0] < shares[1] < shares[2]


def test_embeddings_of_both_models_are_uploaded() -> None:
    assert bits_per_token(2048, 4096) == 98304


@pytest.mark.parametrize(
    ("power", "gain", "noise", "said"),
    [
        ([], [], 1e-14, "no tasks; give at least one"),
        ([0.2, 0.2], [1e-9, 0.0], 1e-14, "channel gain of task 1 must be positive and finite, not 0"),
        ([0.2, -0.2], [1e-9, 1e-9], 1e-14, "power of task 1 must be positive and finite, not -0.2 W"),
        ([np.inf], [1e-9], 1e-14, "power must be positive and finite, not inf W"),
        ([np.nan], [1e-9], 1e-14, "power must be positive and finite, not nan W"),
        ([0.2], [1e-9], 0.0, "noise must be positive and finite, not 0 W"),
        ([0.2], [1e-9, 1e-9], 1e-14, "every task needs a power and a gain, not 1 powers and 2 gains"),
        ([1e-300], [1e-300], 1.0, "too small or too large"),
    ],
)
def test_invalid_links_are_refused(power: list[float], gain: list[float], noise: float, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        spectral_efficiency(power, gain, noise)


def test_invalid_uploads_and_policies_are_refused() -> None:
    for policy in POLICIES:
        with pytest.raises(BadInput, match="no tasks"):
            allocate(policy, [], [])
        with pytest.raises(BadInput, match="upload of task 1 must be positive and finite, not -1 bits"):
            allocate(policy, [1.0, -1.0], [1.0, 1.0])
    with pytest.raises(BadInput, match="no bandwidth policy 'greedy'; known: optimal, uniform"):
        allocate("greedy", [1.0], [1.0])
    with pytest.raises(BadInput, match="bandwidth must be positive and finite, not 0 Hz"):
        communication_s([1.0], [1.0], 0.0, [1.0])
    with pytest.raises(BadInput, match="share of task 0 must be positive and finite, not 0"):
        upload_s([1.0, 1.0], [0.0, 1.0], 1e6, [1.0, 1.0])
