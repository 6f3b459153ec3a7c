"""A base station as its live view may ask it, on the server's event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from testbed.bs.monitor.wire import Count, LookAt, MonitorAnswer, MonitorServing, Question, frame, receive
from testbed.bs.observer import RecentActivity, RoundSums

LOG = logging.getLogger(__name__)
Counted: TypeAlias = tuple[dict[str, Any], RoundSums]
"""What a base station counts."""
NOTHING = msgspec.Raw(msgspec.msgpack.encode(None))


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a base station that serves can be asked."""

    look: Callable[[int, int], RecentActivity]
    """What happened after the round and the pass of these numbers, and how things stand."""
    count: Callable[[], Counted]
    """All that is counted."""
    serving: MonitorServing
    """What is said of it."""


async def answer_all(source: Source, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one question after another until the live view is gone."""
    try:
        while True:
            writer.write(frame(answer(source, await receive(reader, Question))))
            await writer.drain()
    except (EOFError, ConnectionError):
        LOG.warning("the live view has ended; the base station serves on without it")


def answer(source: Source, question: Question) -> MonitorAnswer:
    """What is answered to one question, and the CPU time that it took."""
    begun_s = time.thread_time()
    try:
        found = msgspec.Raw(msgspec.msgpack.encode(_found(source, question)))
    except Exception:
        LOG.exception("the live view asked for something that failed")
        found = NOTHING
    return MonitorAnswer(question.number, time.thread_time() - begun_s, found)


def _found(source: Source, question: Question) -> object:
    if isinstance(question, LookAt):
        return source.look(question.rounds, question.passes)
    return source.count() if isinstance(question, Count) else True
