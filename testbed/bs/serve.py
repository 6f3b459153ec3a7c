"""Start-up and shutdown of a base station process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from testbed.bs.desk import Desk, Offer
from testbed.bs.engine import VerifyEngine
from testbed.bs.engines import ENGINES, load_engine
from testbed.bs.judge import StrictJudge
from testbed.bs.scheduler import Scheduler, scheduler
from testbed.bs.server import BaseStation, ThreadRunner
from testbed.bs.sessions import SessionTable
from testbed.bs.target import describe
from testbed.channel.link import ZmqServerLink, check_address
from testbed.clock import WallClock
from testbed.config import ServeConfig
from testbed.errors import BadInput

Ready = Callable[[list[str], Offer], None]
"""Called once the BS answers: the addresses it listens on, and what it serves."""


def serve(config: ServeConfig, ready: Ready) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises:
        BadInput: a model, address or option that cannot be used.
        EngineError: the engine does not start.
    """
    plan = scheduler(config.scheduler, config.max_batch, config.max_batch_tokens)
    addresses = [check_address(address) for address in config.bind.split(",")]
    with ThreadPoolExecutor(1, thread_name_prefix="engine") as thread:
        engine, offer = thread.submit(_load, config).result()
        try:
            asyncio.run(_run(addresses, ThreadRunner(engine, thread), offer, plan, ready))
        finally:
            thread.submit(engine.close).result()


def _load(config: ServeConfig) -> tuple[VerifyEngine, Offer]:
    """Load the engine, in the thread that will own it."""
    threads = config.threads or max(1, (os.cpu_count() or 1) - 1)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # engines read it when they are imported
    if config.engine == "synthetic":
        engine = load_engine("synthetic", None, max_model_len=config.max_model_len)
        return engine, Offer("synthetic", "", engine.vocab_size, engine.hidden_size, (), engine.max_positions)
    if config.engine not in ENGINES:
        raise BadInput(f"unknown engine {config.engine!r}; known: {', '.join(ENGINES)}")
    if config.model is None:
        raise BadInput("which model? give --model DIR or a Hugging Face id")
    target = describe(config.model)
    engine = load_engine(
        config.engine,
        target.directory,
        dtype=config.dtype,
        max_model_len=config.max_model_len,
        vocab_size=target.vocab_size,
        **_vllm_options(config) if config.engine == "vllm" else {},
    )
    offer = Offer(
        model=config.model,
        tokenizer=target.tokenizer,
        vocab_size=target.vocab_size,
        hidden_size=engine.hidden_size,
        end_ids=target.end_ids,
        max_positions=engine.max_positions,
    )
    return engine, offer


def _vllm_options(config: ServeConfig) -> dict[str, Any]:
    return {
        "max_batch": config.max_batch,
        "max_batch_tokens": config.max_batch_tokens,
        "tensor_parallel_size": config.tensor_parallel,
        "gpu_memory_utilization": config.memory_share,
    }


async def _run(addresses: list[str], runner: ThreadRunner, offer: Offer, plan: Scheduler, ready: Ready) -> None:
    link = ZmqServerLink(*addresses)
    try:
        station = BaseStation(link, runner, Desk(offer, SessionTable()), plan, StrictJudge(), WallClock())
        serving = asyncio.create_task(station.serve())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, serving.cancel)
        ready(link.addresses, offer)
        with contextlib.suppress(asyncio.CancelledError):
            await serving
    finally:
        link.close()
