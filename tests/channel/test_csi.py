"""Channel state: valid and invalid values, features, quality."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.channel.cost import Sizes, full_hidden, link_time
from testbed.channel.csi import FEATURES, Csi, QualityKind, quality
from testbed.errors import BadInput

GOOD = {"uplink_mbps": 20.0, "downlink_mbps": 40.0, "rtt_ms": 50.0, "per_up": 0.01, "per_down": 0.0}


def test_packet_errors_default_to_none() -> None:
    csi = Csi(20.0, 40.0, 50.0)
    assert (csi.uplink_mbps, csi.downlink_mbps, csi.rtt_ms, csi.per_up, csi.per_down) == (20.0, 40.0, 50.0, 0.0, 0.0)


@pytest.mark.parametrize("name", ["uplink_mbps", "downlink_mbps"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, -math.inf, math.nan])
def test_rates_are_positive_and_finite(name: str, value: float) -> None:
    with pytest.raises(BadInput, match=f"{name} must be positive and finite"):
        Csi(**{**GOOD, name: value})


@pytest.mark.parametrize("value", [-1.0, math.inf, -math.inf, math.nan])
def test_an_rtt_is_finite_and_not_negative(value: float) -> None:
    with pytest.raises(BadInput, match="rtt_ms must be finite and not negative"):
        Csi(**{**GOOD, "rtt_ms": value})


@pytest.mark.parametrize("name", ["snr_db", "rssi_dbm", "time_s"])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_powers_and_time_are_finite(name: str, value: float) -> None:
    with pytest.raises(BadInput, match=f"{name} must be finite"):
        Csi(**GOOD, **{name: value})


def test_a_source_is_one_that_is_known() -> None:
    with pytest.raises(BadInput, match="unknown source 'guess'; known: assumed, probe, passive, emulated, trace"):
        Csi(**GOOD, source="guess")


def test_features_are_logs_and_shares_in_their_stated_order() -> None:
    features = Csi(100.0, 1000.0, 10.0, 0.25, 0.5).features
    assert dict(zip(FEATURES, features.tolist(), strict=True)) == {
        "log10_uplink_mbps": 2.0, "log10_downlink_mbps": 3.0, "log10_rtt_ms": 1.0, "per_up": 0.25, "per_down": 0.5,
    }  # fmt: skip
    assert Csi(1.0, 1.0, 0.0).features[2] == -1.0


KINDS = ("goodput", "goodput-rtt")


@pytest.mark.parametrize("kind", KINDS)
def test_quality_is_one_where_a_round_costs_nothing_and_zero_where_nothing_passes(kind: QualityKind) -> None:
    assert quality(Csi(1000.0, 1000.0, 0.5), kind) == 1.0
    assert quality(Csi(0.5, 1000.0, 800.0), kind) == 0.0


@given(
    st.floats(0.01, 1e4), st.floats(0.01, 1e4), st.floats(0, 2e3), st.floats(0, 2e3), st.floats(0, 0.99),
    st.sampled_from(KINDS),
)  # fmt: skip
def test_quality_never_falls_as_a_link_gets_better(
    a: float, b: float, c: float, d: float, per: float, kind: QualityKind
) -> None:
    worse, better = Csi(min(a, b), 1.0, max(c, d), per_up=per), Csi(max(a, b), 1.0, min(c, d), per_up=per / 2)
    assert 0 <= quality(worse, kind) <= quality(better, kind) <= 1


@given(st.floats(1, 1e4), st.floats(0, 0.99), st.floats(0, 500), st.integers(1, 64), st.sampled_from(KINDS))
def test_packet_errors_cost_as_much_quality_as_time(
    rate: float, per: float, rtt: float, window: int, kind: QualityKind
) -> None:
    """By eqs. 6 and 10 a round takes as long at (R, p) as at (R·(1 − p), 0); so do both qualities."""
    lossy, slow = Csi(rate, rate, rtt, per, per), Csi(rate * (1 - per), rate * (1 - per), rtt)
    assert quality(lossy, kind) == pytest.approx(quality(slow, kind))
    sizes = Sizes(hidden_size=64)
    assert link_time(full_hidden(window, sizes), lossy).latency_s == pytest.approx(
        link_time(full_hidden(window, sizes), slow).latency_s
    )


def test_the_papers_quality_ignores_the_rtt() -> None:
    assert quality(Csi(20.0, 20.0, 5.0), "goodput") == quality(Csi(20.0, 20.0, 50.0), "goodput")
    assert quality(Csi(20.0, 20.0, 5.0), "goodput-rtt") > quality(Csi(20.0, 20.0, 50.0), "goodput-rtt")


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
