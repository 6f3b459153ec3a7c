"""Channel specifications: parsing, validation, and the link that they describe."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.channel.spec import ChannelSpec, channel_text, parse_channel, schedules, tc_config
from testbed.errors import BadInput
from tests.support.refusals import refuse


def test_the_documented_forms() -> None:
    assert parse_channel("kind=none") == ChannelSpec()
    proxy = parse_channel("kind=proxy, uplink_mbps=20, downlink_mbps=30, rtt_ms=50, per=0")
    assert (proxy.uplink_mbps, proxy.downlink_mbps, proxy.rtt_ms, proxy.is_proxied) == (20.0, 30.0, 50.0, True)
    assert parse_channel("kind=virtual,profile=wisv").is_virtual
    assert parse_channel("kind=trace,file=walk").is_proxied
    assert parse_channel("kind=trace,file=walk,via=virtual").is_virtual
    assert parse_channel("kind=tc,uplink_mbps=5").kind == "tc"


@given(
    st.builds(
        ChannelSpec,
        kind=st.sampled_from(["proxy", "virtual", "tc"]),
        uplink_mbps=st.none() | st.floats(0.001, 1e5),
        downlink_mbps=st.none() | st.floats(0.001, 1e5),
        rtt_ms=st.floats(0, 1e4),
        jitter_ms=st.floats(0, 100),
        per=st.floats(0, 0.99),
        per_up=st.none() | st.floats(0, 0.99),
        seed=st.integers(0, 1000),
    )
)
def test_text_reads_back_as_it_was(spec: ChannelSpec) -> None:
    assert parse_channel(channel_text(spec)) == spec


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind=telepathy", "known: none, proxy, virtual, tc, trace"),
        ("kind=proxy,colour=red", "with the keys kind, uplink_mbps"),
        ("proxy", "use key=value"),
        ("kind=proxy,rtt_ms=1,rtt_ms=2", "given twice"),
        ("kind=proxy,rtt_ms=soon", "rtt_ms"),
        ("kind=proxy,rtt_ms=-1", "rtt_ms must be finite and not negative"),
        ("kind=proxy,uplink_mbps=0", "leave it out for no limit"),
        ("kind=proxy,per=1", "[0, 1)"),
        ("kind=proxy,per_down=nan", "[0, 1)"),
        ("kind=none,rtt_ms=5", "kind=none takes no rtt_ms"),
        ("kind=trace", "needs file="),
        ("kind=proxy,file=walk", "needs file="),
        ("kind=trace,file=walk,uplink_mbps=5", "kind=trace takes no uplink_mbps"),
        ("kind=proxy,profile=wisv", "virtual time"),
        ("kind=proxy,outage_s=1", "outage_every_s"),
        ("kind=proxy,outage_s=2,outage_every_s=1", "outage_every_s"),
    ],
)
def test_what_is_no_link(text: str, words: str) -> None:
    refuse(lambda: parse_channel(text), BadInput, words)


def test_a_constant_link_by_direction() -> None:
    up, down = schedules(parse_channel("kind=proxy,uplink_mbps=20,rtt_ms=50,per=0.1,per_down=0.2"), stack_s=0.001)
    assert (up.rate_mbps, up.per, down.rate_mbps, down.per) == ([20.0], [0.1], [math.inf], [0.2])
    assert [*up.delay_s, *down.delay_s] == pytest.approx([0.026, 0.026])


def test_outages_come_at_the_end_of_each_period() -> None:
    up, down = schedules(parse_channel("kind=proxy,uplink_mbps=8,outage_every_s=10,outage_s=2"))
    assert [up.rate_mbps[up.piece(t)[0]] for t in (0, 7.9, 8.1, 9.9, 10.1, 18.5)] == [8.0, 8.0, 0.0, 0.0, 8.0, 0.0]
    assert down.rate_mbps == [math.inf, 0.0]


def test_a_trace_by_direction() -> None:
    spec = parse_channel("kind=trace,file=drive")
    trace = spec.trace()
    assert trace is not None
    up, down = schedules(spec)
    for t in (0.0, 3.3, trace.duration_s + 3.3):
        index, _ = up.piece(t)
        assert index == trace.index(t)
        assert (up.rate_mbps[index], down.rate_mbps[index]) == (trace.uplink_mbps[index], trace.downlink_mbps[index])
        assert up.delay_s[index] == pytest.approx(trace.rtt_ms[index] / 2e3)


def test_each_ue_has_errors_of_its_own_that_repeat() -> None:
    spec = parse_channel("kind=virtual,uplink_mbps=1,downlink_mbps=1,per=0.3")

    def ends(index: int, way: int) -> list[float]:
        direction = spec.path(index)[way]
        return [direction.admit(0.0, 15_000) for _ in range(20)]

    assert ends(0, 0) == ends(0, 0)
    assert len({tuple(ends(i, way)) for i in (0, 1) for way in (0, 1)}) == 4


def test_tc_takes_what_it_can_do() -> None:
    config = tc_config(parse_channel("kind=tc,uplink_mbps=20,rtt_ms=50,per_up=0.01"), namespaces=1)
    assert (config.uplink_mbps, config.downlink_mbps, config.rtt_ms, config.per_up) == (20.0, None, 50.0, 0.01)
    refuse(lambda: tc_config(parse_channel("kind=tc,outage_s=1,outage_every_s=5"), namespaces=1), BadInput, "outages")
