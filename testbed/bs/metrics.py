"""Counters of a base station, and the metrics file."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from testbed.bs.observer import FinishedPass
from testbed.clock import Clock
from testbed.errors import BadInput

LOG = logging.getLogger(__name__)
MOST_SPEEDS = 64
"""Speeds with a counter of their own; UEs may ask for any speed."""
OTHERS = 0.0
"""Key of all further speeds."""
ERROR_MEMORY = 0.98
"""Decay per pass of the estimator's running error."""


class Metrics:
    """Counters since the start."""

    def __init__(self) -> None:
        self.passes = self.rounds = self.pieces = 0
        self.failed_passes = 0
        self.failed_sessions = self.failed_updates = 0
        """Sessions closed, and updates of estimates dropped, after an internal error."""
        self.sizes: Counter[int] = Counter()
        """Passes by number of requests."""
        self.busy_s = 0.0
        """Time in passes."""
        self.computed_tokens = self.cached_tokens = self.evicted_tokens = 0
        """Positions that passes computed, found in the prefix cache, and expected there but did not find."""
        self.promised: Counter[float] = Counter()
        self.missed: Counter[float] = Counter()
        """Rounds with a guaranteed speed, and those verified after their deadline, by speed; 0: all further speeds."""
        self.refused: Counter[float] = Counter()
        """Sessions refused by admission, by the speed they asked for."""
        self.error: float | None = None
        """Running mean of |T̂ − T| / T; None without an estimator."""

    def add_pass(self, done: FinishedPass) -> None:
        """Count a pass, or several in a row."""
        self.passes += done.passes
        self.rounds += done.rounds * done.passes
        self.pieces += len(done.works) - done.rounds
        self.sizes[len(done.works)] += done.passes
        self.busy_s += done.seconds
        for work in done.works:
            self.computed_tokens += work.new
            self.cached_tokens += work.cached
        self.evicted_tokens += done.evicted
        if done.expected_s is not None and done.seconds > 0:
            self._add_error(abs(done.expected_s - done.seconds) / done.seconds)

    def _add_error(self, error: float) -> None:
        self.error = error if self.error is None else ERROR_MEMORY * self.error + (1 - ERROR_MEMORY) * error

    def add_promised(self, speed_tps: float, late: bool) -> None:
        """Count a verified round with a guaranteed speed."""
        speed_tps = _counted(self.promised, speed_tps)
        self.promised[speed_tps] += 1
        self.missed[speed_tps] += late

    def add_refused(self, speed_tps: float) -> None:
        """Count a session refused by admission."""
        self.refused[_counted(self.refused, speed_tps)] += 1

    def snapshot(self) -> dict[str, Any]:
        """All counters, for JSON."""
        return {
            "passes": self.passes,
            "failed_passes": self.failed_passes,
            "failed_sessions": self.failed_sessions,
            "failed_updates": self.failed_updates,
            "rounds": self.rounds,
            "pieces": self.pieces,
            "batch_sizes": {str(size): count for size, count in sorted(self.sizes.items())},
            "busy_s": self.busy_s,
            "computed_tokens": self.computed_tokens,
            "cached_tokens": self.cached_tokens,
            "evicted_tokens": self.evicted_tokens,
            "promised_rounds": by_speed(self.promised),
            "missed_deadlines": by_speed(self.missed),
            "refused_sessions": by_speed(self.refused),
            "estimate_mape": self.error,
        }


def _counted(counts: Counter[float], speed_tps: float) -> float:
    """The key under which a speed is counted."""
    return speed_tps if speed_tps in counts or len(counts) < MOST_SPEEDS else OTHERS


def by_speed(counts: Mapping[float, int]) -> dict[str, int]:
    """Counts by speeds of six digits."""
    found = Counter[str]()
    for speed, count in sorted(counts.items()):
        found[f"{speed:g}"] += count
    return dict(found)


class MetricsFile:
    """Appends whole lines of JSON, also to those of an earlier process.

    Raises:
        BadInput: the file cannot be written, or the interval is not positive.
    """

    def __init__(self, path: Path, interval_s: float = 1.0) -> None:
        if not 0.01 <= interval_s <= 86_400:
            raise BadInput(f"metrics are written every 0.01 s to 86400 s, not {interval_s:g}")
        self._interval_s = interval_s
        self._beside: dict[str, Callable[[], dict[str, Any]]] = {}
        self._start_s: float | None = None
        self._before_s = self._busy_s = 0.0
        """Time of the last line, and the engine's busy time then."""
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as exc:
            raise BadInput(f"cannot write {path}: {exc.strerror}") from exc

    def add(self, name: str, snapshot: Callable[[], dict[str, Any]]) -> None:
        """Add the result of `snapshot` to every line, under this name."""
        self._beside[name] = snapshot

    async def keep(self, snapshot: Callable[[], dict[str, Any]], clock: Clock) -> None:
        """Write a line every interval until cancelled, and a last one then; busy_share covers the interval.

        It may be called again after an error: times go on.
        """
        if self._start_s is None:
            self._start_s = self._before_s = clock.time()
        try:
            while True:
                await clock.sleep(self._interval_s)
                self._write(snapshot(), clock.time(), self._start_s)
        except asyncio.CancelledError:
            self._write(snapshot(), clock.time(), self._start_s)
            raise

    def _write(self, found: dict[str, Any], now_s: float, start_s: float) -> None:
        past_s = now_s - self._before_s
        share = min(1.0, (found["busy_s"] - self._busy_s) / past_s) if past_s > 0 else 0.0
        beside = {name: snapshot() for name, snapshot in self._beside.items()}
        self._append(json.dumps({"t_s": now_s - start_s, "busy_share": share, **found, **beside}).encode() + b"\n")
        self._before_s, self._busy_s = now_s, found["busy_s"]

    def _append(self, line: bytes) -> None:
        """Write a line, or drop it if the disk is full: serving continues without it."""
        written = 0
        try:
            if (written := self._file.write(line)) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as exc:
            LOG.warning("cannot write %s: %s", self._file.name, exc.strerror or exc)
            if written:
                with contextlib.suppress(OSError):
                    self._file.truncate(self._file.tell() - written)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
