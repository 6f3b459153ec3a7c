"""Heartbeat of an event loop: the longest time in which it ran nothing else, by three clocks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

EVERY_S = 0.005
THREADS = Path("/proc/self/task")
"""Threads of this process; `schedstat` of each has its time on a CPU and its time runnable without one, in ns."""


class Stall(NamedTuple):
    """Longest stalls of an event loop, in seconds."""

    cpu_s: float = 0.0
    """CPU time of the loop's thread: what it computed itself, whatever else the machine runs."""
    running_s: float = 0.0
    """Time in which the process computed, or which no wait of its threads for a CPU explains: waits for files and locks
    count, waits for a thread that holds the interpreter's lock and has no CPU do not.
    """
    wall_s: float = 0.0
    """Time by the clock."""

    def __str__(self) -> str:
        """The three times in milliseconds."""
        cpu, running, wall = (f"{seconds * 1e3:.0f}" for seconds in self)
        return f"{cpu} ms of CPU time, {running} ms without waits for a CPU, {wall} ms by the clock"


def run_undelayed() -> None:
    """Have this process run before all others of the machine, where that is allowed, so that it waits for no CPU.

    Linux does not account for all waits: on 6.18, threads that slept 5 ms at a time on a loaded core were late by
    hundreds of milliseconds that `schedstat` does not know of, and real-time threads on the same core were not.
    """
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def longest(stalls: Iterable[Stall]) -> Stall:
    """The longest by each clock."""
    return Stall(*map(max, zip(*stalls, strict=True)))


class Moment(NamedTuple):
    """Clocks of one moment, in seconds."""

    clock_s: float
    thread_s: float
    """CPU time of the loop's thread."""
    process_s: float
    """CPU time of all threads."""
    waited_s: Mapping[int, float]
    """Time that each running thread has waited for a CPU since it began; empty where the system does not tell."""

    @classmethod
    def now(cls) -> Moment:
        """This moment."""
        return cls(time.perf_counter(), time.thread_time(), time.process_time(), _waited_s())

    def later(self, begun: Moment, ended: Moment) -> Moment:
        """This moment, as much later by each clock as it was between two others."""
        waited_s = {
            thread: waited_s + ended.waited_s.get(thread, 0.0) - begun.waited_s.get(thread, 0.0)
            for thread, waited_s in self.waited_s.items()
        }
        clocks = (at + end - begin for at, begin, end in zip(self[:3], begun[:3], ended[:3], strict=True))
        return Moment(*clocks, waited_s)


class Heartbeat:
    """Measures stalls of the loop that it runs on.

    Attributes:
        beats: number of beats.
        stall: longest stalls so far.
    """

    def __init__(self) -> None:
        self.beats, self.stall = 0, Stall()
        self._before = Moment.now()

    async def beat(self) -> None:
        """Measure until cancelled."""
        self._before = Moment.now()
        while True:
            await asyncio.sleep(EVERY_S)
            now = Moment.now()
            self.stall, self.beats = longest([self.stall, stall(self._before, now)]), self.beats + 1
            self._before = now

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Leave out what the test itself computes in the loop."""
        begun = Moment.now()
        try:
            yield
        finally:
            self._before = self._before.later(begun, Moment.now())


def stall(before: Moment, now: Moment) -> Stall:
    """The stall between two beats."""
    late_s = now.clock_s - before.clock_s - EVERY_S
    waits_s = {thread: waited_s - before.waited_s.get(thread, 0.0) for thread, waited_s in now.waited_s.items()}
    runnable_s = late_s - waits_s.get(threading.get_native_id(), 0.0)
    computed_s = min(now.process_s - before.process_s, runnable_s)
    unexplained_s = late_s - sum(waits_s.values())
    return Stall(now.thread_s - before.thread_s, max(computed_s, unexplained_s), late_s)


def _waited_s() -> dict[int, float]:
    found = {}
    with contextlib.suppress(OSError):
        for thread in os.listdir(THREADS):
            with contextlib.suppress(OSError, IndexError):  # a thread that ended meanwhile
                found[int(thread)] = int((THREADS / thread / "schedstat").read_text().split()[1]) * 1e-9
    return found
