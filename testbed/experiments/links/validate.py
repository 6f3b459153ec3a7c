"""Validates emulated links: compares configured with measured rates (iperf3) and round-trip times (echo)."""

from __future__ import annotations

import contextlib
import itertools
import math
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.channel.measuring.iperf3 import NO_IPERF3, run_iperf3
from testbed.channel.spec import ChannelSpec
from testbed.channel.tc.links import Namespaces
from testbed.channel.tc.shape import Duplex
from testbed.errors import BadInput, LinkError, TestbedError
from testbed.experiments.links.config import ValidateConfig
from testbed.experiments.runs.processes import proxy

ECHOES = 20
ECHO_BYTES = 1
"""Small enough that the rate does not affect the RTT."""
RATE_TOLERANCE = 0.05
RTT_TOLERANCE, RTT_TOLERANCE_MS = 0.05, 1.0
"""Relative and absolute tolerance of an RTT; the larger one applies."""
TC_PAYLOAD = 1448 / 1514
"""TCP payload per Ethernet frame: tc's rate includes headers, the relay's does not."""
START_S = 10.0
ECHO_CLIENT = """
import socket, sys, time
host, port, count, size = sys.argv[1], *map(int, sys.argv[2:])
with socket.create_connection((host, port), 10) as link:
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.settimeout(10)
    for _ in range(count):
        start = time.perf_counter()
        link.sendall(bytes(size))
        left = size
        while left:
            left -= len(link.recv(left)) or sys.exit("closed")
        print(time.perf_counter() - start)
"""
"""Runs as its own process, so that it can be started in a UE's network namespace."""


@dataclass(frozen=True)
class ServerAddresses:
    """Addresses of the iperf3 and echo servers behind a link, and the command prefix to run on the UE's side."""

    iperf3: tuple[str, int]
    echo: tuple[str, int]
    prefix: list[str]


def validate(config: ValidateConfig, progress: Callable[[int, int], None]) -> list[dict[str, Any]]:
    """Measure every grid point; returns one row each, with errors and whether they are within tolerance.

    The expected throughput at rate R is R·(1 − PER), since lost packets are retransmitted, and through tc the TCP
    payload's fraction of it. Rates must agree within `RATE_TOLERANCE`, RTTs within 5 % or 1 ms.

    Raises:
        BadInput: iperf3 is not installed, or the link cannot be emulated on this machine.
        TestbedError: a server or a transfer failed.
    """
    if shutil.which("iperf3") is None:
        raise BadInput(NO_IPERF3)
    grid = list(itertools.product(config.rates_mbps, config.rtts_ms, config.losses))
    rows = []
    for done, (rate, rtt_ms, per) in enumerate(grid):
        try:
            measured = _measure(config.link(rate, rtt_ms, per), config.seconds)
        except LinkError as exc:
            raise LinkError(f"{rate:g} Mbit/s, {rtt_ms:g} ms, PER {per:g}: {exc}") from exc
        rows.append(_row(config.via, rate, rtt_ms, per, measured))
        progress(done + 1, len(grid))
    return rows


def _measure(link: ChannelSpec, seconds: int) -> tuple[float, float, float]:
    """Uplink and downlink in Mbit/s, and the RTT in milliseconds."""
    with _emulated(link) as servers:
        up = run_iperf3(*servers.iperf3, seconds, reverse=False, prefix=servers.prefix).rate_mbps.value
        down = run_iperf3(*servers.iperf3, seconds, reverse=True, prefix=servers.prefix).rate_mbps.value
        return up, down, statistics.median(_echo_s(servers.echo, servers.prefix)) * 1e3


def _row(via: str, rate: float, rtt_ms: float, per: float, measured: tuple[float, float, float]) -> dict[str, Any]:
    up, down, echo_ms = measured
    expected = rate * (1 - per) * (TC_PAYLOAD if via == "tc" else 1)
    errors = (up / expected - 1, down / expected - 1)
    rtt_error_ms = echo_ms - rtt_ms
    within = max(RTT_TOLERANCE_MS, RTT_TOLERANCE * rtt_ms)
    return {
        "via": via, "rate_mbps": rate, "rtt_ms": rtt_ms, "per": per, "expected_mbps": expected, "uplink_mbps": up,
        "downlink_mbps": down, "echo_ms": echo_ms, "uplink_error": errors[0], "downlink_error": errors[1],
        "rtt_error_ms": rtt_error_ms, "agrees": max(map(abs, errors)) <= RATE_TOLERANCE and abs(rtt_error_ms) <= within,
    }  # fmt: skip


# ---------------------------------------------------------------- servers


@contextlib.contextmanager
def _emulated(link: ChannelSpec) -> Iterator[ServerAddresses]:
    """Start the servers behind an emulated link."""
    with contextlib.ExitStack() as held:
        if link.kind == "tc":
            wire = Duplex.of(link.uplink_mbps, link.downlink_mbps, link.rtt_ms, link.per, link.per)
            spaces = held.enter_context(Namespaces([wire]))
            host = spaces.host_address(0)
            ports = held.enter_context(_servers(host))
            yield ServerAddresses((host, ports[0]), (host, ports[1]), spaces.prefix(0))
            return
        ports = held.enter_context(_servers("127.0.0.1"))
        relays = [held.enter_context(proxy(link, f"tcp://127.0.0.1:{port}")) for port in ports]
        iperf3, echo = (int(relay["listen"].rsplit(":", 1)[1]) for relay in relays)
        yield ServerAddresses(("127.0.0.1", iperf3), ("127.0.0.1", echo), [])


@contextlib.contextmanager
def _servers(host: str) -> Iterator[tuple[int, int]]:
    """Start an iperf3 and an echo server; yields their ports."""
    with socket.create_server((host, 0)) as echo, iperf3_server(host) as port:
        threading.Thread(target=_serve_echo, args=(echo,), daemon=True).start()
        yield port, int(echo.getsockname()[1])
        with contextlib.suppress(OSError):
            echo.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def iperf3_server(host: str) -> Iterator[int]:
    """Start an iperf3 server on a free port; yields the port.

    Raises:
        TestbedError: the server did not start.
    """
    with socket.create_server((host, 0)) as free:
        port = int(free.getsockname()[1])
    server = subprocess.Popen(
        ["iperf3", "--server", "--bind", host, "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_listening(host, port, server)
        yield port
    finally:
        server.kill()
        server.wait()


def _wait_listening(host: str, port: int, server: subprocess.Popen[bytes]) -> None:
    """Wait until the server listens, without connecting, which iperf3 would treat as a test."""
    wanted, deadline_s = f":{port:04X}", time.monotonic() + START_S
    while time.monotonic() < deadline_s and server.poll() is None:
        with open("/proc/net/tcp", encoding="ascii") as table:
            if any(line.split()[1].endswith(wanted) and line.split()[3] == "0A" for line in table if wanted in line):
                return
        time.sleep(0.02)
    raise TestbedError(f"the iperf3 server on {host}:{port} did not start")


def _serve_echo(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection, contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := connection.recv(65536):
                connection.sendall(data)


def _echo_s(address: tuple[str, int], prefix: Sequence[str]) -> list[float]:
    """Round-trip times of echoes from the UE's side, in seconds."""
    command = [*prefix, sys.executable, "-c", ECHO_CLIENT, address[0], str(address[1]), str(ECHOES), str(ECHO_BYTES)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired as exc:
        raise TestbedError("the echo through the link timed out") from exc
    times = [float(line) for line in done.stdout.split()]
    if len(times) != ECHOES or not all(map(math.isfinite, times)):
        raise TestbedError(f"the echo through the link failed: {' '.join(done.stderr.split())[-200:]}")
    return times
