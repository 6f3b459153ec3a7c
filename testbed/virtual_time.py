"""Virtual time: an asyncio loop whose clock jumps to the next timer, so that waiting costs nothing.

A loop of our own, in place of the library looptime: that one is made for tests (it counts in whole steps of a
resolution, and idles in real time where nothing is due), while a simulation needs exact floats, the same ones in every
run, and an error at once where all wait for ever.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from testbed.errors import TestbedError

T = TypeVar("T")


class VirtualClock:
    """Implements `Clock` on the running loop's time."""

    def time(self) -> float:
        """Seconds since the loop began."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of the loop's time; nobody else runs where there are none."""
        if seconds > 0:
            await asyncio.sleep(seconds)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that starts at 0 s and never waits."""

    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__(_Jump(self))

    def time(self) -> float:
        """The loop's own seconds."""
        return self.now_s


class _Jump(selectors.SelectSelector):
    """Looks for signals without waiting, and moves the loop's time by what it was to wait."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return []
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise TestbedError("virtual time stands still: all wait, and nothing is on its way")
            self._loop.now_s += timeout
        return ready


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a fresh virtual loop; whatever it leaves running is cancelled.

    Raises:
        TestbedError: all tasks wait for what never comes.
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
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
