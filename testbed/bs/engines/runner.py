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
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._engine.step)

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
