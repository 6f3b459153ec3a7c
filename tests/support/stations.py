"""A base station in this process, on a real socket, with the synthetic engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from testbed.bs.engines.base import VerifyEngine
from testbed.bs.engines.runner import ThreadRunner
from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.intake import Intake, Offer
from testbed.bs.judging.base import Judge, StrictJudge
from testbed.bs.scheduling.base import Fcfs, Scheduler
from testbed.bs.server import BaseStation
from testbed.bs.sessions import SessionTable
from testbed.channel.link import ZmqLink, new_identity
from testbed.channel.server_link import ZmqServerLink
from testbed.clock import WallClock
from testbed.ue.client import Client

VOCAB = 512


@contextlib.asynccontextmanager
async def station(
    engine: VerifyEngine | None = None,
    judge: Judge | None = None,
    end_ids: tuple[int, ...] = (),
    sessions: SessionTable | None = None,
    scheduler: Scheduler | None = None,
    **options: Any,
) -> AsyncIterator[tuple[BaseStation, str]]:
    """A running base station and its address; `options` go to `BaseStation`."""
    engine = engine or SyntheticEngine(vocab_size=VOCAB)
    offer = Offer("synthetic", "", engine.vocab_size, engine.hidden_size, end_ids, engine.max_positions)
    link = ZmqServerLink("tcp://127.0.0.1:*")
    with ThreadPoolExecutor(1) as thread:
        bs = BaseStation(
            link, ThreadRunner(engine, thread), Intake(offer, SessionTable() if sessions is None else sessions),
            scheduler or Fcfs(), judge or StrictJudge(), WallClock(), **options,
        )  # fmt: skip
        serving = asyncio.create_task(bs.serve())
        try:
            yield bs, link.addresses[0]
        finally:
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving
            link.close()


@contextlib.asynccontextmanager
async def client(address: str, *, timeout_s: float = 10.0, greet: bool = True) -> AsyncIterator[Client]:
    """A connected client."""
    connection = Client(ZmqLink(address, new_identity()), WallClock(), 1, timeout_s)
    try:
        if greet:
            await connection.connect("", VOCAB)
        yield connection
    finally:
        await connection.close()
