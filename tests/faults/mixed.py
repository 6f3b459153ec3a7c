"""A few of each cheap fault in one short run."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import msgspec

from tests.faults.ends import Pauses
from tests.faults.links import Aim, Outages, delayed, duplicated, judged, lost, reordered
from tests.faults.outcome import Outcome
from tests.faults.site import Site, Station, own, site
from tests.support.faulty_ue import HINTED_METHODS, PROMPTS, STREAMS, prompt_of
from tests.support.postman import AS_IT_IS, Letter, Order
from tests.support.wall_clock import WallClock, wall_clock_available

GREEDY = ("greedy", "fh", "sh", *STREAMS, *HINTED_METHODS)
FAILURES = 3
TIMES = 2
"""Times that each other fault is injected."""
JUMPS_S = (86400, 0)
"""A day forward, and back."""


async def jump(wall: WallClock, found: Site) -> None:
    """Have the date jump, each time until the BS has seen it."""
    for ahead_s in JUMPS_S:
        seen = len(found.station.events("jumped"))
        wall.set(ahead_s)
        await found.until(lambda seen=seen: len(found.station.events("jumped")) > seen)  # type: ignore[misc]


def stopping(found: Site, dice: random.Random) -> Pauses:
    """UEs are stopped for a moment."""

    def stop(ue: bytes) -> None:
        os.kill(found.pid(ue), signal.SIGSTOP)

    def go(ue: bytes) -> bool:
        os.kill(found.pid(ue), signal.SIGCONT)
        return True

    return Pauses(found, TIMES, dice, (0.2, 0.5), stop, go)


async def a_few_of_each(seed: int, folder: Path) -> Outcome:
    """Messages lost, late, twice and overtaken, links down, UEs stopped, passes that fail, dates that jump (where there
    is a compiler), all in one run of methods whose output is the target's own.
    """
    start_s, dice = time.monotonic(), random.Random(f"mixed/{seed}")
    station = Station(folder, fail=0.05, failures=FAILURES)
    wall = None if wall_clock_available() else WallClock(folder)
    station.environment = {} if wall is None else wall.environment
    fates = [lost, delayed, duplicated, reordered] * TIMES
    async with site(station) as found:
        outages = Outages(found, 0.1, TIMES, dice)
        pauses, aim = stopping(found, dice), Aim(dice, among=3)

        def decide(letter: Letter) -> Order:
            down = outages.decide(letter)
            if down != AS_IT_IS:
                return down
            if letter.kind == "NeedHidden":
                pauses.begin(letter)
            return fates.pop()(dice) if fates and aim.hits(letter) else AS_IT_IS

        await found.begin(2, methods=GREEDY)
        found.postman.decide = decide
        await outages.over()
        await pauses.over()
        if wall is not None:
            await jump(wall, found)
        await found.until(lambda: not fates and len(station.events("failed")) == FAILURES)
        struck = sum(fault.happened for fault in found.postman.faults)
        jumps = len(station.events("jumped"))
        injected = outages.begun + len(pauses.phases) + 4 * TIMES + FAILURES + jumps
        expected = {(method, number): own(prompt_of(number)) for method in GREEDY for number in range(PROMPTS)}
        outcome = await judged("a few of each", seed, found, expected, start_s, injected)
    notes = {"letters": struck, "outages": outages.begun, "pauses": len(pauses.phases), "jumps": jumps or wall is None}
    return msgspec.structs.replace(outcome, notes={**notes, "stopped": dict(outages.stopped)})
