"""Faults of the two ends: processes killed, silent or deaf, passes that fail, dates that jump."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from testbed.protocols import PROTOCOLS, TARGET_ONLY
from tests.faults.links import Aim, Reference, judged
from tests.faults.outcome import Outcome, counted
from tests.faults.site import SYNTHETIC, Site, Station, site
from tests.support.postman import AS_IT_IS, Fault, Letter, Order
from tests.support.wall_clock import WallClock

IDLE_S = 1.0
"""After which a BS forgets those who fall silent in these tests."""
JUMPS_S = (-365 * 86400, -86400, -3600, -30, 0, 30, 3600, 86400, 365 * 86400)


class Trigger:
    """Does something just before a letter goes on that is picked at random, once for each time it is drawn."""

    def __init__(self, dice: random.Random, act: Callable[[], None]) -> None:
        self._aim, self._act, self._spared = Aim(dice), act, 0
        self._struck: asyncio.Future[Letter] | None = None

    def decide(self, letter: Letter) -> Order:
        """Leaves all letters as they are."""
        self._spared -= 1
        if self._spared < 0 and self._struck is not None and not self._struck.done() and self._aim.hits(letter):
            self._act()
            self._struck.set_result(letter)
        return AS_IT_IS

    async def draw(self, found: Site, spared: int = 0) -> Letter:
        """Wait until it has struck, so many letters from now at the earliest; returns where."""
        self._spared = spared
        self._struck = asyncio.get_running_loop().create_future()
        await found.until(self._struck.done)
        return self._struck.result()


async def bs_killed(times: int, seed: int, folder: Path, expected: Reference) -> Outcome:
    """The BS is killed and started again on its port; recovery counts from when it is ready."""
    fault, start_s, restarts_s = "BS killed", time.monotonic(), []
    phases: list[str] = []
    station = Station(folder, slow_s=0.01)
    async with site(station) as found:

        def kill() -> None:
            assert station.child is not None
            station.child.process.kill()

        trigger = Trigger(random.Random(f"{fault}/{seed}"), kill)
        found.postman.decide = trigger.decide
        await found.begin(3, methods=tuple(PROTOCOLS))
        await found.begin(1, methods=(TARGET_ONLY,), at_once=2)
        for _ in range(times):
            phases.append((await trigger.draw(found)).kind)
            killed_s = time.monotonic()
            assert station.child is not None
            await station.child.kill()
            await station.start()
            restarts_s.append(time.monotonic() - killed_s)
            hit = [found.postman.watch(phases[-1], session) for session in found.postman.sessions_of()]
            hit = [fault for fault in hit if found.postman.live[fault.session] != TARGET_ONLY]
            await found.until(lambda hit=hit: all(fault.until_s for fault in hit))  # type: ignore[misc]
        outcome = await judged(fault, seed, found, expected, start_s, len(phases))
    restart = {"restart_median_s": sorted(restarts_s)[len(restarts_s) // 2], "restart_most_s": max(restarts_s)}
    return msgspec.structs.replace(outcome, phases=counted(phases), notes=restart)


async def pass_failed(times: int, seed: int, folder: Path, expected: Reference) -> Outcome:
    """The engine fails in the middle of a pass; recovery counts from there to the pass that verifies the round."""
    fault, start_s = "pass failed", time.monotonic()
    station = Station(folder, fail=0.02, failures=times, seed=seed)
    async with site(station) as found:
        await found.begin(4)
        await found.until(lambda: len(station.events("failed")) >= times)
        outcome = await judged(fault, seed, found, expected, start_s, len(station.events("failed")))
    return msgspec.structs.replace(outcome, **from_log(station))


def from_log(station: Station) -> dict[str, Any]:
    """Phases and recoveries of passes that failed, as the BS's log has them."""
    sizes = Counter(f"pass of {event['requests']:g}" for event in station.events("failed"))
    recovery_s = sorted(event["seconds"] for event in station.events("recovered"))
    passes = {"failed_passes": station.metrics()["failed_passes"], "passes": station.metrics()["passes"]}
    return {"phases": dict(sizes.most_common()), "recovery_s": recovery_s, "notes": passes}


class Pauses:
    """Makes UEs silent or deaf for a while, at most two at once, while the others go on.

    Args:
        least_s, most_s: how long.
        stop, go: what does it to a UE, and what ends it.
        took_effect: whether it was so, asked at the end.
    """

    def __init__(
        self,
        found: Site,
        times: int,
        dice: random.Random,
        bounds_s: tuple[float, float],
        stop: Callable[[bytes], None],
        go: Callable[[bytes], bool],
    ) -> None:
        self._found, self._times, self._dice, self._bounds_s = found, times, dice, bounds_s
        self._stop, self._go = stop, go
        self._paused: set[bytes] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self.phases: list[str] = []
        self.served: list[int] = []
        """Letters that others got in each of them."""

    def begin(self, letter: Letter) -> None:
        """Pause a letter's UE, if it may be."""
        busy = letter.ue in self._paused or len(self._paused) >= 2
        if not busy and len(self.phases) + len(self._paused) < self._times:
            self._paused.add(letter.ue)
            self._stop(letter.ue)
            self._tasks.append(asyncio.create_task(self._end(letter)))

    async def _end(self, letter: Letter) -> None:
        before = self._answers(letter.ue)
        await asyncio.sleep(self._dice.uniform(*self._bounds_s))
        served = self._answers(letter.ue) - before
        if self._go(letter.ue) and served:
            self.phases.append(letter.kind)
            self.served.append(served)
            for session in self._found.postman.sessions_of(letter.ue):
                self._found.postman.watch(letter.kind, session)
        self._paused.discard(letter.ue)

    def _answers(self, apart: bytes) -> int:
        return sum(count for (ue, up), count in self._found.postman.carried.items() if ue != apart and not up)

    async def over(self) -> None:
        """All that were wanted took effect and have ended."""
        await self._found.until(lambda: len(self.phases) >= self._times)
        await asyncio.gather(*self._tasks)


async def ue_silent(times: int, seed: int, folder: Path, expected: Reference) -> Outcome:
    """UEs are stopped when they are asked for hidden states, some for longer than the BS waits for them."""
    fault, start_s, dice = "UE silent before Hidden", time.monotonic(), random.Random(f"silent/{seed}")
    async with site(Station(folder, (*SYNTHETIC, "--idle-s", str(IDLE_S)))) as found:
        said: dict[bytes, int] = {}
        expired: Counter[str] = Counter()

        def stop(ue: bytes) -> None:
            os.kill(found.pid(ue), signal.SIGSTOP)
            asyncio.get_running_loop().call_later(0.1, lambda: said.update({ue: found.postman.carried[ue, True]}))

        def go(ue: bytes) -> bool:
            os.kill(found.pid(ue), signal.SIGCONT)
            return found.postman.carried[ue, True] == said[ue]

        pauses = Pauses(found, times, dice, (0.3, 3.0), stop, go)

        def decide(letter: Letter) -> Order:
            if letter.kind == "Resync":
                expired[letter.message.reason or "unknown"] += 1  # type: ignore[attr-defined]
            if letter.kind == "NeedHidden" and dice.random() < 0.2:
                pauses.begin(letter)
            return AS_IT_IS

        await found.begin(4, methods=("sh", "greedy"))
        found.postman.decide = decide
        await pauses.over()
        outcome = await judged(fault, seed, found, expected, start_s, len(pauses.phases))
    notes = {"resyncs": dict(expired), "least_served": min(pauses.served)}
    return msgspec.structs.replace(outcome, phases=counted(pauses.phases), notes=notes)


async def ue_deaf(times: int, seed: int, folder: Path, expected: Reference) -> Outcome:
    """UEs go on sending, but do not read for a while; the BS's answers wait, and beyond its bound are dropped."""
    fault, start_s, dice = "UE does not read", time.monotonic(), random.Random(f"deaf/{seed}")
    async with site(Station(folder)) as found:
        unread: list[int] = []

        def stop(ue: bytes) -> None:
            found.postman.reading[ue].clear()
            found.postman.unread[ue] = 0

        def go(ue: bytes) -> bool:
            found.postman.reading[ue].set()
            unread.append(found.postman.unread[ue])
            return found.postman.unread[ue] > 0

        pauses = Pauses(found, times, dice, (0.5, 4.0), stop, go)
        aim = Aim(dice)

        def decide(letter: Letter) -> Order:
            if aim.hits(letter):
                pauses.begin(letter)
            return AS_IT_IS

        await found.begin(4)
        found.postman.decide = decide
        await pauses.over()
        outcome = await judged(fault, seed, found, expected, start_s, len(pauses.phases))
    notes = {"least_served": min(pauses.served)}
    return msgspec.structs.replace(outcome, phases=counted(pauses.phases), notes=notes)


async def clock_jumps(times: int, seed: int, folder: Path, expected: Reference) -> Outcome:
    """The date jumps, by half a minute up to two years either way, for the BS and all UEs."""
    fault, start_s, dice = "clock jumps", time.monotonic(), random.Random(f"clock/{seed}")
    wall, station = WallClock(folder), Station(folder)
    station.environment = wall.environment
    jumps: list[str] = []
    async with site(station) as found:
        await found.begin(4)
        at_s = 0
        for _ in range(times):
            await asyncio.sleep(dice.uniform(0.1, 0.5))
            seen, before_s = len(station.events("jumped")), at_s
            at_s = dice.choice([jump_s for jump_s in JUMPS_S if jump_s != at_s])
            wall.set(at_s)
            hit: list[Fault] = [found.postman.watch("jump", session) for session in found.postman.sessions_of()]
            assert hit
            await found.until(lambda seen=seen: len(station.events("jumped")) > seen)  # type: ignore[misc]
            jumps.append("forward" if at_s > before_s else "back")
        outcome = await judged(fault, seed, found, expected, start_s, len(jumps))
        noticed = sum(said["jumped"] for ue in found.ues for said in ue.said)
    notes = {"seen_by_bs": len(station.events("jumped")), "seen_by_ues": noticed}
    return msgspec.structs.replace(outcome, phases=counted(jumps), notes=notes)
