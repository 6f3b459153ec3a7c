"""Time: durations come from a `Clock`, never from the wall's date; waits have an end."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """A monotonic clock that can be waited on."""

    def time(self) -> float:
        """Seconds since an arbitrary start."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""


@functools.cache
def unix_zero_s() -> float:
    """Unix time of the zero of the host's monotonic clock, the same throughout a process, whatever is done to the date
    meanwhile: what brings instants of one process, of its runs and of meters beside it onto one axis.
    """
    return time.time() - time.perf_counter()


class WallClock:
    """The host's monotonic clock."""

    def time(self) -> float:
        """Seconds since an arbitrary start."""
        return time.perf_counter()

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        await asyncio.sleep(seconds)


async def within(seconds: float, awaitable: Awaitable[T]) -> T:
    """Await something for at most `seconds`.

    Unlike Python 3.11's `asyncio.wait_for`, this never loses a cancellation that comes together with the result: a
    task that is told to stop stops.

    Raises:
        asyncio.TimeoutError: it was not there in time; it is cancelled then.
    """
    future = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait({future}, timeout=seconds)
    except asyncio.CancelledError:
        if future.done() and not future.cancelled():
            future.exception()  # seen: nobody else will look
        raise
    finally:
        future.cancel()
    if future.cancelled() or not future.done():
        raise asyncio.TimeoutError
    return future.result()
