"""The base station as seen from the live view's process: its state, and its answers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from testbed.bs.monitor.source import Counted
from testbed.bs.monitor.wire import (
    Count,
    Live,
    LookAt,
    MonitorAnswer,
    MonitorClosing,
    MonitorServing,
    Notice,
    Question,
    frame,
    receive,
)
from testbed.bs.observer import RecentActivity
from testbed.clock import within

ASK_S = 5.0
"""Timeout of a question; passes run in another thread, so that the server's event loop is rarely busy for long."""
FRESH_S = 0.1
"""Time for which an answer is reused: the base station is asked no more often, however many clients there are."""
LOADING, SERVING, CLOSING = "loading", "serving", "closing"
T = TypeVar("T")


class MonitoredStation:
    """The base station at the other end of the socket.

    Args:
        reader: its notices and answers.
        writer: questions.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.state = LOADING
        self.serving: MonitorServing | None = None
        self.cpu_s = 0.0
        """CPU time of its last answer."""
        self._reader, self._writer = reader, writer
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[MonitorAnswer | None]] = {}
        self._lately: dict[Any, tuple[float, asyncio.Task[Any]]] = {}

    async def listen(self) -> None:
        """Receive notices and answers until it is gone."""
        try:
            while True:
                self._hear(await receive(self._reader, Notice))
        except EOFError:
            self._close()

    async def look(self, rounds: int, passes: int) -> RecentActivity | None:
        """Rounds and passes after these numbers, and all sessions; None: the base station does not serve or does not
        answer in time, and so for the other questions.
        """
        return await self._ask(lambda number: LookAt(number, rounds, passes), RecentActivity)

    async def count(self) -> Counted | None:
        """All counters."""
        return await self._shared(Count, Counted)

    async def live(self) -> list[str] | None:
        """Names of its background tasks that fail; None as above: its event loop does not run."""
        return await self._shared(Live, list[str])

    def _hear(self, said: Notice) -> None:
        if isinstance(said, MonitorServing):
            self.serving, self.state = said, SERVING
        elif isinstance(said, MonitorClosing):
            self._close()
        elif isinstance(said, MonitorAnswer) and (waiting := self._asked.get(said.number)) and not waiting.done():
            waiting.set_result(said)

    def _close(self) -> None:
        """The base station serves no more: pending questions are answered with None."""
        self.serving, self.state = None, CLOSING
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_result(None)

    async def _shared(self, question: Callable[[int], Question], kind: type[T] | Any) -> T | None:
        """One answer for all clients that ask at about the same time."""
        now_s = asyncio.get_running_loop().time()
        asked_s, asking = self._lately.get(question, (now_s, None))
        if self.serving is None:
            return None
        if asking is None or (asking.done() and now_s - asked_s > FRESH_S):
            asking = asyncio.create_task(self._ask(question, kind))
            self._lately[question] = now_s, asking
        found: T | None = await asyncio.shield(asking)
        return found

    async def _ask(self, question: Callable[[int], Question], kind: type[T] | Any) -> T | None:
        if self.serving is None:
            return None
        number = next(self._numbers)
        waiting = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(frame(question(number)))
            answer = await within(ASK_S, waiting)
        except (asyncio.TimeoutError, ConnectionError):
            return None
        finally:
            del self._asked[number]
        if answer is None:
            return None
        self.cpu_s = answer.cpu_s
        found: T | None = msgspec.msgpack.decode(answer.found, type=kind | None)
        return found
