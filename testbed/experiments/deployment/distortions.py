"""What distorts the times of a run with processes, and is warned of: processes that stood still, as when they or the
machine were suspended, that were late, or whose models are slower than the profiles; and rounds of other programs.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from testbed.clock import Clock
from testbed.process.children import is_stopped

LOG = logging.getLogger(__name__)
W = TypeVar("W", bound="_WatchingThread")
STILL = "still_s"
"""Field of `summary.json` of a run: longest standstill of the UE, if that distorts it."""
BEAT_S = 0.1
"""Time between two beats of a process that runs."""
TOLD_S, TOLD_SHARE, LEAST_LATE_S = 1.0, 0.02, 0.1
"""Standstill, and share of passes' or drafters' times by which they took longer, from which a run is warned of."""


class Heartbeat:
    """Beats in an event loop.

    Attributes:
        still_s: longest standstill of the loop so far: the largest lateness of a beat.
        late_s: latenesses of all beats.
    """

    def __init__(self) -> None:
        self.still_s = self.late_s = 0.0

    async def run(self, clock: Clock, from_s: float) -> None:
        """Beat from a time on, until cancelled."""
        due_s = max(from_s, clock.time())
        while True:
            await clock.sleep(max(0.0, due_s - clock.time()))
            now_s = clock.time()
            self.still_s, self.late_s = max(self.still_s, now_s - due_s), self.late_s + now_s - due_s
            due_s = now_s + BEAT_S


class _WatchingThread(ABC):
    """Looks for standstills in a thread while the block runs.

    Attributes:
        still_s: the longest one so far.
    """

    def __init__(self) -> None:
        self.still_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self: W) -> W:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @abstractmethod
    def _watch(self) -> None:
        """Look until the block ends."""


class BeatingThread(_WatchingThread):
    """Beats: a standstill of this process is the lateness of a beat."""

    def _watch(self) -> None:
        due_s = time.monotonic() + BEAT_S
        while not self._ended.wait(max(0.0, due_s - time.monotonic())):
            now_s = time.monotonic()
            self.still_s, due_s = max(self.still_s, now_s - due_s), now_s + BEAT_S


class StoppedWatch(_WatchingThread):
    """Looks every `BEAT_S` whether one of other processes is stopped (SIGSTOP): of those that do not tell it."""

    def __init__(self, pids: Sequence[int]) -> None:
        super().__init__()
        self._since_s: dict[int, float | None] = dict.fromkeys(pids)

    def _watch(self) -> None:
        while not self._ended.wait(BEAT_S):
            now_s = time.monotonic()
            for pid, since_s in self._since_s.items():
                begun_s = self._since_s[pid] = (since_s or now_s) if is_stopped(pid) else None
                self.still_s = max(self.still_s, now_s - (begun_s or now_s))


@contextlib.contextmanager
def standstill_told(name: str, *pids: int) -> Iterator[StoppedWatch]:
    """Log how long one of these processes was stopped (SIGSTOP) while the block ran, if that distorts a run."""
    with StoppedWatch(pids) as watch:
        yield watch
    warn_stood(name, watch.still_s)


@contextlib.contextmanager
def own_standstill_told() -> Iterator[BeatingThread]:
    """Log how long this process stood still while the block ran (SIGSTOP, Ctrl-Z), if that distorts a run."""
    with BeatingThread() as beat:
        yield beat
    warn_stood("this command", beat.still_s)


def metrics_still_s(metrics: Path, interval_s: float, from_s: float, to_s: float) -> float:
    """Longest standstill of a base station: the largest lateness of a line of its metrics file.

    Args:
        interval_s: time between two lines.
        from_s, to_s: begin and end (`t_s`); a standstill counts whole if some of it is within.
    """
    lines = metrics.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()  # without one that is being written
    times_s = [json.loads(line)["t_s"] for line in lines]
    within = [(before, after) for before, after in pairwise(times_s) if after > from_s and before < to_s]
    return max((after - before - interval_s for before, after in within), default=0.0)


def warn_still(command_s: float, radio_s: float, stations_s: Sequence[float], ues_s: Sequence[float]) -> None:
    """Log the standstills that distort a run: of the command, of the radio, of each base station and of the UEs."""
    names = ["the base station"] if len(stations_s) == 1 else [f"base station {n}" for n in range(len(stations_s))]
    for name, still_s in [("this command", command_s), ("the radio", radio_s), *zip(names, stations_s, strict=True)]:
        warn_stood(name, still_s)
    if still := [one_s for one_s in ues_s if one_s > TOLD_S]:
        LOG.warning(
            "%d of %d UEs stood still for up to %.1f s during the run; rates and times include that",
            len(still), len(ues_s), max(still),
        )  # fmt: skip


def warn_stood(name: str, still_s: float) -> None:
    """Log the standstill of one process, if it distorts a run."""
    if still_s > TOLD_S:
        LOG.warning("%s stood still for %.1f s during the run; its rates and times include that", name, still_s)


def warn_others(served: int, asked: int, ues: int) -> None:
    """Log rounds of other programs.

    Args:
        served: rounds that base stations verified.
        asked: rounds of the run's UEs, but for those at its begin and end.
        ues: number of UEs.
    """
    if served - asked > 2 * ues + TOLD_SHARE * asked:
        LOG.warning(
            "%d rounds were verified, and the UEs of this run had %d: other programs use its base stations; "
            "rates and times include that",
            served, asked,
        )  # fmt: skip


def warn_busy(late_s: Sequence[float], seconds: float) -> None:
    """Log that timers of processes fire late: times for which passes and drafters wait do not show that.

    Args:
        late_s: latenesses of all beats of each process.
        seconds: in which they beat.
    """
    if (worst_s := max(late_s, default=0.0)) > TOLD_SHARE * seconds:
        LOG.warning(
            "timers of a process were late by %.1f s in %.1f s, as on a busy machine or while a drafter computes; "
            "rates and times include that",
            worst_s, seconds,
        )  # fmt: skip


def warn_slow(name: str, late_s: float, all_s: float) -> None:
    """Log what passes or drafters took longer than the profiles say, out of all their time, if that distorts a run."""
    if late_s > max(LEAST_LATE_S, TOLD_SHARE * all_s):
        LOG.warning(
            "%s took %.1f s longer than the profile's, in %.1f s; rates and times include that", name, late_s, all_s
        )


def warn_late(ready_s: Sequence[float], warmup_s: float) -> None:
    """Log UEs that were ready after the warm-up; times are from the start."""
    if late := [one_s for one_s in ready_s if one_s > warmup_s]:
        LOG.warning(
            "%d of %d UEs were ready after the warm-up, up to %.1f s after the start; give a longer warmup_s",
            len(late), len(ready_s), max(late),
        )  # fmt: skip
