"""Answers of a base station to its live view, on the server's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from testbed.bs.engines.registry import ENGINES
from testbed.bs.engines.target import find
from testbed.bs.intake import Offer
from testbed.bs.monitor.recent import Recent
from testbed.bs.monitor.wire import Count, LookAt, MonitorAnswer, MonitorServing, Question, frame, receive
from testbed.bs.observer import RecentActivity, RoundSums
from testbed.clock import WallClock
from testbed.config import ServeConfig
from testbed.protocols.vocabulary import tokenizer_directory
from testbed.tasks import Background

LOG = logging.getLogger(__name__)
Counted: TypeAlias = tuple[dict[str, Any], RoundSums]
"""Metrics of the base station, and sums over its rounds."""
NOTHING = msgspec.Raw(msgspec.msgpack.encode(None))


@dataclass(frozen=True, kw_only=True)
class Source:
    """Data of a serving base station."""

    look: Callable[[int, int], RecentActivity]
    """Rounds and passes after these numbers, and all sessions."""
    count: Callable[[], Counted]
    """All counters."""
    failing: Callable[[], list[str]] = list
    """Names of background tasks that fail."""
    serving: MonitorServing
    """Description of the base station."""


def source_of(
    config: ServeConfig, offer: Offer, count: Callable[[], dict[str, Any]], recent: Recent, background: Background
) -> Source:
    """The data source of the live view."""
    clock = WallClock()
    model = Path(offer.model).name if Path(offer.model).exists() else offer.model
    judge, _, _ = offer.judge.partition(" ")
    return Source(
        look=lambda rounds, passes: recent.look(rounds, passes, clock.time()),
        count=lambda: (count(), recent.tally()),
        failing=lambda: background.failing,
        serving=MonitorServing(
            about={"model": model, "engine": config.engine, "scheduler": config.scheduler, "judge": judge},
            text=config.monitor_text,
            tokenizer=_tokenizer(config) if config.monitor_text else None,
        ),
    )


def _tokenizer(config: ServeConfig) -> str | None:
    """Path of the target's tokenizer; None: it has none."""
    if config.model is None or not ENGINES[config.engine].needs_model:
        return None
    path = tokenizer_directory(find(config.model)) / "tokenizer.json"
    return str(path.absolute()) if path.exists() else None


async def answer_all(source: Source, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer questions in order until the live view is gone."""
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            writer.write(frame(answer(source, await receive(reader, Question))))
            await writer.drain()


def answer(source: Source, question: Question) -> MonitorAnswer:
    """The answer to a question, with the CPU time that it took."""
    begun_s = time.thread_time()
    try:
        found = msgspec.Raw(msgspec.msgpack.encode(_found(source, question)))
    except Exception:
        LOG.exception("a question of the live view failed")
        found = NOTHING
    return MonitorAnswer(question.number, time.thread_time() - begun_s, found)


def _found(source: Source, question: Question) -> object:
    if isinstance(question, LookAt):
        return source.look(question.rounds, question.passes)
    return source.count() if isinstance(question, Count) else source.failing()
