"""A base station as its live view's process sees it: whether it serves, and what it answers."""

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
"""How long the server's event loop may take to answer; its passes run elsewhere, so that it is rarely busy for long."""
FRESH_S = 0.1
"""So long an answer that does not change much stands for further questions: nobody can have a base station asked more
often."""
LOADING, SERVING, CLOSING = "loading", "serving", "closing"
T = TypeVar("T")


class MonitoredStation:
    """The base station at the other end.

    Args:
        reader: what it says.
        writer: for questions.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.state = LOADING
        self.serving: MonitorServing | None = None
        self.cpu_s = 0.0
        """That it took to answer last."""
        self._reader, self._writer = reader, writer
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[MonitorAnswer | None]] = {}
        self._lately: dict[Any, tuple[float, asyncio.Task[Any]]] = {}

    async def listen(self) -> None:
        """Hear what it says until it is gone."""
        try:
            while True:
                self._hear(await receive(self._reader, Notice))
        except EOFError:
            self._close()

    async def look(self, rounds: int, passes: int) -> RecentActivity | None:
        """What happened after the round and the pass of these numbers, and how things stand; None: it does not serve,
        or takes too long, and so for the others.
        """
        return await self._ask(lambda number: LookAt(number, rounds, passes), RecentActivity)

    async def count(self) -> Counted | None:
        """All that is counted."""
        return await self._shared(Count, Counted)

    async def live(self) -> bool | None:
        """Whether its event loop runs."""
        return await self._shared(Live, bool)

    def _hear(self, said: Notice) -> None:
        if isinstance(said, MonitorServing):
            self.serving, self.state = said, SERVING
        elif isinstance(said, MonitorClosing):
            self._close()
        elif isinstance(said, MonitorAnswer) and (waiting := self._asked.get(said.number)) and not waiting.done():
            waiting.set_result(said)

    def _close(self) -> None:
        """It serves no more: whoever has asked is not kept waiting."""
        self.serving, self.state = None, CLOSING
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_result(None)

    async def _shared(self, question: Callable[[int], Question], kind: type[T] | Any) -> T | None:
        """One answer for all who ask at about the same time."""
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
