"""Points of the live view over minutes and hours: differences of counters, bounded, and none across a restart."""

from __future__ import annotations

import asyncio

import pytest

from testbed.bs.monitor import history as module
from testbed.bs.monitor.history import MOST, History, HistoryPoint
from testbed.bs.monitor.source import Counted
from testbed.bs.observer import RoundSums
from tests.support.monitor import Served, serving


def counted(sessions: int, rounds: int, committed: int, passes: int, busy_s: float) -> Counted:
    sums = RoundSums(0, 0, committed, 0, {}, [], 0.0)
    return {"sessions": sessions, "rounds": rounds, "passes": passes, "busy_s": busy_s}, sums


def test_a_point_is_the_mean_over_its_interval() -> None:
    history = History()
    history.add(100.0, counted(2, 10, 40, 8, 1.0))
    assert not history.points
    history.add(110.0, counted(3, 60, 240, 28, 3.0))
    history.add(120.0, counted(0, 60, 240, 28, 3.0))
    assert list(history.points) == [
        HistoryPoint(110.0, 3, 5.0, 20.0, 0.1, 0.2),
        HistoryPoint(120.0, 0, 0.0, 0.0, None, 0.0),
    ]
    assert history.since(1) == [history.points[1]] and history.since(2) == []


def test_six_hours_are_kept() -> None:
    history = History()
    for i in range(MOST + 50):
        history.add(10.0 * i, counted(1, i, i, i, 0.1 * i))
    assert len(history.points) == MOST == 6 * 3600 / module.INTERVAL_S
    assert len(history.since(0)) == MOST and history.count == MOST + 49


async def test_points_are_made_without_viewers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 0.15)
    monkeypatch.setattr(Served, "count", lambda self: counted(1, 0, 0, 0, 0.0))
    history = History()
    async with serving() as (served, _, station):
        running = asyncio.create_task(history.run(station))
        for _ in range(200):
            if history.count >= 2:
                break
            await asyncio.sleep(0.02)
        running.cancel()
    assert history.count >= 2 and history.points[0].sessions == 1 and not served.looks
