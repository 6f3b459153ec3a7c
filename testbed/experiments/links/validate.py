"""Validates emulated links: compares configured with measured rates (iperf3) and round-trip times (echo)."""

from __future__ import annotations

import contextlib
import itertools
import math
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from testbed.channel.measuring.iperf3 import NO_IPERF3, run_iperf3
from testbed.channel.spec import ChannelSpec
from testbed.channel.tc.links import Namespaces
from testbed.channel.tc.shape import TC_PAYLOAD, Duplex
from testbed.errors import BadInput, LinkError, TestbedError
from testbed.experiments.links.config import ValidateConfig
from testbed.experiments.runs.processes import proxy

ECHOES, JITTER_ECHOES = 20, 400
"""Echoes per link, without and with jitter."""
ECHO_BYTES = 1
"""Small enough that the rate does not affect the RTT."""
RATE_TOLERANCE = 0.05
RTT_TOLERANCE, RTT_TOLERANCE_MS = 0.05, 1.0
"""Relative and absolute tolerance of an RTT; the larger one applies."""
JITTER_TOLERANCE, JITTER_TOLERANCE_MS = 0.2, 0.5
"""The same of the jitter, estimated from the echoes."""
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
    payload's fraction of it. The RTT is the median of the echoes without a loss. Rates must agree within
    `RATE_TOLERANCE`, RTTs within 5 % or 1 ms (with jitter, also within four standard errors), jitter within 20 % or
    0.5 ms.

    Raises:
        BadInput: iperf3 is not installed, or the link cannot be emulated on this machine.
        TestbedError: a server or a transfer failed.
    """
    if shutil.which("iperf3") is None:
        raise BadInput(NO_IPERF3)
    grid = [config.link(*point) for point in itertools.product(*config.grid_axes)]
    rows = []
    for done, link in enumerate(grid):
        try:
            measured = _measure(link, config.seconds)
        except LinkError as exc:
            raise LinkError(f"{link.uplink_mbps:g} Mbit/s, {link.rtt_ms:g} ms, PER {link.per:g}: {exc}") from exc
        rows.append(_row(link, *measured))
        progress(done + 1, len(grid))
    return rows


def _measure(link: ChannelSpec, seconds: int) -> tuple[float, float, list[float]]:
    """Uplink and downlink in Mbit/s, and echo times in milliseconds."""
    with _emulated(link) as servers:
        up = run_iperf3(*servers.iperf3, seconds, reverse=False, prefix=servers.prefix).rate_mbps.value
        down = run_iperf3(*servers.iperf3, seconds, reverse=True, prefix=servers.prefix).rate_mbps.value
        echoes = JITTER_ECHOES if link.jitter_ms else ECHOES
        return up, down, [1e3 * one for one in _echo_s(servers.echo, servers.prefix, echoes)]


def _row(link: ChannelSpec, up: float, down: float, echoes_ms: Sequence[float]) -> dict[str, Any]:
    rate, rtt_ms, jitter_ms = link.uplink_mbps or math.inf, link.rtt_ms, link.jitter_ms
    expected = rate * (1 - link.per) * (TC_PAYLOAD if link.kind == "tc" else 1)
    errors = (up / expected - 1, down / expected - 1)
    # a share (1 − PER)² of the echoes has no loss; they are the fastest, and their median is the RTT without recovery
    echo_ms = float(np.quantile(echoes_ms, (1 - link.per) ** 2 / 2))
    rtt_error_ms = echo_ms - rtt_ms
    within_ms = max(RTT_TOLERANCE_MS, RTT_TOLERANCE * rtt_ms)
    low_ms, high_ms = np.quantile(echoes_ms, [0.25, 0.75]).tolist()
    # the quartiles of the sum of two uniform delays of half-width j; a few late echoes do not move them
    found_ms = (high_ms - low_ms) / (4 - 2 * math.sqrt(2)) if jitter_ms and not link.per else None
    agrees = max(map(abs, errors)) <= RATE_TOLERANCE
    if found_ms is not None:
        within_ms = max(within_ms, 4 * found_ms / math.sqrt(len(echoes_ms)))  # the median's density is 1/(2j)
        agrees &= abs(found_ms - jitter_ms) <= max(JITTER_TOLERANCE_MS, JITTER_TOLERANCE * jitter_ms)
    return {
        "via": link.kind, "rate_mbps": rate, "rtt_ms": rtt_ms, "per": link.per, "jitter_ms": jitter_ms,
        "expected_mbps": expected, "uplink_mbps": up, "downlink_mbps": down, "echo_ms": echo_ms,
        "measured_jitter_ms": found_ms, "uplink_error": errors[0], "downlink_error": errors[1],
        "rtt_error_ms": rtt_error_ms, "agrees": agrees and abs(rtt_error_ms) <= within_ms,
    }  # fmt: skip


# ---------------------------------------------------------------- servers


@contextlib.contextmanager
def _emulated(link: ChannelSpec) -> Iterator[ServerAddresses]:
    """Start the servers behind an emulated link."""
    with contextlib.ExitStack() as held:
        if link.kind == "tc":
            wire = Duplex.of(link.uplink_mbps, link.downlink_mbps, link.rtt_ms, link.per, link.per, link.jitter_ms)
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


def _echo_s(address: tuple[str, int], prefix: Sequence[str], count: int) -> list[float]:
    """Round-trip times of echoes from the UE's side, in seconds."""
    command = [
        *prefix,
        sys.executable,
        "-I",
        "-c",
        ECHO_CLIENT,
        address[0],
        str(address[1]),
        str(count),
        str(ECHO_BYTES),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired as exc:
        raise TestbedError("the echo through the link timed out") from exc
    times = [float(line) for line in done.stdout.split()]
    if len(times) != count or not all(map(math.isfinite, times)):
        raise TestbedError(f"the echo through the link failed: {' '.join(done.stderr.split())[-200:]}")
    return times
