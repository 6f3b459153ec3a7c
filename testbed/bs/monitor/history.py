"""Load of a base station over hours: a point every ten seconds, kept in the live view's process."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from testbed.bs.monitor.client import MonitoredStation
from testbed.bs.monitor.source import Counted

INTERVAL_S = 10.0
"""Time between two points."""
MOST = 6 * 360
"""Points kept: six hours."""


class HistoryPoint(NamedTuple):
    """Means over one interval."""

    at_s: float
    """End of the interval, on the clock of the live view's process."""
    sessions: int
    rounds_per_s: float
    tokens_per_s: float
    pass_s: float | None
    """Mean time of a pass; None: there was none."""
    busy: float
    """Share of the time in passes."""


class History:
    """Points so far, made from the differences of counters; the counters are read whether or not there are viewers."""

    def __init__(self) -> None:
        self.points: deque[HistoryPoint] = deque(maxlen=MOST)
        self.count = 0
        """Points made so far."""
        self._before: tuple[float, Counted] | None = None

    def since(self, count: int) -> list[HistoryPoint]:
        """Points after the first `count`, as far as they are kept."""
        fresh = min(self.count - count, len(self.points))
        return list(self.points)[len(self.points) - fresh :] if fresh > 0 else []

    def add(self, at_s: float, counted: Counted) -> None:
        """Read counters at this time; the first reading makes no point."""
        if self._before is not None:
            self.points.append(_point(self._before, (at_s, counted)))
            self.count += 1
        self._before = at_s, counted

    async def run(self, station: MonitoredStation) -> None:
        """Add a point every `INTERVAL_S` until cancelled; a base station that does not serve has none."""
        loop = asyncio.get_running_loop()
        while True:
            counted = await station.count()
            if counted is None:
                self._before = None
            else:
                self.add(loop.time(), counted)
            await asyncio.sleep(INTERVAL_S)


def _point(before: tuple[float, Counted], after: tuple[float, Counted]) -> HistoryPoint:
    (from_s, (old, old_sums)), (to_s, (new, new_sums)) = before, after
    span_s = max(1e-9, to_s - from_s)
    passes, busy_s = new["passes"] - old["passes"], new["busy_s"] - old["busy_s"]
    return HistoryPoint(
        to_s,
        new["sessions"],
        (new["rounds"] - old["rounds"]) / span_s,
        (new_sums.committed - old_sums.committed) / span_s,
        busy_s / passes if passes else None,
        min(1.0, busy_s / span_s),
    )
