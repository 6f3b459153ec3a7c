"""Measures links shaped by netem; runs in a guest and prints the results as one JSON document."""

from __future__ import annotations

import ctypes
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from testbed.channel.tc.commands import root_qdisc
from testbed.channel.tc.execute import has
from testbed.channel.tc.links import Egress, Namespaces
from testbed.channel.tc.shape import Duplex, LinkShape

CLONE_NEWNET = 0x40000000
SO_RCVBUFFORCE = 33
PACKETS = 10_000


def ping(links: Namespaces, count: int) -> list[float]:
    """RTTs reported by ping [ms], sorted."""
    command = [*links.prefix(0), "ping", "-n", "-i", "0.02", "-c", str(count), links.host_address(0)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    return sorted(map(float, re.findall(r"time=([\d.]+) ms", said)))


def goodput_mbps(links: Namespaces) -> float:
    """TCP uplink goodput reported by iperf3, without the first second."""
    address = links.host_address(0)
    client = [*links.prefix(0), "iperf3", "-c", address, "-J", "-O", "1", "-t", "2", "-C", "cubic"]
    with subprocess.Popen(["iperf3", "-s", "-B", address], stdout=subprocess.DEVNULL) as server:
        try:
            for _ in range(50):  # until it listens
                document = json.loads(subprocess.run(client, capture_output=True, timeout=30, check=False).stdout)
                if "error" not in document:
                    break
                time.sleep(0.1)
        finally:
            server.kill()
    return float(document["end"]["sum_received"]["bits_per_second"]) / 1e6


@contextmanager
def datagrams(links: Namespaces) -> Iterator[tuple[Callable[[int], None], Callable[[], list[int]]]]:
    """A sender of numbered UDP packets in the first UE's namespace, and a receiver of their numbers on the host."""
    libc, receiver = ctypes.CDLL(None, use_errno=True), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 * 2**20)
    receiver.bind((links.host_address(0), 0))
    receiver.settimeout(1.0)
    with open("/proc/self/ns/net") as home, open(f"/run/netns/{links.pairs[0].namespace}") as away:
        assert libc.setns(away.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        assert libc.setns(home.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    sender.connect(receiver.getsockname())

    def send(count: int) -> None:
        for number in range(count):
            sender.send(number.to_bytes(4, "big"))

    def receive() -> list[int]:
        numbers = []
        try:
            while True:
                numbers.append(int.from_bytes(receiver.recv(64), "big"))
        except TimeoutError:
            return numbers

    with sender, receiver:
        yield send, receive


def qdisc(links: Namespaces) -> dict[str, Any]:
    """The first UE's uplink qdisc, with its counters."""
    command = [*links.prefix(0), "tc", "-s", "-j", "qdisc", "show", "dev", links.pairs[0].ue_interface]
    found = root_qdisc(subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout)
    assert found
    return found


def losses(links: Namespaces, uplink: LinkShape) -> dict[str, Any]:
    """Which of `PACKETS` were lost: by the qdisc's counters, and by the numbers that did not arrive."""
    links.reshape(0, Duplex(uplink, LinkShape()))
    before = qdisc(links)
    with datagrams(links) as (send, receive):
        send(PACKETS)
        there = set(receive())
    after = qdisc(links)
    bursts = [len(list(run)) for lost, run in groupby(range(PACKETS), lambda number: number not in there) if lost]
    return {
        "dropped": after["drops"] - before["drops"],
        "passed": after["packets"] - before["packets"],
        "missing": PACKETS - len(there),
        "bursts": bursts,
    }


def measure() -> dict[str, Any]:
    """Run all measurements."""
    seen: dict[str, Any] = {"has": {kind: has(kind) for kind in ("netem", "tbf", "htb")}}
    with Namespaces([Duplex.of(rtt_ms=50), Duplex.of(rtt_ms=4)]) as links:
        seen["kind"] = links.kind
        seen["delay"] = ping(links, 40)
        rich = Duplex.of(20, 20, 30, 0.01, 0.02, jitter_ms=3, correlation=0.25)
        links.reshape(0, rich)
        seen["rich"] = qdisc(links)["options"]
        links.reshape(0, Duplex.of(rtt_ms=10))
        seen["bare"] = qdisc(links)["options"]
        seen["changed"] = ping(links, 40)
        links.reshape(0, Duplex(LinkShape(delay_ms=25, jitter_ms=10), LinkShape()))
        seen["jitter"] = ping(links, 150)
        links.reshape(0, Duplex.of(20, 20))
        seen["goodput_mbps"] = goodput_mbps(links)
        seen["loss"] = losses(links, LinkShape(loss=0.05))
        seen["gilbert"] = losses(links, LinkShape(gilbert=(0.02, 0.2)))
        links.reshape(0, Duplex.of(rtt_ms=1000))
        with datagrams(links) as (send, receive):
            send(100)
            links.reshape(0, Duplex.of(rtt_ms=20))
            seen["kept"] = len(receive())
    with Namespaces([Duplex()]) as links:
        host = links.pairs[0].host_interface
        subprocess.run(["tc", "qdisc", "del", "dev", host, "root"], timeout=10, check=True)
        with Egress(host, LinkShape(50, delay_ms=15), [links.ue_address(0)]) as egress:
            seen["leaf"] = ping(links, 20)
            egress.reshape(LinkShape(50, delay_ms=40))
            seen["leaf_changed"] = ping(links, 20)
    seen["left"] = sorted(os.listdir("/run/testbed")), sorted(os.listdir("/sys/class/net")), os.listdir("/run/netns")
    return seen


if __name__ == "__main__":
    print(json.dumps(measure()))
