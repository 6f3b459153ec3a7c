"""Faults of the link: messages lost, delayed, duplicated, reordered; outages."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from tests.faults.outcome import Outcome, compare, counted
from tests.faults.site import Job, Site, Station, site
from tests.support.postman import AS_IT_IS, Letter, Order

Reference = Mapping[Job, list[int]]
WEIGHTS = {"Open": 2, "Draft": 4, "Hidden": 2, "Close": 1, "Opened": 1, "NeedHidden": 2, "Verdict": 4}
GREETINGS = ("Hello", "Welcome")
RESENT_S = 2.1
"""After which a UE has sent its window again."""


def lost(dice: random.Random) -> Order:
    """The message does not arrive."""
    return Order(copies=0)


def delayed(dice: random.Random) -> Order:
    """The message is late; one in five is sent again meanwhile."""
    return Order(delay_s=dice.uniform(RESENT_S, 3.0) if dice.random() < 0.2 else dice.uniform(0.02, 0.5))


def duplicated(dice: random.Random) -> Order:
    """The message arrives twice, at once or after later ones of its session."""
    return Order(copies=2, behind=dice.choice((0, 0, 1, 2, 4)))


def reordered(dice: random.Random) -> Order:
    """Later ones of its session overtake it."""
    return Order(behind=dice.randint(1, 3))


class Aim:
    """Picks letters: a kind of message at random, and of that kind one of the next, so that all kinds are hit."""

    def __init__(self, dice: random.Random, among: int = 6) -> None:
        self._dice, self._among = dice, among
        self._greeted: set[tuple[bytes, str]] = set()
        self._choose()

    def _choose(self) -> None:
        self._kind = self._dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        self._left = self._dice.randrange(self._among)

    def hits(self, letter: Letter) -> bool:
        """Whether this is the one; greetings, which come once, are hit every other time."""
        if letter.kind in GREETINGS:
            first = (letter.ue, letter.kind) not in self._greeted
            self._greeted.add((letter.ue, letter.kind))
            return first and self._dice.random() < 0.5
        if letter.kind != self._kind:
            return False
        self._left -= 1
        if self._left >= 0:
            return False
        self._choose()
        return True


async def judged(fault: str, seed: int, found: Site, expected: Reference, start_s: float, injected: int) -> Outcome:
    """Let the UEs end, and hold their outputs against what they should be."""
    outputs, differing = compare(await found.finish(), expected)
    faults = [fault for fault in found.postman.faults if fault.happened]
    return Outcome(
        fault=fault,
        seed=seed,
        injected=injected,
        phases=counted(fault.kind for fault in faults),
        outputs=outputs,
        differing=differing,
        recovery_s=sorted(fault.recovery_s for fault in faults if fault.recovery_s is not None),
        took_s=time.monotonic() - start_s,
    )


async def messages(
    how: Callable[[random.Random], Order], times: int, seed: int, folder: Path, expected: Reference
) -> Outcome:
    """Apply one fault to a number of messages of all kinds and both directions."""
    fault, start_s = f"messages {how.__name__}", time.monotonic()
    dice = random.Random(f"{fault}/{seed}")
    async with site(Station(folder)) as found:
        aim, faults = Aim(dice), found.postman.faults

        def happened() -> int:
            return sum(fault.happened for fault in faults)

        found.postman.decide = lambda letter: how(dice) if aim.hits(letter) and happened() < times else AS_IT_IS
        await found.begin(4)
        await found.until(lambda: happened() >= times)
        found.postman.decide = lambda letter: AS_IT_IS
        injected = happened()
        return await judged(fault, seed, found, expected, start_s, injected)


class Outages:
    """Takes UEs' links down, each on its own, at letters picked at random.

    Every other outage loses what is sent, as where the radio is gone; the others keep it back, as TCP does.
    """

    def __init__(self, found: Site, seconds: float, times: int, dice: random.Random) -> None:
        self._found, self._seconds, self._times, self._dice = found, seconds, times, dice
        self._ends: dict[bytes, tuple[float, bool]] = {}
        self._left: dict[bytes, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.phases: Counter[str] = Counter()
        self.stopped: Counter[str] = Counter()
        """Letters that an outage lost or held."""

    @property
    def begun(self) -> int:
        """Outages so far."""
        return self.phases.total()

    def decide(self, letter: Letter) -> Order:
        """The order for a letter."""
        now_s, ue = time.monotonic(), letter.ue
        if ue not in self._ends and self.begun < self._times:
            left = self._left.setdefault(ue, self._dice.randint(5, 30))
            self._left[ue] = left - 1
            if left == 0:
                self._begin(letter, now_s)
        if ue not in self._ends:
            return AS_IT_IS
        end_s, loses = self._ends[ue]
        self.stopped["lost" if loses else "held"] += 1
        return Order(copies=0, counted=False) if loses else Order(delay_s=max(0.0, end_s - now_s), counted=False)

    def _begin(self, letter: Letter, now_s: float) -> None:
        self._ends[letter.ue] = (now_s + self._seconds, self.begun % 2 == 0)
        self.phases[letter.kind] += 1
        self._tasks.append(asyncio.create_task(self._end(letter)))

    async def _end(self, letter: Letter) -> None:
        await asyncio.sleep(self._seconds)
        del self._ends[letter.ue]
        self._left[letter.ue] = self._dice.randint(10, 30)
        for session in self._found.postman.sessions_of(letter.ue):
            self._found.postman.watch(letter.kind, session)

    async def over(self) -> None:
        """All that were wanted have ended."""
        await self._found.until(lambda: self.begun >= self._times)
        await asyncio.gather(*self._tasks)


async def link_down(seconds: float, times: int, seed: int, folder: Path, expected: Reference) -> Outcome:
    """Links go down for so long; recovery counts from when they are back."""
    fault, start_s = f"link down {seconds:g} s", time.monotonic()
    async with site(Station(folder)) as found:
        outages = Outages(found, seconds, times, random.Random(f"{fault}/{seed}"))
        found.postman.decide = outages.decide
        await found.begin(8, at_once=2)
        await outages.over()
        outcome = await judged(fault, seed, found, expected, start_s, outages.begun)
    return msgspec.structs.replace(
        outcome, phases=counted(outages.phases.elements()), notes={"letters": dict(outages.stopped)}
    )
