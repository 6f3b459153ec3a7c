"""Air interfaces from constants and traces."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.channel.radio.air import ConstantAir, TraceAir
from testbed.channel.trace import Trace


def test_a_trace_gives_its_rate_over_the_bandwidth_and_repeats() -> None:
    ones = np.ones(2)
    trace = Trace(np.array([0.0, 1.0]), np.array([40.0, 10.0]), np.array([80.0, 0.0]), ones, 0.1 * ones, 0 * ones, ones)
    air = TraceAir([trace], bandwidth_hz=20e6, bler=0.5)
    assert air.state(0, True, 0.5)[:2] == pytest.approx((2.0, 0.55))
    assert air.state(0, False, 0.5)[:2] == pytest.approx((4.0, 0.5))
    assert air.state(0, True, 1.5)[:2] == pytest.approx((0.5, 0.55))
    assert air.state(0, False, 1.5).bits_per_s_per_hz == 0
    assert air.state(0, True, 2.5) == air.state(0, True, 0.5)


def test_each_ue_has_its_own_efficiency() -> None:
    air = ConstantAir([1.0, 4.0], bler=0.1)
    assert air.state(1, False, 3.0)[:2] == (4.0, 0.1)


def test_ues_start_at_other_times_of_the_same_trace() -> None:
    ones = np.ones(2)
    trace = Trace(np.array([0.0, 1.0]), np.array([40.0, 10.0]), np.array([80.0, 20.0]), ones, 0 * ones, 0 * ones, ones)
    air = TraceAir([trace, trace], bandwidth_hz=20e6, starts_s=[0.0, 1.25])
    for t_s in (0.0, 0.5, 0.75, 1.5, 7.9):
        assert air.state(1, True, t_s) == air.state(0, True, t_s + 1.25)
    assert air.state(0, True, 0.0) != air.state(1, True, 0.0)
