"""Virtual time: an asyncio event loop whose clock jumps to the next timer, so that waiting takes no real time.

The library looptime is made for tests: it counts in steps of a fixed resolution, and idles in real time when no timer
is due. A simulation needs exact floats that repeat in every run, and an error as soon as all tasks wait forever.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from testbed.errors import TestbedError
from testbed.tasks import cancel

T = TypeVar("T")


class VirtualClock:
    """`Clock` that reads the running event loop's time."""

    def time(self) -> float:
        """Seconds since the loop started."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of the loop's time; with 0 or less, without yielding to other tasks."""
        if seconds > 0:
            await asyncio.sleep(seconds)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that starts at 0 s and never waits."""

    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__(_Jump(self))

    def time(self) -> float:
        """Virtual seconds since the start."""
        return self.now_s


class _Jump(selectors.SelectSelector):
    """Selector that polls for signals without blocking and advances the loop's time by the timeout."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return []
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise TestbedError("virtual time stands still: all tasks wait, and no timer is due")
            self._loop.now_s += timeout
        return ready


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new virtual event loop; tasks still running at its end are cancelled.

    Raises:
        TestbedError: deadlock: every task waits, and no timer is set.
    """
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        try:
            loop.run_until_complete(_end_others())
        finally:
            loop.close()


async def _end_others() -> None:
    await cancel(*(asyncio.all_tasks() - {asyncio.current_task()}))
