"""Faults of one process or host among several: stopped for a while, vanished without a word, its date changed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.faults.ends import JUMPS_S
from tests.faults.limits import answers, recovered, watch_all
from tests.faults.links import Reference, judged
from tests.faults.outcome import Outcome, counted
from tests.faults.site import SYNTHETIC, Child, Site, Station, free_port, site
from tests.support.postman import Fault, Postman
from tests.support.wall_clock import WallClock

PAUSE_S = (0.3, 4.0)
"""Shortest and longest pause of a process; a UE sends again after 2 s."""


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that does nothing meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def bs_stopped(times: int, seed: int, folder: Path, expected: Reference) -> Outcome:
    """The BS is stopped; counted when it sent nothing meanwhile, and recovery from when it goes on."""
    fault, start_s, dice = "BS stopped", time.monotonic(), random.Random(f"bs-stopped/{seed}")
    station, phases = Station(folder), list[str]()
    async with site(station) as found:
        await found.begin(4)
        while len(phases) < times:
            await pause(found, station.pid, "BS", dice, phases)
        outcome = await judged(fault, seed, found, expected, start_s, len(phases))
    return msgspec.structs.replace(outcome, phases=counted(phases))


async def pause(found: Site, pid: int, name: str, dice: random.Random, phases: list[str]) -> None:
    """Stop a process between UEs and BS for a while; noted if no answer came meanwhile."""
    await asyncio.sleep(dice.uniform(0.0, 0.3))
    with stopped(pid):
        await asyncio.sleep(0.1)
        before = _down(found.postman)
        await asyncio.sleep(dice.uniform(*PAUSE_S))
        silent = _down(found.postman) == before
    if silent:
        phases.append(name)
        watch_all(found, name)
        await recovered(found)


def _down(postman: Postman) -> int:
    return sum(count for (_, up), count in postman.carried.items() if not up)


async def view_stopped(times: int, seed: int, folder: Path, expected: Reference) -> Outcome:
    """The process of the live view is stopped while it is asked for the page's data; the BS serves on meanwhile."""
    fault, start_s, dice = "live view stopped", time.monotonic(), random.Random(f"view/{seed}")
    port, served = free_port(), list[int]()
    station = Station(folder, (*SYNTHETIC, "--monitor", f"127.0.0.1:{port}"))
    async with site(station) as found:
        await found.begin(4)
        assert await answers(port, 200)
        for _ in range(times):
            with stopped(_child(station.pid)):
                asking = asyncio.create_task(answers(port, 200, 30.0))
                await asyncio.sleep(0.1)
                before = _down(found.postman)
                await asyncio.sleep(dice.uniform(*PAUSE_S))
                served.append(_down(found.postman) - before)
                watch_all(found, "live view")
            assert await asking
        await recovered(found)
        outcome = await judged(fault, seed, found, expected, start_s, sum(count > 0 for count in served))
    return msgspec.structs.replace(outcome, phases={"live view": times}, notes={"least_served": min(served)})


def _child(pid: int) -> int:
    """The only child of a process."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


async def relay_stopped(times: int, seed: int, folder: Path, expected: Reference) -> Outcome:
    """The relay that emulates the link is stopped; counted when nothing came through meanwhile."""
    fault, start_s, dice = "relay stopped", time.monotonic(), random.Random(f"relay/{seed}")
    station, phases = Station(folder), list[str]()
    options = ("--json", "--channel", "kind=proxy,rtt_ms=2", "--listen", "tcp://127.0.0.1:*", "--to", station.address)
    relay = await Child.start("relay", "testbed", "channel", "emulate", *options)
    try:
        async with site(station, (await relay.word(60.0))["listen"]) as found:
            await found.begin(4)
            while len(phases) < times:
                await pause(found, relay.pid, "relay", dice, phases)
            outcome = await judged(fault, seed, found, expected, start_s, len(phases))
    finally:
        await relay.kill()
    return msgspec.structs.replace(outcome, phases=counted(phases))


async def one_clock_jumps(times: int, seed: int, folder: Path, expected: Reference) -> Outcome:
    """The date of one host jumps, the BS's or a UE's, while those of the others go on."""
    fault, start_s, dice = "one host's clock jumps", time.monotonic(), random.Random(f"one-clock/{seed}")
    hosts = ["BS", "UE 0", "UE 1"]
    walls = {host: WallClock(_made(folder / host.replace(" ", "-"))) for host in hosts}
    ahead_s, jumps, station = dict.fromkeys(hosts, 0), list[str](), Station(folder)
    station.environment = walls["BS"].environment
    async with site(station) as found:
        for host in hosts[1:]:
            found.environment = walls[host].environment
            await found.begin(1)
        for _ in range(times):
            await asyncio.sleep(dice.uniform(0.1, 0.5))
            host = dice.choice(hosts)
            ahead_s[host] = dice.choice([jump_s for jump_s in JUMPS_S if jump_s != ahead_s[host]])
            seen = _seen(found, host)
            walls[host].set(ahead_s[host])
            hit: list[Fault] = [found.postman.watch(host, session) for session in found.postman.sessions_of()]
            assert hit
            await found.until(lambda host=host, seen=seen: _seen(found, host) > seen)  # type: ignore[misc]
            jumps.append(host)
        outcome = await judged(fault, seed, found, expected, start_s, len(jumps))
    return msgspec.structs.replace(outcome, phases=counted(jumps))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _seen(found: Site, host: str) -> int:
    """Jumps that a host has seen."""
    if host == "BS":
        return len(found.station.events("jumped"))
    ue = found.ues[int(host.removeprefix("UE "))]
    return sum(bool(said["jumped"]) for said in ue.said)
