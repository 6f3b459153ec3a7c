"""The live view after an hour and more of load: its charts hold every span, in a browser."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import AsyncIterator

import pytest
import uvicorn

from testbed.bs.monitor.app import make_app
from testbed.bs.monitor.feed import Feed
from testbed.bs.monitor.history import INTERVAL_S, History
from testbed.bs.observer import RoundSums
from tests.support.browser import page
from tests.support.monitor import serving

HOURS = 2
INK = """(id) => {
  const canvas = document.getElementById(id), { width, height } = canvas;
  const shown = canvas.getContext("2d").getImageData(0, 0, width, height).data;
  const columns = [];
  for (let x = 0; x < width; x++) {
    for (let y = 0; y < height; y++) {
      const at = 4 * (y * width + x), [r, g, b, a] = shown.slice(at, at + 4);
      if (a > 200 && r > b + 60) { columns.push(x / width); break; }
    }
  }
  return columns;
}"""
"""Places across a canvas, from 0 to 1, that have ink of the orange series."""


def load(now_s: float) -> History:
    """Hours of a load that swings between none and 400 tokens per second."""
    history, sums = History(), [0.0, 0.0, 0.0, 0.0]
    for number in range(int(HOURS * 3600 / INTERVAL_S) + 1):
        level = 1 + math.sin(number / 40)
        sums = [old + level * step for old, step in zip(sums, (400, 2000, 300, 5), strict=True)]
        rounds, committed, passes = map(round, sums[:3])
        tally = RoundSums(0, 0, committed, 0, {}, [], 0.0)
        counted = {"sessions": round(4 * level), "rounds": rounds, "passes": passes, "busy_s": sums[3]}
        history.add(now_s - HOURS * 3600 + INTERVAL_S * number, (counted, tally))
    return history


@contextlib.asynccontextmanager
async def view() -> AsyncIterator[str]:
    """Address of the live view of a base station with such a past."""
    async with serving() as (served, _, station):
        feed = Feed(station, load(asyncio.get_running_loop().time()))
        served.round()
        config = uvicorn.Config(make_app(station, feed, None, "127.0.0.1"), log_config=None, lifespan="off", ws="none")
        server, updates = uvicorn.Server(config), asyncio.create_task(feed.run())
        with socket.create_server(("127.0.0.1", 0)) as listener:
            running = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                server.should_exit = True
                feed.close()
                await running
                updates.cancel()


@pytest.mark.slow
async def test_charts_hold_minutes_and_hours() -> None:
    async with view() as address, page(address, viewport={"width": 1400, "height": 900}) as (shown, wrong):
        await shown.wait_for_selector("text=serving")
        for span, first in (("600", 0.0), ("3600", 0.0), ("21600", 1 - HOURS / 6)):
            await shown.select_option("#history-span", span)
            await shown.wait_for_timeout(500)
            places = await shown.evaluate(INK, "history-tokens")
            assert len(places) > 20 and max(places) > 0.95
            assert min(places) == pytest.approx(first, abs=0.12), span
        assert not wrong


@pytest.mark.slow
async def test_axes_of_whole_numbers_have_whole_ticks() -> None:
    async with view() as address, page(address) as (shown, _):
        tops = await shown.evaluate("Array.from({length: 300}, (_, i) => axisTop(i + 2))")
        assert all(top >= least and top % 2 == 0 for least, top in enumerate(tops, 2)) and tops[:4] == [2, 4, 4, 6]
