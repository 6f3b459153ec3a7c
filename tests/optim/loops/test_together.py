"""RoundChoices that end together: edge-SD's closed form, and brute force over the windows."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from testbed.optim.bandwidth import communication_s, simultaneous
from testbed.optim.loops.objectives import OBJECTIVES
from testbed.optim.loops.state import CellState, RoundMode, UeState
from testbed.optim.loops.together import arrive_together, plan_together
from tests.optim.loops.cells import A100, expected_tokens, modes, work_s


def test_edge_sd_simultaneous_arrival_and_equal_deadlines_give_eq_27() -> None:
    """Z's closed form: windows given, drafting equally long."""
    rng = np.random.default_rng(1)
    bits, efficiency, bandwidth_hz = rng.uniform(1e4, 1e6, 6), rng.uniform(0.2, 6, 6), 2e7
    shares, arrival_s = arrive_together(np.full(6, 0.25), bits / (bandwidth_hz * efficiency))
    closed = simultaneous(bits, efficiency)
    assert shares == pytest.approx(closed, rel=1e-6)
    assert arrival_s - 0.25 == pytest.approx(communication_s(bits, closed, bandwidth_hz, efficiency), rel=1e-6)
    ues = [
        UeState(bandwidth_hz * e, 0.02, modes=(RoundMode(token_bits=b / 4),), windows=(4, 4))
        for b, e in zip(bits, efficiency, strict=True)
    ]
    plan = plan_together(CellState(ues, A100), OBJECTIVES["goodput"])
    assert plan.shares == pytest.approx(closed, rel=1e-6)


def test_who_drafts_longer_gets_more_so_that_all_arrive_at_once() -> None:
    fixed_s, air_s = np.array([0.1, 0.2, 0.0]), np.array([0.01, 0.01, 0.0])
    shares, arrival_s = arrive_together(fixed_s, air_s)
    assert shares[1] > shares[0] and shares[2] == 0
    assert fixed_s[:2] + air_s[:2] / shares[:2] == pytest.approx([arrival_s] * 2)


def goodput(cell: CellState, windows: tuple[int, ...]) -> float:
    """Sum goodput over the round of these windows, in the first mode, with scipy's root."""
    drafting, air, work, tokens = [], [], 0.0, 0.0
    for ue, window in zip(cell.ues, windows, strict=True):
        mode = ue.modes[0]
        drafting.append(window * ue.draft_s + ue.link_s)
        air.append((mode.fixed_bits + window * mode.token_bits) / ue.rate_bps)
        work += work_s(ue, window)
        tokens += expected_tokens(mode.acceptance, window)

    def over(t: float) -> float:
        return sum(c / (t - a) for a, c in zip(drafting, air, strict=True)) - 1

    arrival_s = brentq(over, max(drafting) + 1e-9, max(drafting) + sum(air) + 1e-6)
    return tokens / (arrival_s + A100.c + work)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), ues=st.integers(1, 4))
def test_multi_spin_windows_and_bandwidth_for_heterogeneous_ues(seed: int, ues: int) -> None:
    """Multi-SPIN's offline problem, as read in the module: within 1 % of the best of all window combinations."""
    rng = np.random.default_rng(seed)
    cell = CellState(
        [
            UeState(
                rate_bps=float(10 ** rng.uniform(6, 7.7)), draft_s=float(rng.uniform(0.003, 0.04)),
                link_s=float(rng.uniform(0, 0.02)), modes=modes(float(rng.uniform(0.4, 0.95)))[1:2], windows=(1, 6),
            )
            for _ in range(ues)
        ],
        A100,
    )  # fmt: skip
    best = max(goodput(cell, windows) for windows in itertools.product(range(1, 7), repeat=ues))
    plan = plan_together(cell, OBJECTIVES["goodput"])
    assert plan.value == pytest.approx(goodput(cell, tuple(plan.windows.tolist())), rel=1e-6)
    assert plan.value >= 0.99 * best
    same = plan_together(cell, OBJECTIVES["goodput"], same=True)
    assert same.value == pytest.approx(max(goodput(cell, (k,) * ues) for k in range(1, 7)), rel=1e-6)
    assert len(set(same.windows.tolist())) == 1 and same.value <= plan.value + 1e-9


def test_higher_acceptance_is_rewarded_and_weak_channels_are_compensated() -> None:
    """What the abstract of Multi-SPIN says of both cases."""
    apt, poor = (UeState(4e7, 0.003, 0.03, modes(alpha)[1:2], windows=(1, 10)) for alpha in (0.95, 0.5))
    plan = plan_together(CellState((apt, poor), A100), OBJECTIVES["goodput"])
    assert plan.windows[0] > plan.windows[1] and plan.shares[0] > plan.shares[1]
    near, far = (UeState(rate, 0.01, modes=modes(0.8)[1:2], windows=(1, 10)) for rate in (2e7, 5e6))
    same = plan_together(CellState((near, far), A100), OBJECTIVES["goodput"], same=True)
    assert same.shares[1] > same.shares[0]
    assert math.isfinite(same.round_s)
