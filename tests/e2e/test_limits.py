"""Processes at the limits of the machine: descriptors of a relay, threads of a base station."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from testbed.config import ServeConfig
from testbed.experiments.runs.processes import base_station, command
from testbed.protocols.messages import Draft, Open, Opened, Verdict
from tests.support.stations import VOCAB, client

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and sets limits of other processes")


def test_a_relay_without_free_descriptors_writes_a_few_lines_and_goes_on(tmp_path: Path) -> None:
    """It wrote 650 kB a minute."""
    listener = socket.create_server(("127.0.0.1", 0))
    channel, to = "kind=proxy,uplink_mbps=20,downlink_mbps=20,rtt_ms=10", f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    relay = command("channel", "emulate", "--channel", channel, "--listen", "tcp://127.0.0.1:*", "--to", to, "--json")
    with (
        listener,
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(relay, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            host, port = json.loads(process.stdout.readline())["listen"].removeprefix("tcp://").split(":")
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (64, 4096))
            with contextlib.ExitStack() as held:
                end_s = time.monotonic() + 6
                while time.monotonic() < end_s:
                    if len(os.listdir("/proc/self/fd")) > 300:
                        held.close()
                    one = held.enter_context(socket.create_connection((host, int(port)), timeout=20))
                    one.settimeout(0.01)
                    with contextlib.suppress(OSError):
                        one.sendall(b"x" * 4096)
            lines = (tmp_path / "log").read_text().splitlines()
            assert any("Too many open files" in line for line in lines) and len(lines) < 40
            assert any(forwarded(listener, (host, int(port))) for _ in range(20))
            assert process.poll() is None
        finally:
            process.kill()


def forwarded(target: socket.socket, relay: tuple[str, int]) -> bool:
    """Whether the relay passes on what a new connection sends; it refuses some while none is free."""
    target.settimeout(1.0)
    with contextlib.suppress(OSError), socket.create_connection(relay, timeout=5) as ue:
        ue.sendall(b"are you there?")
        while True:
            with target.accept()[0] as accepted:
                accepted.settimeout(1.0)
                if accepted.recv(100) == b"are you there?":
                    return True
    return False


def threads_of(pid: int) -> int:
    """Number of threads of a process."""
    return len(os.listdir(f"/proc/{pid}/task"))


async def long_rounds(address: str) -> None:
    """Rounds that are decided beside the event loop, since a pass has more of them than may be decided in it."""
    ids, q = np.full(255, 3, np.int32), np.zeros((255, VOCAB), np.uint16)
    q[:, 3] = 65535
    async with client(address) as ue:
        numbers = [ue.new_session() for _ in range(6)]
        for number in numbers:
            opening = Open(session=number, protocol="rejection", threshold=0.0, hidden_size=8, temperature=1.0)
            await ue.send(opening, {"ids": np.arange(1, 4, dtype=np.int32)})
            assert isinstance((await ue.receive(number, 20)).message, Opened)
        for number in numbers:
            await ue.send(Draft(session=number, round=0, base_len=3), {"ids": ids, "q": q})
        for number in numbers:
            assert isinstance((await ue.receive(number, 20)).message, Verdict)


def test_a_base_station_starts_its_threads_before_it_serves() -> None:
    """Under a limit of threads it ended when the first long round came, and again after each restart."""
    with base_station(ServeConfig(engine="synthetic", bind="tcp://127.0.0.1:*")) as serving:
        before = threads_of(serving["pid"])
        asyncio.run(long_rounds(serving["bind"]))
        assert threads_of(serving["pid"]) == before
