"""Time: durations come from a `Clock`, never from the wall's date."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock that can be waited on."""

    def time(self) -> float:
        """Seconds since an arbitrary start."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""


class WallClock:
    """The host's monotonic clock."""

    def time(self) -> float:
        """Seconds since an arbitrary start."""
        return time.perf_counter()

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        await asyncio.sleep(seconds)
