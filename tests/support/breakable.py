"""Tasks of a base station process that fail on a signal: SIGUSR1 all in the background, SIGUSR2 one that serves."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from testbed.bs.dispatch import Dispatcher
from testbed.bs.judging.long_rounds import LongRounds
from testbed.bs.server import BaseStation
from testbed.tasks import Background, beside

SERVING = ((Dispatcher, "receive"), (Dispatcher, "expire"), (BaseStation, "_run"), (LongRounds, "run"))
"""The tasks of `BaseStation.serve`."""
Say = Callable[..., None]
Work = Callable[[], Coroutine[Any, Any, None]]


class Fuses:
    """Tasks that fail upon signals."""

    def __init__(self, say: Say) -> None:
        self._say, self._waiting = say, dict[asyncio.Event, str]()

    async def run(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run a task until it is broken.

        Raises:
            RuntimeError: it is.
        """
        broken = asyncio.Event()
        self._waiting[broken] = name
        try:
            await beside([work], broken.wait())
        finally:
            del self._waiting[broken]
        self._say("broken", task=name)
        raise RuntimeError(f"{name} was made to fail")

    def blow(self, some: bool) -> None:
        """Break all tasks, or one at random."""
        waiting = list(self._waiting)
        for broken in random.choices(waiting) if some else waiting:
            broken.set()


def breakable(say: Say) -> None:
    """Make the tasks of this process break on signals; each that breaks is said."""
    background, serving, start = Fuses(say), Fuses(say), Background.start

    def starting(self: Background, name: str, work: Work, **options: Any) -> Any:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, background.blow, False)
        return start(self, name, lambda: background.run(name, work()), **options)

    Background.start = starting  # type: ignore[method-assign]
    for owner, name in SERVING:
        setattr(owner, name, _fused(getattr(owner, name), name, serving))


def _fused(method: Callable[..., Coroutine[Any, Any, None]], name: str, fuses: Fuses) -> Any:
    async def fused(self: Any, *arguments: Any) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, fuses.blow, True)
        await fuses.run(name, method(self, *arguments))

    return fused
