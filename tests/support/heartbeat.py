"""Heartbeat of an event loop: the longest time in which it ran nothing else, by three clocks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

EVERY_S = 0.005
SCHEDULED = Path("/proc/thread-self/schedstat")
"""Time on a CPU and time runnable without one, in ns, of this thread."""


class Stall(NamedTuple):
    """Longest stalls of an event loop, in seconds."""

    cpu_s: float = 0.0
    """CPU time of the loop's thread: what it computed itself, whatever else the machine runs."""
    running_s: float = 0.0
    """Time without that in which the thread waited for a CPU; waits for files and locks count."""
    wall_s: float = 0.0
    """Time by the clock."""

    def __str__(self) -> str:
        """In milliseconds."""
        cpu, running, wall = (f"{seconds * 1e3:.0f}" for seconds in self)
        return f"{cpu} ms of CPU time, {running} ms without waits for a CPU, {wall} ms by the clock"


def longest(stalls: Iterable[Stall]) -> Stall:
    """The longest by each clock."""
    return Stall(*map(max, zip(*stalls, strict=True)))


class Heartbeat:
    """Measures stalls of the loop that it runs on.

    Attributes:
        beats: number of beats.
        stall: longest stalls so far.
    """

    def __init__(self) -> None:
        self.beats, self.stall = 0, Stall()

    async def beat(self) -> None:
        """Measure until cancelled."""
        before = _now()
        while True:
            await asyncio.sleep(EVERY_S)
            now = _now()
            cpu_s, waited_s, passed_s = (late - early for late, early in zip(now, before, strict=True))
            stall = Stall(cpu_s, passed_s - EVERY_S - waited_s, passed_s - EVERY_S)
            self.stall, self.beats, before = longest([self.stall, stall]), self.beats + 1, now


def _now() -> tuple[float, float, float]:
    """CPU time of this thread, its time runnable without a CPU, and the clock, in seconds."""
    return time.thread_time(), _waited_s(), time.perf_counter()


def _waited_s() -> float:
    """Time that this thread has waited for a CPU since it began; 0 where the system does not tell."""
    try:
        return int(SCHEDULED.read_text().split()[1]) * 1e-9
    except (OSError, IndexError):
        return 0.0
