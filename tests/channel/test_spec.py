"""Channel specifications: parsing, validation, and the link that they describe."""

from __future__ import annotations

import math

import numpy as np
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
        rtt_ms=st.floats(200, 1e4),
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
        ("kind=proxy,seed=-1", "seed must not be negative, not -1"),
        ("kind=proxy,rtt_ms=-1", "rtt_ms must be finite and not negative"),
        ("kind=virtual,rtt_ms=1e308", "rtt_ms must be at most 8.64e+07"),
        ("kind=proxy,uplink_mbps=0", "leave it out for no limit"),
        ("kind=proxy,per=1", "[0, 1)"),
        ("kind=proxy,per_down=nan", "[0, 1)"),
        ("kind=none,rtt_ms=5", "kind=none takes no rtt_ms"),
        ("kind=none,jitter_ms=5", "kind=none takes no jitter_ms"),
        ("kind=trace,file=walk,jitter_ms=5", "kind=trace takes no jitter_ms"),
        ("kind=virtual,rtt_ms=8,jitter_ms=5", "jitter_ms=5 needs an rtt_ms of at least 10"),
        ("kind=tc,harq_rtt_ms=4", "kind=tc takes no harq_rtt_ms"),
        ("kind=proxy,harq_rtt_ms=50", "at least as long as a HARQ round trip, not 40 ms and 50 ms"),
        ("kind=proxy,harq_attempts=0", "at least 1 attempt"),
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


def test_packet_errors_delay_short_messages() -> None:
    """An id alone is too short for its rate to matter: p of the messages wait for a HARQ round trip."""
    late, plain = (parse_channel(f"kind=virtual,uplink_mbps=20,rtt_ms=20,per=0.1{more}").path(0)[0]
                   for more in ("", ",harq_rtt_ms=0"))  # fmt: skip
    took = np.array([[way.admit(float(i), 40) - i for i in range(4000)] for way in (late, plain)])
    assert (took[0] > 0.0175).mean() == pytest.approx(0.1, abs=0.025)
    assert took[1].max() < 0.0101


def test_jitter_means_the_same_to_tc() -> None:
    config = tc_config(parse_channel("kind=tc,uplink_mbps=20,rtt_ms=50,jitter_ms=5"), namespaces=1)
    assert (config.rtt_ms, config.jitter_ms) == (50.0, 5.0)  # netem: uniform in 25 ± 5 ms, each way


def test_tc_takes_what_it_can_do() -> None:
    config = tc_config(parse_channel("kind=tc,uplink_mbps=20,rtt_ms=50,per_up=0.01"), namespaces=1)
    assert (config.uplink_mbps, config.downlink_mbps, config.rtt_ms, config.per_up) == (20.0, None, 50.0, 0.01)
    refuse(lambda: tc_config(parse_channel("kind=tc,outage_s=1,outage_every_s=5"), namespaces=1), BadInput, "outages")
