"""The runner seam: engine passes from the event loop."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from testbed.bs.engines.base import Share, VerifyEngine, VerifyRequest

SHORT_S = 2e-3
"""Passes shorter than this run in the loop, where the engine allows it."""


class EngineRunner(Protocol):
    """Runs passes without blocking the event loop for long."""

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
    """Runs passes in a thread of the engine's own, so that messages are handled meanwhile.

    Handing a pass to the thread and back takes longer than a short pass of a small model. After a pass of less than
    `SHORT_S`, the next one therefore runs in the loop, if the engine allows it (`VerifyEngine.any_thread`) and no round
    is the first of its session, whose prompt may take long. Between passes the loop alone uses the engine.
    """

    def __init__(self, engine: VerifyEngine, thread: ThreadPoolExecutor) -> None:
        self._engine, self._thread = engine, thread
        self._known: set[str] = set()
        """Sessions known to the engine: only these are released, however fast others open and close."""
        self._short = self._passing = False
        """Whether the next pass will be short, and whether the thread runs one."""
        self._leaving: list[str] = []
        """Sessions to be released after the running pass."""

    def submit(self, request: VerifyRequest) -> None:
        """See `VerifyEngine.submit`."""
        if request.session not in self._known:
            self._known.add(request.session)
            self._short = False
        self._engine.submit(request)

    async def step(self) -> list[Share]:
        """See `VerifyEngine.step`."""
        if self._short:
            shares = self._timed()
            await asyncio.sleep(0)  # messages are received between passes
            return shares
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[Share]] = loop.create_future()
        self._passing = True
        self._thread.submit(self._pass, loop, done)  # without the second future of `run_in_executor`
        return await done

    def _timed(self) -> list[Share]:
        start_s = time.perf_counter()
        shares = self._engine.step()
        self._short = self._engine.any_thread and time.perf_counter() - start_s < SHORT_S
        return shares

    def _pass(self, loop: asyncio.AbstractEventLoop, done: asyncio.Future[list[Share]]) -> None:
        """One pass in the engine's thread; its result or error goes to the loop, which may be closed by then."""
        found: list[Share] | BaseException
        try:
            found = self._timed()
        except BaseException as exc:
            found = exc
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._passed, done, found)

    def _passed(self, done: asyncio.Future[list[Share]], found: list[Share] | BaseException) -> None:
        self._passing = False
        for session in self._leaving:
            self._engine.release(session)
        self._leaving.clear()
        if done.done():  # cancelled
            return
        if isinstance(found, BaseException):
            done.set_exception(found)
        else:
            done.set_result(found)

    def cached(self, session: str) -> int | None:
        """See `EngineRunner.cached`: engines report hits after a pass."""
        return None

    async def judged(self, positions: int) -> None:
        """Nothing: judging took its time."""

    def release(self, session: str) -> None:
        """Release a session of the engine, after the running pass."""
        if session not in self._known:
            return
        self._known.remove(session)
        if self._passing:
            self._leaving.append(session)
        else:
            self._engine.release(session)
