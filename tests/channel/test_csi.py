"""Channel state: what can be a link's state and what cannot."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.channel.csi import Csi
from testbed.errors import BadInput

GOOD = {"uplink_mbps": 20.0, "downlink_mbps": 40.0, "rtt_ms": 50.0, "per_up": 0.01, "per_down": 0.0}


def test_packet_errors_default_to_none() -> None:
    csi = Csi(20.0, 40.0, 50.0)
    assert (csi.uplink_mbps, csi.downlink_mbps, csi.rtt_ms, csi.per_up, csi.per_down) == (20.0, 40.0, 50.0, 0.0, 0.0)


@pytest.mark.parametrize("name", ["uplink_mbps", "downlink_mbps", "rtt_ms"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, -math.inf, math.nan])
def test_rates_and_rtt_are_positive_and_finite(name: str, value: float) -> None:
    with pytest.raises(BadInput, match=f"{name} must be positive and finite"):
        Csi(**{**GOOD, name: value})


@pytest.mark.parametrize("name", ["per_up", "per_down"])
@pytest.mark.parametrize("value", [1.0, 1.5, -0.01, math.nan, math.inf])
def test_packet_error_rates_lie_in_the_half_open_unit_interval(name: str, value: float) -> None:
    with pytest.raises(BadInput, match=rf"{name} must lie in \[0, 1\)"):
        Csi(**{**GOOD, name: value})


@given(
    rates=st.tuples(*[st.floats(min_value=0, exclude_min=True, allow_infinity=False)] * 3),
    shares=st.tuples(*[st.floats(0, 1, exclude_max=True)] * 2),
)
def test_everything_else_is_taken(rates: tuple[float, float, float], shares: tuple[float, float]) -> None:
    csi = Csi(*rates, *shares)
    assert (csi.uplink_mbps, csi.downlink_mbps, csi.rtt_ms) == rates
    assert (csi.per_up, csi.per_down) == shares
