"""Monotonic clocks, and waits with a timeout. Durations are measured on a `Clock`, never on the date."""

from __future__ import annotations

import asyncio
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


class UnixZero:
    """Unix time at the zero of the host's monotonic clock, read once per process and unaffected by later changes of the
    date. It aligns timestamps of the process, its runs and its power meters.

    Attributes:
        later_s: by how much it is later than the date said (`go_on_after`).
    """

    def __init__(self) -> None:
        self._zero_s: float | None = None
        self.later_s = 0.0

    def __call__(self) -> float:
        if self._zero_s is None:
            self._zero_s = time.time() - time.perf_counter()
        return self._zero_s

    def go_on_after(self, last_s: float) -> float:
        """Have this process's times come after one of an earlier process, although the date went back meanwhile, as
        that of a board without a battery does; returns by how much they are later than before.
        """
        later_s = max(0.0, last_s - self() - time.perf_counter())
        self._zero_s, self.later_s = self() + later_s, self.later_s + later_s
        return later_s


unix_zero_s = UnixZero()


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

    Unlike Python 3.11's `asyncio.wait_for`, a cancellation that arrives together with the result is not lost.

    Raises:
        asyncio.TimeoutError: no result within `seconds`; the awaitable is cancelled.
    """
    future = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait({future}, timeout=seconds)
    except asyncio.CancelledError:
        if future.done() and not future.cancelled():
            future.exception()  # mark as retrieved, or asyncio logs it
        raise
    finally:
        future.cancel()
    if future.cancelled() or not future.done():
        raise asyncio.TimeoutError
    return future.result()
