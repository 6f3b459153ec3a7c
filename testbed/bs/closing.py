"""The end of sessions and of failed rounds: what they hold is released, and their UEs are notified."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from testbed.bs.engines.runner import EngineRunner
from testbed.bs.metrics import Metrics
from testbed.bs.observer import Observer
from testbed.bs.queue import Queue
from testbed.bs.scheduling.hints import WindowHints
from testbed.bs.scheduling.pass_ledger import PassLedger
from testbed.bs.sessions import Key, Session, SessionTable
from testbed.bs.verdict import failure, reason
from testbed.channel.link import ServerLink
from testbed.protocols.codec import encode
from testbed.protocols.messages import Fault

LOG = logging.getLogger(__name__)


class SessionCloser:
    """Ends sessions; the arguments are the parts of the base station that hold something for them.

    Args:
        wake: set if the scheduler may plan another pass without the session.
    """

    def __init__(
        self,
        link: ServerLink,
        sessions: SessionTable,
        queue: Queue,
        runner: EngineRunner,
        windows: WindowHints | None,
        observer: Observer,
        metrics: Metrics,
        ledger: PassLedger,
        wake: asyncio.Event,
    ) -> None:
        self._ledger, self._wake = ledger, wake
        self._link, self._sessions, self._queue, self._runner = link, sessions, queue, runner
        self._windows, self._observer, self._metrics = windows, observer, metrics

    def forget(self, session: Session) -> None:
        """Release what a closed session holds."""
        if self._windows:
            self._windows.ended(session)
        self._queue.drop(session)
        self._observer.ended(session)
        self._runner.release(session.name)
        if self._ledger.ended(session):
            self._wake.set()

    async def give_up(self, session: Session, exc: Exception) -> None:
        """End a round whose verification failed; its session stays open, and its UE may send the window again."""
        session.current = None
        self._queue.drop(session)
        session.last_reply = encode(failure(session, exc))
        await self._link.send(session.key[0], session.last_reply)

    def fail(self, key: Key, exc: Exception) -> Fault:
        """Close a session after an error in its computations; returns the message for its UE."""
        LOG.error("session %d of a UE is closed after an internal error", key[1], exc_info=exc)
        self._metrics.failed_sessions += 1
        if (session := self._sessions.close(key)) is not None:
            self.forget(session)
        return Fault(session=key[1], reason=f"internal error: {reason(exc)}")

    async def fail_all(self, found: Iterable[tuple[Session, Exception]]) -> None:
        """Close sessions after errors, and tell their UEs."""
        for session, exc in found:
            await self._link.send(session.key[0], encode(self.fail(session.key, exc)))
