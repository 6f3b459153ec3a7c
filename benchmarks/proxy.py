"""Overhead and throughput of the emulating relay.

1. p50 of a 64-byte echo on loopback, direct and through a relay without impairments, alternating in one run; the
   difference is the relay's overhead.
2. Throughput of a bulk sender through the relay, without impairments and with a rate of 500 Mbit/s. Sender, relay and
   sink are separate processes.

Run: python benchmarks/proxy.py [--json] [--csv FILE]
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import socket
import statistics
import time
from typing import Any

from support.commands import command_line, write_rows

from testbed.channel.emulate import relay
from testbed.channel.spec import parse_channel
from testbed.experiments.results import directory as results

ECHOES = 2000
TURNS = 5
SECONDS = 4.0


def main() -> None:
    """Run the benchmark and print the results."""
    arguments = command_line(__doc__).parse_args()
    report = {"host": results.host(), "echo": added(), "bulk": [bulk("kind=proxy"), bulk("kind=proxy,uplink_mbps=500")]}
    if arguments.csv is not None:
        write_rows(arguments.csv, [{"channel": "kind=proxy", **report["echo"]}, *report["bulk"]])
    if arguments.json:
        print(json.dumps(report))
        return
    found = report["echo"]
    print(f"{report['host']['cpu']}, {report['host']['cores']} cores")
    print(
        f"echo p50: bare {found['bare_ms']:.3f} ms, relayed {found['relayed_ms']:.3f} ms, "
        f"added {found['added_ms']:.3f} ms (turns {found['added_range_ms'][0]:.3f} to {found['added_range_ms'][1]:.3f})"
    )
    for row in report["bulk"]:
        print(f"{row['channel']:30} {row['mbps']:8.0f} Mbit/s")


class Served:
    """A server function in a separate process; it announces its port in a queue, its first argument."""

    def __init__(self, target: Any, *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        ports: Any = context.SimpleQueue()
        self._process = context.Process(target=target, args=(ports, *args), daemon=True)
        self._process.start()
        self.port: int = ports.get()

    def stop(self) -> None:
        self._process.kill()
        self._process.join(5)


def _echo(ports: Any) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    ports.put(server.getsockname()[1])
    while True:
        connection, _ = server.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := connection.recv(65536):
            connection.sendall(data)


def _sink(ports: Any) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    ports.put(server.getsockname()[1])
    connection, _ = server.accept()
    total, buffer = 0, bytearray(2**20)
    first_s = time.perf_counter()
    while got := connection.recv_into(buffer):
        total += got
        if time.perf_counter() - first_s > SECONDS:
            break
    connection.sendall(int(8 * total / (time.perf_counter() - first_s)).to_bytes(8, "little"))
    time.sleep(1)


def _relay(ports: Any, channel: str, port: int) -> None:
    def ready(document: dict[str, Any]) -> None:
        ports.put(int(document["listen"].rsplit(":", 1)[1]))

    relay(parse_channel(channel), "tcp://127.0.0.1:*", f"tcp://127.0.0.1:{port}", ready)


def added() -> dict[str, Any]:
    """p50 of an echo without and with the relay, and the difference."""
    server = Served(_echo)
    relayed = Served(_relay, "kind=proxy", server.port)
    try:
        turns = [(_echo_p50_s(server.port), _echo_p50_s(relayed.port)) for _ in range(TURNS)]
    finally:
        relayed.stop()
        server.stop()
    bare_ms, through_ms = (statistics.median(column) * 1e3 for column in zip(*turns, strict=True))
    differences = [(b - a) * 1e3 for a, b in turns]
    return {
        "bare_ms": bare_ms, "relayed_ms": through_ms, "added_ms": statistics.median(differences),
        "added_range_ms": [min(differences), max(differences)],
    }  # fmt: skip


def _echo_p50_s(port: int) -> float:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times = []
        for _ in range(ECHOES):
            start_s = time.perf_counter()
            connection.sendall(bytes(64))
            connection.recv(64)
            times.append(time.perf_counter() - start_s)
    return statistics.median(times)


def bulk(channel: str) -> dict[str, Any]:
    """Throughput of one sender through the relay."""
    sink = Served(_sink)
    relayed = Served(_relay, channel, sink.port)
    try:
        with socket.create_connection(("127.0.0.1", relayed.port)) as connection:
            connection.settimeout(0.2)
            chunk, deadline_s = bytes(2**18), time.perf_counter() + 3 * SECONDS
            while time.perf_counter() < deadline_s:
                with contextlib.suppress(TimeoutError, ConnectionError):
                    connection.sendall(chunk)
                connection.setblocking(False)
                try:
                    answer = connection.recv(8)
                    break
                except BlockingIOError:
                    connection.settimeout(0.2)
            else:
                raise RuntimeError("no answer from the sink")
    finally:
        relayed.stop()
        sink.stop()
    return {"channel": channel, "mbps": int.from_bytes(answer, "little") / 1e6}


if __name__ == "__main__":
    main()
