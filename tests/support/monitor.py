"""A base station and its live view, connected by a pair of sockets, on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

from testbed.bs.monitor.client import LOADING, SERVING, MonitoredStation
from testbed.bs.monitor.process import Monitor
from testbed.bs.monitor.recent import Recent
from testbed.bs.monitor.source import Counted, Source
from testbed.bs.monitor.wire import MonitorServing
from testbed.bs.observer import RecentActivity
from testbed.bs.sessions import SessionTable
from testbed.tasks import Background
from tests.bs.monitor.test_recent import one, opened, told


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[tuple[Monitor, MonitoredStation]]:
    """The base station's end and the live view's; the base station does not serve yet."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=theirs)
    station, monitor = MonitoredStation(reader, writer), Monitor(ours, "")
    listening = asyncio.create_task(station.listen())
    try:
        yield monitor, station
    finally:
        await monitor.detach()
        monitor.close()
        await asyncio.wait_for(listening, 10)
        writer.close()
        await writer.wait_closed()


class Served:
    """Recent activity of a base station, and the times at which it was read."""

    def __init__(self) -> None:
        self.table = SessionTable()
        self.recent = Recent(self.table, text=True)
        self.session = opened(self.table, 0)
        self.looks: list[float] = []
        self.counts = 0
        self.failing: list[str] = []
        self.background = Background()
        self.delay_s = 0.0
        """CPU time per read."""

    def source(self, **said: Any) -> Source:
        """The source of the live view's data."""
        serving = MonitorServing({"model": "m"}, True, **said)
        return Source(look=self.look, count=self.count, failing=lambda: self.failing, serving=serving)

    def look(self, rounds: int, passes: int) -> RecentActivity:
        """Read the recent activity; takes `delay_s`."""
        self.looks.append(asyncio.get_running_loop().time())
        until_s = time.thread_time() + self.delay_s
        while time.thread_time() < until_s:
            pass
        return self.recent.look(rounds, passes, 5.0)

    def count(self) -> Counted:
        """Read the counters, and count the reads."""
        self.counts += 1
        return {}, self.recent.tally()

    def round(self) -> None:
        """Record a finished round."""
        self.recent.round(self.session, one(), told())


@contextlib.asynccontextmanager
async def serving(**said: Any) -> AsyncIterator[tuple[Served, Monitor, MonitoredStation]]:
    """A serving base station, and its live view."""
    served = Served()
    async with connected() as (monitor, station):
        await monitor.attach(served.source(**said), served.background)
        await changed(station, LOADING, SERVING)
        yield served, monitor, station


async def changed(station: MonitoredStation, before: str, after: str) -> None:
    """Wait until the station's state changes."""
    deadline_s = time.monotonic() + 20
    while station.state == before and time.monotonic() < deadline_s:
        await asyncio.sleep(0.001)
    assert station.state == after
