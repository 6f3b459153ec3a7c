"""The runner seam: engine passes from the event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from testbed.bs.engines.base import Share, VerifyEngine, VerifyRequest


class EngineRunner(Protocol):
    """Runs passes without blocking the event loop."""

    def submit(self, request: VerifyRequest) -> None:
        """See `VerifyEngine.submit`."""

    async def step(self) -> list[Share]:
        """See `VerifyEngine.step`."""

    def cached(self, session: str) -> int | None:
        """Leading tokens of a session in the prefix cache; None: the engine reports hits only after a pass."""

    async def judged(self, positions: int) -> None:
        """Account for the time of judging this many positions by hidden states."""

    def release(self, session: str) -> None:
        """Release a session of the engine, soon."""


class ThreadRunner:
    """Runs passes in the one thread that owns the engine."""

    def __init__(self, engine: VerifyEngine, thread: ThreadPoolExecutor) -> None:
        self._engine, self._thread = engine, thread
        self._known: set[str] = set()
        """Sessions known to the engine: only these are released, however fast others open and close."""

    def submit(self, request: VerifyRequest) -> None:
        """See `VerifyEngine.submit`."""
        self._known.add(request.session)
        self._engine.submit(request)

    async def step(self) -> list[Share]:
        """See `VerifyEngine.step`."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[Share]] = loop.create_future()
        self._thread.submit(self._step, loop, done)  # without the second future of `run_in_executor`
        return await done

    def _step(self, loop: asyncio.AbstractEventLoop, done: asyncio.Future[list[Share]]) -> None:
        """One pass in the engine's thread; its result or error goes to the loop, which may be closed by then."""
        found: list[Share] | BaseException
        try:
            found = self._engine.step()
        except BaseException as exc:
            found = exc
        if not loop.is_closed():
            loop.call_soon_threadsafe(_finish, done, found)

    def cached(self, session: str) -> int | None:
        """See `EngineRunner.cached`: engines report hits after a pass."""
        return None

    async def judged(self, positions: int) -> None:
        """Nothing: judging took its time."""

    def release(self, session: str) -> None:
        """Release a session of the engine, after the running pass."""
        if session in self._known:
            self._known.remove(session)
            self._thread.submit(self._engine.release, session)


def _finish(done: asyncio.Future[list[Share]], found: list[Share] | BaseException) -> None:
    if done.done():  # cancelled
        return
    if isinstance(found, BaseException):
        done.set_exception(found)
    else:
        done.set_result(found)
