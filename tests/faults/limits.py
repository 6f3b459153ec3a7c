"""Faults of a base station's host: no file descriptor left, no memory, no disk, tasks that die."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import numpy as np
import zmq
import zmq.asyncio

from testbed.channel.frames import parts
from testbed.channel.link import new_identity
from testbed.protocols import PROTOCOLS, TARGET_ONLY
from testbed.protocols.codec import encode
from testbed.protocols.messages import Draft, Open
from tests.faults.links import Reference, judged
from tests.faults.outcome import Outcome, counted
from tests.faults.site import SYNTHETIC, Site, Station, free_port, site

FILES, STRANGERS = 128, 260
"""Descriptors of the base station, and connections that strangers open at once."""
ROOM_BYTES = 96 * 2**20
"""Memory that a base station may take beyond that with which it started."""
DISK_BYTES = 2**16


def watch_all(found: Site, phase: str) -> None:
    """Take the end of a fault for the beginning of every session's recovery."""
    for session in found.postman.sessions_of():
        found.postman.watch(phase, session)


async def recovered(found: Site) -> None:
    """Every session that drafts has got a verdict since its last fault; a lost stream is asked for much later."""
    live = found.postman.live
    hit = [fault for fault in found.postman.faults if live.get(fault.session, TARGET_ONLY) != TARGET_ONLY]
    await found.until(lambda: all(fault.until_s or fault.session not in live for fault in hit))


# ---------------------------------------------------------------- descriptors


@contextlib.contextmanager
def strangers(address: str) -> Iterator[list[socket.socket]]:
    """Connections that say nothing."""
    host, port = address.removeprefix("tcp://").split(":")
    opened: list[socket.socket] = []
    try:
        for _ in range(STRANGERS):
            opened.append(socket.socket())
            opened[-1].setblocking(False)
            with contextlib.suppress(BlockingIOError):
                opened[-1].connect((host, int(port)))
        yield opened
    finally:
        for one in opened:
            one.close()


async def files_used_up(times: int, seed: int, folder: Path, expected: Reference) -> Outcome:
    """Strangers take all descriptors of the BS; counted when it has none left, and recovery from when they leave."""
    fault, start_s, dice = "descriptors used up", time.monotonic(), random.Random(f"files/{seed}")
    station, phases, served = Station(folder, most_files=FILES), list[str](), list[int]()
    async with site(station) as found:
        await found.begin(4)
        while len(phases) < times:
            before = sum(found.postman.carried.values())
            with strangers(station.address):
                used = 0
                for _ in range(200):
                    used = max(used, len(os.listdir(f"/proc/{station.pid}/fd")))
                    await asyncio.sleep(0.001)
                await asyncio.sleep(dice.uniform(0.0, 0.3))
                served.append(sum(found.postman.carried.values()) - before)
            if used >= FILES - 1:
                phases.append("none left")
                watch_all(found, "none left")
                await recovered(found)
        outcome = await judged(fault, seed, found, expected, start_s, len(phases))
        assert set(station.metrics()["task_failures"].values()) == {0}  # the limits of connections hold on
    notes = {"least_served": min(served)}
    return msgspec.structs.replace(outcome, phases=counted(phases), notes=notes)


# ---------------------------------------------------------------- memory


class Hoarder:
    """A peer that sends the largest messages, and reads nothing."""

    def __init__(self, address: str) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        for option, value in ((zmq.LINGER, 0), (zmq.ROUTING_ID, new_identity()), (zmq.SNDHWM, 4)):
            self._socket.setsockopt(option, value)
        self._socket.connect(address)

    async def fill(self) -> None:
        """Send until cancelled."""
        large = {"ids": np.zeros(4, np.int32), "q": np.zeros((2, 2**21), np.uint16)}
        opening = Open(session=1, protocol="rejection", threshold=0.0, hidden_size=4, temperature=1.0)
        await self._socket.send_multipart(parts(encode(opening, {"ids": np.ones(8, np.int32)})))
        for number in range(10**6):
            await self._socket.send_multipart(parts(encode(Draft(session=1, round=number, base_len=8), large)))

    def close(self) -> None:
        """Hang up."""
        self._socket.close(0)
        self._context.term()


async def memory_limited(times: int, seed: int, folder: Path, expected: Reference) -> Outcome:
    """The BS may take little more memory than it has, and peers send the largest messages: it refuses or dies, and is
    started again as a supervisor does. Recovery counts from when it is ready.
    """
    fault, start_s, station, ends = "memory limit", time.monotonic(), Station(folder, slow_s=0.01), list[str]()
    async with site(station) as found:
        await found.begin(3, methods=tuple(PROTOCOLS))
        for _ in range(times):
            ends.append(await hoarded(station))
            watch_all(found, ends[-1])
            recovering = asyncio.create_task(recovered(found))
            if await ends_before(station, recovering):  # it had no memory a moment before it was given some again
                ends[-1] = await started_again(station)
            await recovering
        outcome = await judged(fault, seed, found, expected, start_s, len(ends))
    return msgspec.structs.replace(outcome, phases=counted(ends))


async def ends_before(station: Station, other: asyncio.Task[None]) -> bool:
    """Whether the BS ends before something else does."""
    assert station.child is not None
    ending = asyncio.create_task(station.child.process.wait())
    await asyncio.wait({ending, other}, return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    return station.child.process.returncode is not None and not other.done()


async def started_again(station: Station) -> str:
    """Start the BS as a supervisor does; returns how it ended."""
    code = await station.restart()
    assert code not in (0, 2), f"ended with {code}, so that no supervisor starts it again"
    return f"ended with {code}"


async def hoarded(station: Station, peers: int = 8, wait_s: float = 4.0) -> str:
    """Limit the BS's memory while peers fill it; returns how it ended, or "went on"."""
    pid, child = station.pid, station.child
    assert child is not None
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    soft = pages * resource.getpagesize() + ROOM_BYTES
    resource.prlimit(pid, resource.RLIMIT_AS, (soft, resource.RLIM_INFINITY))
    hoarders = [Hoarder(station.address) for _ in range(peers)]
    filling = [asyncio.create_task(hoarder.fill()) for hoarder in hoarders]
    try:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(child.process.wait(), wait_s)
    finally:
        for task in filling:
            task.cancel()
        await asyncio.gather(*filling, return_exceptions=True)
        for hoarder in hoarders:
            hoarder.close()
    with contextlib.suppress(ProcessLookupError):  # it ended a moment ago
        resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        if child.process.returncode is None:
            return "went on"
    return await started_again(station)


# ---------------------------------------------------------------- disk


async def bs_disk_full(times: int, seed: int, folder: Path, expected: Reference) -> Outcome:
    """The disk of the BS's metrics fills up and gets room again; counted when the BS has said so."""
    fault, start_s, dice = "BS disk full", time.monotonic(), random.Random(f"bs-disk/{seed}")
    disk, station = folder / "disk", Station(folder)
    disk.mkdir()
    mount = f'mount -t tmpfs -o size={DISK_BYTES} tmpfs "{disk}" && exec "$@"'
    station.prefix, station.metrics_path = ("unshare", "-rm", "sh", "-c", mount, "sh"), disk / "metrics.jsonl"
    full = 0
    async with site(station) as found:
        inside = Path(f"/proc/{station.pid}/root{disk}")
        station.metrics_path = inside / "metrics.jsonl"
        await found.begin(4)
        for _ in range(times):
            assert station.child is not None
            said = len(station.child.complaints)
            with (inside / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while file.write(bytes(1024)):
                    pass
            child = station.child
            await found.until(lambda child=child, said=said: _full(child.complaints[said:]))  # type: ignore[misc]
            await asyncio.sleep(dice.uniform(0.0, 0.3))
            (inside / "filler").unlink()
            lines = station.metrics_path.stat().st_size
            watch_all(found, "metrics")
            await found.until(lambda lines=lines: station.metrics_path.stat().st_size != lines)  # type: ignore[misc]
            await recovered(found)
            os.truncate(station.metrics_path, 0)
            full += 1
        outcome = await judged(fault, seed, found, expected, start_s, full)
    return msgspec.structs.replace(outcome, phases={"metrics": full})


def _full(complaints: list[str]) -> bool:
    return any("No space left on device" in line for line in complaints)


# ---------------------------------------------------------------- tasks


async def background_dies(times: int, seed: int, folder: Path, expected: Reference) -> Outcome:
    """All background tasks of the BS fail at once; counted when each was counted, `/readyz` said so, and all is well
    again. Recovery is that of the sessions meanwhile.
    """
    fault, start_s, dice = "background tasks die", time.monotonic(), random.Random(f"tasks/{seed}")
    port, died = free_port(), 0
    station = Station(folder, (*SYNTHETIC, "--monitor", f"127.0.0.1:{port}"), breakable=True)
    async with site(station) as found:
        await found.begin(4)
        assert await answers(port, 200)
        for _ in range(times):
            await asyncio.sleep(dice.uniform(0.0, 0.5))
            before = station.metrics()["task_failures"]
            os.kill(station.pid, signal.SIGUSR1)
            watch_all(found, "all")
            assert await answers(port, 503)
            await found.until(lambda before=before: _more(station.metrics()["task_failures"], before))  # type: ignore[misc]
            await recovered(found)
            died += 1
        assert await answers(port, 200)
        outcome = await judged(fault, seed, found, expected, start_s, died)
    tasks = counted(event["task"] for event in station.events("broken"))
    assert len(tasks) > 1
    return msgspec.structs.replace(outcome, phases=tasks)


def _more(now: dict[str, int], before: dict[str, int]) -> bool:
    return all(now[name] > before[name] for name in before)


async def answers(port: int, status: int, wait_s: float = 20.0) -> bool:
    """Whether `/readyz` has a status, soon."""
    end_s = time.monotonic() + wait_s
    async with httpx.AsyncClient() as client:
        while time.monotonic() < end_s:
            with contextlib.suppress(httpx.TransportError):
                if (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code == status:
                    return True
            await asyncio.sleep(0.05)
    return False


async def serving_dies(times: int, seed: int, folder: Path, expected: Reference) -> Outcome:
    """One of the tasks that serve fails: the BS ends with status 1, with which a supervisor starts it again. Recovery
    counts from when it is ready.
    """
    fault, start_s, dice = "serving task dies", time.monotonic(), random.Random(f"serving/{seed}")
    station, died = Station(folder, breakable=True, slow_s=0.01), 0
    async with site(station) as found:
        await found.begin(3, methods=tuple(PROTOCOLS))
        for _ in range(times):
            await asyncio.sleep(dice.uniform(0.0, 0.5))
            os.kill(station.pid, signal.SIGUSR2)
            assert await station.restart() == 1
            watch_all(found, "serving")
            await recovered(found)
            died += 1
        outcome = await judged(fault, seed, found, expected, start_s, died)
    return msgspec.structs.replace(outcome, phases=counted(event["task"] for event in station.events("broken")))
