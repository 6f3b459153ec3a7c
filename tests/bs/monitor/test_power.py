"""Power sampling of a base station: a failure is counted, and sampling goes on."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time

from testbed.bs.monitor.power import BsMeter
from testbed.power.reading import Reading
from testbed.tasks import Background


class Source:
    """Readings of 5 W, the third of which fails in a way that no sensor should."""

    name, total, mean, period_s = "test", "board", False, 0.005

    def __init__(self) -> None:
        self._number = itertools.count(1)

    def read(self) -> Reading:
        if next(self._number) == 3:
            raise ZeroDivisionError
        return Reading(time.perf_counter(), {"board": 5.0}, 5.0)

    def close(self) -> None:
        """Nothing to release."""


async def test_sampling_that_fails_is_counted_and_starts_again() -> None:
    background = Background()
    with contextlib.closing(BsMeter(Source())) as meter:
        watching = background.start("power", meter.watch)
        deadline_s = time.monotonic() + 20
        while meter.snapshot()["samples"] < 10 and time.monotonic() < deadline_s:
            await asyncio.sleep(0.01)
        assert meter.snapshot()["samples"] >= 10 and background.failures == {"power": 1}
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
