"""How the event loop has passes run: the engine seam, asynchronously."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from testbed.bs.engines.base import VerifyEngine, VerifyRequest, VerifyResult


class EngineRunner(Protocol):
    """How a pass is run without holding up the event loop."""

    async def verify(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
        """Results of one pass, in order."""

    async def judged(self, positions: int) -> None:
        """So many positions were judged by hidden states just now: take the time for it that has not passed yet."""

    def release(self, session: str) -> None:
        """Let the engine forget a session, soon."""


class ThreadRunner:
    """Runs passes in the one thread that owns the engine."""

    def __init__(self, engine: VerifyEngine, thread: ThreadPoolExecutor) -> None:
        self._engine, self._thread = engine, thread
        self._known: set[str] = set()
        """Sessions that the engine has seen; no others wait to be forgotten, however fast they come and go."""

    async def verify(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
        """Results of one pass, in order."""
        self._known.update(request.session for request in batch)
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._engine.verify, batch)

    async def judged(self, positions: int) -> None:
        """The time has passed."""

    def release(self, session: str) -> None:
        """Let the engine forget a session, after the pass that is under way."""
        if session in self._known:
            self._known.remove(session)
            self._thread.submit(self._engine.release, session)
