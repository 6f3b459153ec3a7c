"""A base station as its live view's process sees it: asked, silent, closing, gone."""

from __future__ import annotations

import asyncio
import time

import pytest

from testbed.bs.monitor.client import CLOSING, FRESH_S, LOADING, SERVING
from testbed.bs.monitor.record_ring import rounds
from tests.support.monitor import Served, changed, connected, serving


async def test_what_it_answers_is_what_it_was_asked_for() -> None:
    async with serving() as (served, _, station):
        for _ in range(3):
            served.round()
        look = await station.look(1, 0)
        assert look is not None and [note.number for note in rounds(look)] == [2, 3] and look.sessions == 1
        assert await station.live() == []
        counted = await station.count()
        assert counted is not None and counted[1] == served.recent.tally()
        assert counted[1].drafted == 12


async def test_before_it_serves_nothing_is_asked_and_nobody_waits() -> None:
    async with connected() as (monitor, station):
        assert (station.state, await station.live(), await station.look(0, 0)) == (LOADING, None, None)
        served = Served()
        await monitor.attach(served.source(), served.background)
        await changed(station, LOADING, SERVING)
        assert await station.live() == []  # what was said a moment ago does not stand


async def test_who_asks_more_often_than_ten_times_a_second_is_told_the_same() -> None:
    async with serving() as (served, _, station):
        begun_s = time.monotonic()
        for _ in range(200):
            assert await station.count() is not None
        assert served.counts <= 1 + (time.monotonic() - begun_s) / FRESH_S
        await asyncio.gather(*(station.count() for _ in range(100)))
        await asyncio.sleep(2 * FRESH_S)
        before = served.counts
        await station.count()
        assert served.counts == before + 1


async def test_a_base_station_that_closes_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.bs.monitor.source.answer", lambda *_: time.sleep(0.2))
    async with serving() as (_, monitor, station):
        asking = asyncio.create_task(station.look(0, 0))
        await asyncio.sleep(0)
        await monitor.detach()
        assert await asyncio.wait_for(asking, 20) is None and station.state == CLOSING
        assert await station.live() is None


async def test_a_base_station_that_is_gone_is_noticed() -> None:
    async with serving() as (_, monitor, station):
        assert monitor._writer is not None
        monitor._writer.transport.abort()
        monitor.close()
        await changed(station, SERVING, CLOSING)
        assert await station.look(0, 0) is None


async def test_a_base_station_whose_loop_stands_still_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.bs.monitor.client.ASK_S", 0.05)
    async with serving() as (served, monitor, station):
        assert monitor._answering is not None
        monitor._answering.cancel()
        assert (await station.live(), await station.look(0, 0)) == (None, None)
        assert station.state == SERVING and served.looks == []


async def test_a_question_that_fails_is_answered_by_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as (served, _, station):
        monkeypatch.setattr(served.recent, "look", lambda *_: 1 / 0)
        assert await station.look(0, 0) is None
        assert "failed" in caplog.text
        monkeypatch.undo()
        assert await station.look(0, 0) is not None


async def test_a_live_view_that_has_ended_is_said_once_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as (served, monitor, station):
        station._writer.close()
        assert monitor._answering is not None
        await asyncio.wait_for(monitor._answering, 20)
        assert served.background.failures == {"live view": 1}
    assert [record.message for record in caplog.records] == ["live view has ended"]


async def test_answers_go_on_after_a_question_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task that answers ended unseen."""
    monkeypatch.setattr("testbed.tasks.RESTART_S", 0.01)
    async with serving() as (served, _, station):
        station._writer.write((3).to_bytes(4, "little") + b"\xc1\xc1\xc1")
        assert await station.live() == []
        assert served.background.failures == {"live view": 1} and served.background.failing == ["live view"]
