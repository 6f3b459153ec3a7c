"""Measuring a link: an emulated link with known parameters, and messages if something is missing."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.channel.csi import Csi
from testbed.channel.measuring.iperf3 import Throughput
from testbed.channel.measuring.offset import clock_offset
from testbed.channel.measuring.probe import Estimate
from testbed.channel.measuring.wifi import WifiState, WifiStation
from testbed.channel.server_link import ZmqServerLink
from testbed.channel.spec import ChannelSpec
from testbed.clock import within
from testbed.config import ServeConfig
from testbed.errors import BadInput, LinkError, LinkTimeout
from testbed.experiments.links import measure as module
from testbed.experiments.links.measure import handshakes, measure
from testbed.experiments.runs import processes
from testbed.protocols.codec import encode
from testbed.protocols.messages import Busy, Pong
from testbed.tasks import cancel
from tests.support.refusals import refuse
from tests.support.stations import station

LINK = ChannelSpec(kind="proxy", uplink_mbps=20.0, downlink_mbps=40.0, rtt_ms=30.0)
DEAD = "tcp://127.0.0.1:1"


@pytest.fixture(scope="module")
def bs() -> Iterator[str]:
    """A base station behind the emulated link."""
    with (
        processes.base_station(ServeConfig(engine="synthetic", bind="tcp://127.0.0.1:*")) as ready,
        processes.proxy(LINK, ready["bind"]) as link,
    ):
        yield link["listen"]


@contextlib.contextmanager
def iperf3_server() -> Iterator[str]:
    """A real iperf3 server behind the same link."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    process = subprocess.Popen(
        ["iperf3", "--server", "--port", port, "--forceflush"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout
    try:
        assert any(b"listening" in line for line in process.stdout)
        with processes.proxy(LINK, f"tcp://127.0.0.1:{port}") as link:
            yield link["listen"].removeprefix("tcp://")
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


@pytest.mark.skipif(shutil.which("iperf3") is None, reason="iperf3 is not installed")
def test_a_known_link_is_found(bs: str) -> None:
    said: list[str] = []
    with iperf3_server() as server:
        document = measure(bs, server, seconds=2, count=20, say=said.append)
    assert 30.0 <= document["rtt_ms"]["least"] <= document["rtt_ms"]["value"] < 60.0
    assert document["rtt_ms"]["low"] <= document["rtt_ms"]["value"] <= document["rtt_ms"]["high"]
    assert document["rtt_ms"]["n"] == 20
    assert document["uplink_mbps"]["value"] == pytest.approx(20.0, rel=0.1)
    assert document["downlink_mbps"]["value"] == pytest.approx(40.0, rel=0.1)
    csi = Csi(**document["csi"])
    assert csi.source == "probe"
    assert csi.rtt_ms == document["rtt_ms"]["value"]
    # with its losses taken off, the state comes to the goodput
    assert csi.uplink_mbps * (1 - csi.per_up) == pytest.approx(document["uplink_mbps"]["value"])
    assert csi.downlink_mbps * (1 - csi.per_down) == pytest.approx(document["downlink_mbps"]["value"])
    assert [line.split(":")[0] for line in said[1:]] == ["uplink", "downlink"]
    assert said[0] == f"20 handshakes with {bs}"


def test_without_a_server_the_rates_are_open(bs: str) -> None:
    document = measure(bs, count=3)
    assert set(document["csi"]) >= {"rtt_ms", "source"}
    assert not {"uplink_mbps", "downlink_mbps", "per_up", "per_down"} & set(document["csi"])
    assert document["rtt_ms"]["low"] is None
    assert document["uplink_mbps"] is document["downlink_mbps"] is None
    assert any("rates were not measured" in note for note in document["notes"])
    assert any("too few for a confidence interval" in note for note in document["notes"])


def test_a_server_that_is_not_there_is_one_line(bs: str) -> None:
    if shutil.which("iperf3") is None:
        pytest.skip("iperf3 is not installed")
    refuse(lambda: measure(bs, "127.0.0.1:1", seconds=1, count=1), LinkError, "no iperf3 server answers at 127.0.0.1:1")


def test_nobody_there_is_one_line() -> None:
    refuse(lambda: measure(DEAD, timeout_s=0.2), LinkTimeout, DEAD, "within 0.2 s", "is the address right?")


def test_bad_arguments_are_found_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refuse(lambda: measure("localhost"), BadInput, "tcp://HOST:PORT")
    refuse(lambda: measure(DEAD, count=0), BadInput, "count must be at least 1")
    refuse(lambda: measure(DEAD, "a b"), BadInput, "bad iperf3 server")
    refuse(lambda: measure(DEAD, "192.0.2.7", seconds=0), BadInput, "at least 1 second")
    refuse(lambda: measure(DEAD, interface="wlan77"), BadInput, "no Wi-Fi interface 'wlan77'")
    monkeypatch.setenv("PATH", str(tmp_path))
    refuse(lambda: measure(DEAD, "192.0.2.7"), BadInput, "iperf3 is not installed")


async def test_handshakes_need_no_greeting() -> None:
    async with station() as (_, address):
        found = await handshakes(address, 5, 10.0)
    assert len(found) == 5
    assert all(0 < one.seconds < 5 for one in found)
    here = clock_offset(found)  # one machine, one clock
    assert abs(here.offset_s) <= here.error_s


async def test_only_the_answer_to_the_same_handshake_counts() -> None:
    """A BS that first sends other messages: garbage, one for a session, the Pong of the previous handshake."""
    link = ZmqServerLink("tcp://127.0.0.1:*")

    async def serve() -> None:
        for token in range(3):
            peer, _ = await link.recv()
            for frames in ([b"\xff"], encode(Busy(session=1, reason="", retry_s=1.0)), encode(Pong(token=token - 1))):
                await link.send(peer, frames)
            await asyncio.sleep(0.05)
            await link.send(peer, encode(Pong(token=token)))

    serving = asyncio.create_task(serve())
    try:
        found = await handshakes(link.addresses[0], 2, 10.0)
        assert all(one.seconds >= 0.05 for one in found)
        await serving
    finally:
        serving.cancel()
        link.close()


@pytest.mark.parametrize("answer", [Pong(token=-1), Pong(token=0, time_s=1e308)])
async def test_messages_that_never_cease_or_are_out_of_range_are_no_answer(answer: Pong) -> None:
    """The wait lasted as long as there was always another message."""
    link = ZmqServerLink("tcp://127.0.0.1:*")

    async def flood() -> None:
        peer, _ = await link.recv()
        while True:
            for _ in range(50):
                await link.send(peer, encode(answer))
            await asyncio.sleep(0)

    flooding = asyncio.create_task(flood())
    try:
        began_s = time.monotonic()
        with pytest.raises(LinkTimeout, match=r"did not answer within 0\.5 s"):
            await within(20.0, handshakes(link.addresses[0], 1, 0.5))
        assert time.monotonic() - began_s < 10
    finally:
        await cancel(flooding)
        link.close()


def wifi_state(packets: int, retries: int) -> WifiState:
    station = WifiStation(
        address="02:00:00:00:00:01", rssi_dbm=-60.0, tx_packets=packets, tx_retries=retries, tx_failed=0
    )
    return WifiState(interface="wlan0", station=station, noise_dbm=-95.0)


def test_wifi_is_read_around_the_transfers(bs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    states = iter([wifi_state(1000, 900), wifi_state(1090, 910)])
    rate = Throughput(Estimate(9.0, 8.0, 10.0, 5), None, 1000, None, 5.0)
    monkeypatch.setattr(module, "read_wifi", lambda interface: next(states))
    monkeypatch.setattr(module, "run_iperf3", lambda *arguments, **options: rate)
    monkeypatch.setattr(module.shutil, "which", lambda name: name)
    document: dict[str, Any] = measure(bs, "192.0.2.7", count=6)
    assert document["wifi"]["frame_error_rate"] == pytest.approx(10 / 100)  # of the transfers alone
    assert document["wifi"]["station"]["rssi_dbm"] == -60.0
    assert (document["csi"]["snr_db"], document["csi"]["rssi_dbm"]) == (35.0, -60.0)
    assert document["csi"]["uplink_mbps"] == 9.0
    assert "per_up" not in document["csi"]
    assert document["notes"] == [
        "iperf3 reported no retransmissions of packets for one direction, so its loss is unknown"
    ]
