"""Memory and answers while a peer floods a base station, or a base station on standby floods a UE.

Three messages are sent as fast as possible, over new connections each time that one is cut: one of empty frames that
never ends, one of frames of 16 KB that never ends, and one of four million empty frames that does. Base stations have
the synthetic engine; a UE has no keys. Each case has a process of its own. Rows: memory of the process before, its
peak, and 3 s after the flood; handshakes (`Ping`) that an honest UE made meanwhile, and the longest.

Run: python benchmarks/floods.py [--seconds 10] [--repeats 3] [--csv FILE] [--json]
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import json
import multiprocessing
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from support.commands import command_line

from testbed.channel.frames import PART_BYTES
from testbed.channel.link import ZmqLink, new_identity
from testbed.clock import WallClock
from testbed.config import ServeConfig
from testbed.experiments.results import directory as results
from testbed.experiments.runs.processes import base_station
from testbed.ue.client import Client
from testbed.ue.failover import FailoverClient, StationLink
from tests.support.zmtp import connect, frame, listening

VOCAB, FRAMES = 512, 4_000_000
PIECE_BYTES = 2**18
REST_S = 3.0
CUT_S = 0.2
"""Time after which a client whose data the BS does not read gives a connection up: the kernel does not tell it at once
that it was cut."""
MESSAGES = {
    "endless, empty frames": (b"", False),
    "endless, frames of 16 KB": (bytes(PART_BYTES - 1), False),
    "four million empty frames": (b"", True),
}
SIDES = ("BS", "UE")


class Flood:
    """A message that is sent over and over, for a time; `sent` counts its bytes."""

    def __init__(self, message: str, seconds: float) -> None:
        body, self._ends = MESSAGES[message]
        one = frame(body, more=True)
        self._piece = one * max(1, PIECE_BYTES // len(one))
        self._pieces = FRAMES * len(one) // len(self._piece) if self._ends else None
        self.seconds, self._until_s = seconds, 0.0
        self._begun = threading.Event()
        self.sent = self.connections = 0

    def begin(self) -> None:
        """The time begins."""
        self._until_s = time.monotonic() + self.seconds
        self._begun.set()

    @property
    def lasts(self) -> bool:
        """Whether the time is not over."""
        return time.monotonic() < self._until_s

    def pour(self, connected: socket.socket, _: int = 0) -> None:
        """Send until the connection is cut, or the time is over."""
        self._begun.wait()
        self.connections += 1
        while self.lasts:
            pieces = 0
            while self.lasts and pieces != self._pieces:
                connected.sendall(self._piece)
                self.sent, pieces = self.sent + len(self._piece), pieces + 1
            if self._ends:
                connected.sendall(frame(b"end"))

    def pour_into(self, address: str) -> None:
        """The same as a client, which connects again."""
        while self.lasts:
            with contextlib.suppress(OSError), connect(address, new_identity()) as connected:
                connected.settimeout(CUT_S)
                self.pour(connected)


def memory(pid: int, what: str) -> float:
    """VmRSS or VmHWM (peak) of a process in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) * 1024 / 1e6


async def pinged(client: Client, goes_on: Callable[[], bool]) -> tuple[int, float]:
    """Handshakes, one every 20 ms, and the longest in ms."""
    longest_s, count = 0.0, 0
    while goes_on():
        [rtt_s] = await client.rtt_s(1)
        longest_s, count = max(longest_s, rtt_s), count + 1
        await asyncio.sleep(0.02)
    return count, 1000 * longest_s


def of_base_station(flood: Flood) -> dict[str, Any]:
    """The row of a base station that a peer floods."""

    async def honest(address: str) -> tuple[int, float]:
        client = Client(ZmqLink(address, new_identity()), WallClock(), 1, 60.0)
        await client.connect("", VOCAB)
        found = await pinged(client, lambda: flood.lasts)
        await client.close()
        return found

    with base_station(ServeConfig(engine="synthetic", bind="tcp://127.0.0.1:*")) as bs:
        before_mb = memory(bs["pid"], "VmRSS")
        flood.begin()
        thread = threading.Thread(target=flood.pour_into, args=(bs["bind"],))
        thread.start()
        pings, longest_ms = asyncio.run(honest(bs["bind"]))
        thread.join()
        time.sleep(REST_S)
        return row(bs["pid"], before_mb, pings, longest_ms)


def of_ue(flood: Flood) -> dict[str, Any]:
    """The row of a UE that a base station on standby floods."""
    spawn = multiprocessing.get_context("spawn")
    with base_station(ServeConfig(engine="synthetic", bind="tcp://127.0.0.1:*")) as bs, listening(flood.pour) as liar:
        here, there = spawn.Pipe()
        process = spawn.Process(target=ue, args=((bs["bind"], liar), there))
        process.start()
        before_mb = here.recv()
        flood.begin()
        here.send(flood.seconds)
        pings, longest_ms = here.recv()
        time.sleep(REST_S)
        found = row(process.pid or 0, before_mb, pings, longest_ms)
        here.send(None)
        process.join()
        return found


def ue(addresses: tuple[str, str], lab: Any) -> None:
    """A UE of two base stations."""

    async def decode() -> None:
        links = [StationLink(address, ZmqLink(address, new_identity())) for address in addresses]
        client = FailoverClient(links, WallClock(), 1, 60.0)
        await client.connect("", VOCAB)
        lab.send(memory(multiprocessing.current_process().pid or 0, "VmRSS"))
        until_s = await asyncio.to_thread(lab.recv) + time.monotonic()
        lab.send(await pinged(client, lambda: time.monotonic() < until_s))
        await asyncio.to_thread(lab.recv)
        await client.close()

    asyncio.run(decode())


def row(pid: int, before_mb: float, pings: int, longest_ms: float) -> dict[str, Any]:
    """What was measured of a process."""
    peak_mb, after_mb = memory(pid, "VmHWM"), memory(pid, "VmRSS")
    return {
        "before_mb": round(before_mb), "peak_mb": round(peak_mb), "after_mb": round(after_mb), "pings": pings,
        "longest_ms": round(longest_ms, 1),
    }  # fmt: skip


def rows(seconds: float, repeats: int) -> Iterator[dict[str, Any]]:
    """All cases, in turn."""
    for repeat in range(repeats):
        for side in SIDES:
            for message in MESSAGES:
                flood = Flood(message, seconds)
                found = of_base_station(flood) if side == "BS" else of_ue(flood)
                yield {
                    "flooded": side,
                    "message": message,
                    "repeat": repeat,
                    "sent_mb": round(flood.sent / 1e6),
                    "connections": flood.connections,
                } | found


def main() -> None:
    """Run the benchmark and print the results."""
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of a flood")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--csv", type=Path, help="write the rows")
    arguments = parser.parse_args()
    found = []
    for each in rows(arguments.seconds, arguments.repeats):
        found.append(each)
        if not arguments.json:
            print("  ".join(f"{name} {value}" for name, value in each.items()), flush=True)
    if arguments.json:
        print(json.dumps({"host": results.host(), "rows": found}))
    if arguments.csv is not None:
        with arguments.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, found[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(found)


if __name__ == "__main__":
    main()
