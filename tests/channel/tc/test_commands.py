"""Command lines of an emulation by tc, refusals, and parsers of the programs' output."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.channel.tc import commands
from testbed.channel.tc.offloads import most_segments, offload, offloads_on, segments, single_frames
from testbed.channel.tc.pair import MOST_PAIRS, NamespacePair, create_pair, delete_pair
from testbed.channel.tc.shape import LinkShape
from testbed.errors import BadInput, TestbedError
from tests.support.refusals import refuse

UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6}
"""Units of rates in tc(8)."""


def line(lines: list[list[str]]) -> str:
    return "\n".join(map(shlex.join, lines))


def number_after(command: list[str], word: str, pattern: str, place: int = 1) -> re.Match[str]:
    match = re.fullmatch(pattern, command[command.index(word) + place])
    assert match
    return match


@st.composite
def shapes(draw: st.DrawFn) -> LinkShape:
    delay_ms = draw(st.floats(0, 1000))
    jitter_ms = draw(st.floats(0, delay_ms))
    gilbert = draw(st.none() | st.tuples(st.floats(1e-4, 1), st.floats(1e-4, 1)))
    return LinkShape(
        rate_mbps=draw(st.none() | st.floats(0.001, 1e5)),
        delay_ms=delay_ms,
        jitter_ms=jitter_ms,
        correlation=draw(st.floats(0, 0.99)) if jitter_ms else 0,
        loss=0 if gilbert else draw(st.floats(0, 1)),
        gilbert=gilbert,
        queue_ms=draw(st.floats(1, 1000)),
    )


# ---------------------------------------------------------------- command lines


def test_netem() -> None:
    assert line(commands.netem("eth1", LinkShape(20, 25, 2.5, 0.25, 0.015))) == (
        "tc qdisc add dev eth1 root handle 1: "
        "netem limit 211 delay 25ms 2.5ms 25% loss random 1.5% rate 20mbit"
    )  # fmt: skip
    assert line(commands.netem("tb0u", LinkShape(gilbert=(0.01, 0.2)), "tb0", "change")) == (
        "tc -n tb0 qdisc change dev tb0u root handle 1: "
        "netem limit 82563 delay 0ms 0ms 0% loss gemodel 1% 20% rate 0bit"
    )  # fmt: skip


def test_tbf_holds_two_frames_or_a_millisecond_and_queues_by_time() -> None:
    assert line(commands.tbf("eth1", LinkShape(100))) == (
        "tc qdisc add dev eth1 root handle 1: tbf rate 100mbit burst 12500 limit 1262500"
    )
    assert line(commands.tbf("eth1", LinkShape(0.0125), mtu=9000)) == (
        "tc qdisc add dev eth1 root handle 1: tbf rate 12500bit burst 18028 limit 108168"
    )


def test_htb_has_a_class_a_queue_and_a_filter_for_each_destination() -> None:
    assert line(commands.htb("eth1", {"10.0.0.2": LinkShape(10), "10.0.0.3": LinkShape(30)})).splitlines() == [
        "tc qdisc add dev eth1 root handle 1: htb",
        "tc class add dev eth1 parent 1: classid 1:1 htb rate 10mbit burst 3028 cburst 3028 quantum 1514",
        "tc qdisc add dev eth1 parent 1:1 handle 10: bfifo limit 125000",
        "tc filter add dev eth1 parent 1: protocol ip prio 1 u32 match ip dst 10.0.0.2/32 flowid 1:1",
        "tc class add dev eth1 parent 1: classid 1:2 htb rate 30mbit burst 3750 cburst 3750 quantum 1514",
        "tc qdisc add dev eth1 parent 1:2 handle 11: bfifo limit 375000",
        "tc filter add dev eth1 parent 1: protocol ip prio 1 u32 match ip dst 10.0.0.3/32 flowid 1:2",
    ]


def test_htb_changes_classes_and_queues_only() -> None:
    assert line(commands.htb("eth1", {"10.0.0.2": LinkShape(10, 20)}, "netem", verb="change")).splitlines() == [
        "tc class change dev eth1 parent 1: classid 1:1 htb rate 10mbit burst 3028 cburst 3028 quantum 1514",
        "tc qdisc change dev eth1 parent 1:1 handle 10: netem limit 100 delay 20ms 0ms 0% loss random 0% rate 0bit",
    ]


def test_pairs() -> None:
    assert line(create_pair(300)).splitlines() == [
        "ip netns add tb300",
        "ip link add name tb300h address 02:7b:00:00:01:2c type veth "
        "peer name tb300u address 02:7b:01:00:01:2c netns tb300",
        "ip address add 10.200.4.177/30 dev tb300h",
        "ip -n tb300 address add 10.200.4.178/30 dev tb300u",
        "ip link set dev tb300h up",
        "ip -n tb300 link set dev lo up",
        "ip -n tb300 link set dev tb300u up",
        "ip neighbour replace 10.200.4.178 lladdr 02:7b:01:00:01:2c dev tb300h",
        "ip -n tb300 neighbour replace 10.200.4.177 lladdr 02:7b:00:00:01:2c dev tb300u",
        "ip -n tb300 route add default via 10.200.4.177",
    ]
    assert line(delete_pair(300)).splitlines() == ["ip link delete dev tb300h", "ip netns delete tb300"]


@given(st.sets(st.integers(0, MOST_PAIRS - 1), min_size=2, max_size=50))
def test_no_two_pairs_share_anything(indices: set[int]) -> None:
    pairs = [NamespacePair(index) for index in indices]
    names = [getattr(pair, name) for pair in pairs for name in ("namespace", "ue_interface", "host_interface")]
    addresses = [getattr(pair, name) for pair in pairs for name in ("ue_address", "host_address")]
    macs = [pair.mac(end) for pair in pairs for end in ("host", "ue")]
    for values in (names, addresses, macs):
        assert len(set(values)) == len(values)
    assert all(len(name) <= 15 for name in names)
    assert all(address.startswith("10.200.") for address in addresses)


def test_clear_and_offloads() -> None:
    assert line(commands.clear("eth1")) == "tc qdisc del dev eth1 root"
    assert line(offload("tb0u", namespace="tb0")) == "ip netns exec tb0 ethtool -K tb0u tso off gso off gro off"
    assert line(offload("eth1", ["tso", "gro"], on=True)) == "ethtool -K eth1 tso on gro on"
    assert offload("eth1", []) == []
    frames = single_frames("tb0u", "tb0")
    assert frames[:-1] == offload("tb0u", namespace="tb0")
    assert line(frames[-1:]) == "ip -n tb0 link set dev tb0u gso_max_segs 1"
    assert line([segments("eth1", 65535)]) == "ip link set dev eth1 gso_max_segs 65535"


@given(shapes())
def test_netem_says_what_the_shape_is(shape: LinkShape) -> None:
    (command,) = commands.netem("eth1", shape)
    assert {type(word) for word in command} == {str} and "" not in command
    for place, value in ((1, shape.delay_ms), (2, shape.jitter_ms)):
        assert float(number_after(command, "delay", r"([\d.]+)ms", place)[1]) == pytest.approx(value, abs=6e-4)
    assert float(number_after(command, "delay", r"([\d.]+)%", 3)[1]) == pytest.approx(100 * shape.correlation, abs=1e-5)
    chances = shape.gilbert or (shape.loss,)
    assert command[command.index("loss") + 1] == ("gemodel" if shape.gilbert else "random")
    for place, chance in enumerate(chances, 2):
        assert float(number_after(command, "loss", r"([\d.]+)%", place)[1]) == pytest.approx(100 * chance, abs=1e-5)
    rate = number_after(command, "rate", r"(\d+)([a-z]+)")
    assert int(rate[1]) * UNITS[rate[2]] == pytest.approx((shape.rate_mbps or 0) * 1e6, abs=1)


@given(shapes(), st.integers(576, 65_536))
def test_buckets_hold_a_frame_and_more_queue_than_bucket(shape: LinkShape, mtu: int) -> None:
    plain = LinkShape(shape.rate_mbps or 1, queue_ms=shape.queue_ms)
    (command,) = commands.tbf("eth1", plain, mtu=mtu)
    burst, limit = (int(number_after(command, word, r"(\d+)")[0]) for word in ("burst", "limit"))
    assert mtu < burst < limit
    (_, limited, _, _) = commands.htb("eth1", {"10.0.0.2": plain}, mtu=mtu)
    assert {type(word) for word in limited} == {str}
    assert int(number_after(limited, "burst", r"(\d+)")[0]) == burst


@given(shapes())
def test_tbf_refuses_what_only_netem_does(shape: LinkShape) -> None:
    if shape.plain:
        return
    refuse(lambda: commands.tbf("eth1", shape), BadInput, "netem")
    refuse(lambda: commands.htb("eth1", {"10.0.0.2": dataclasses.replace(shape, rate_mbps=1)}), BadInput, "netem")


def test_under_tbf_an_unlimited_link_has_no_qdisc() -> None:
    free, slow = LinkShape(), LinkShape(5)
    words = {(free, free): "", (free, slow): "add", (slow, LinkShape(6)): "change", (slow, free): "del"}
    for (before, after), verb in words.items():
        changes = commands.reshaped("eth1", before, after, "tbf")
        assert [command[2] for command in changes] == ([verb] if verb else [])
    assert [command[2] for command in commands.reshaped("eth1", free, free, "netem")] == ["change"]


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"rate_mbps": 0}, "rate"), ({"rate_mbps": -1}, "rate"), ({"rate_mbps": float("nan")}, "rate"),
        ({"rate_mbps": 1e6}, "rate"), ({"delay_ms": -1}, "delay_ms"), ({"delay_ms": float("inf")}, "delay_ms"),
        ({"delay_ms": float("nan")}, "delay_ms"), ({"jitter_ms": 2, "delay_ms": 1}, "jitter"),
        ({"jitter_ms": -1}, "jitter_ms"), ({"correlation": 0.5}, "jitter_ms"),
        ({"correlation": 1, "jitter_ms": 1, "delay_ms": 1}, "correlation"), ({"loss": 1.1}, "loss"),
        ({"loss": -0.1}, "loss"), ({"loss": float("nan")}, "loss"), ({"gilbert": (0, 0.5)}, "gilbert"),
        ({"gilbert": (0.5, 2)}, "gilbert"), ({"gilbert": (0.1, 0.5), "loss": 0.1}, "not both"),
        ({"queue_ms": 0}, "queue_ms"),
    ],
)  # fmt: skip
def test_a_shape_refuses_nonsense(values: dict[str, float], word: str) -> None:
    refuse(lambda: LinkShape(**values), BadInput, word)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "eth0; reboot", "-eth0", "a" * 16, "eth 0", "../x", "eth0\n"])
def test_interfaces_that_are_none(name: str) -> None:
    for build in (
        lambda: commands.netem(name, LinkShape(5)),
        lambda: commands.clear(name),
        lambda: offload(name),
    ):
        refuse(build, BadInput, "ip link")


@pytest.mark.parametrize(
    ("destinations", "word"),
    [
        ({}, "destinations"), ({"edge": LinkShape(5)}, "IPv4"), ({"10.0.0.0/24": LinkShape(5)}, "IPv4"),
        ({"::1": LinkShape(5)}, "IPv4"), ({"10.0.0.2": LinkShape()}, "10.0.0.2"),
    ],
)  # fmt: skip
def test_destinations_that_are_none(destinations: dict[str, LinkShape], word: str) -> None:
    refuse(lambda: commands.htb("eth1", destinations), BadInput, word)


@pytest.mark.parametrize("index", [-1, MOST_PAIRS])
def test_pairs_beyond_the_network(index: int) -> None:
    refuse(lambda: NamespacePair(index), BadInput, str(index))


# ---------------------------------------------------------------- what programs print


def test_default_routes() -> None:
    routes = [
        {"dst": "default", "gateway": "192.0.2.1", "dev": "eth0", "flags": []},
        {"dst": "192.0.2.0/24", "dev": "wlan0"},
        {"type": "unreachable", "dst": "default", "dev": "lo"},
        {"dst": "default", "nexthops": [{"gateway": "198.51.100.1", "dev": "ppp0", "weight": 1}, {"dev": "ppp1"}]},
    ]
    assert commands.default_interfaces(json.dumps(routes)) == {"eth0", "ppp0", "ppp1"}
    assert commands.default_interfaces("[]") == commands.default_interfaces("") == set()
    refuse(lambda: commands.default_interfaces("default via 192.0.2.1 dev eth0"), TestbedError, "ip -j route")


def test_root_qdiscs() -> None:
    ours = '[{"kind":"tbf","handle":"1:","dev":"e","root":true,"drops":3},{"kind":"bfifo","parent":"1:1"}]'
    found = commands.root_qdisc(ours)
    assert found is not None and found["drops"] == 3 and not commands.is_default(found)
    assert commands.is_default(commands.root_qdisc('[{"kind":"mq","handle":"0:","dev":"e","root":true}]'))
    assert commands.is_default(commands.root_qdisc("[{}]"))


def test_offloads_that_are_on() -> None:
    said = (
        "Features for e:\ntcp-segmentation-offload: on\n\ttx-tcp-segmentation: on\n"
        "generic-segmentation-offload: off\ngeneric-receive-offload: on [fixed]\n"
    )
    assert offloads_on(said) == ["tso"]


def test_segments_per_packet() -> None:
    assert most_segments('[{"ifname": "eth1", "gso_max_segs": 64}]') == 64
    assert most_segments('[{"ifname": "eth1"}]') is None and most_segments("") is None
    refuse(lambda: most_segments("Device does not exist"), TestbedError, "ip -d -j link")
