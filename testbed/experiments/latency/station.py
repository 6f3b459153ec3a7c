"""The BS process of a measurement, and its target's own outputs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from testbed.channel.link import ZmqLink, new_identity
from testbed.clock import WallClock
from testbed.config import RunConfig, ServeConfig
from testbed.errors import BadInput
from testbed.experiments.deployment.distortions import own_standstill_told
from testbed.experiments.deployment.load import Fleet, LoadRequest, LoadUe, closed_loop
from testbed.experiments.latency.load_config import LoadConfig
from testbed.experiments.results.claims import kept
from testbed.experiments.runs.prepare import Prompt, Workload, prepare
from testbed.experiments.runs.processes import base_station, counted_in, keep_checking
from testbed.tasks import beside
from testbed.ue.client import Client
from testbed.ue.drafters.base import Drafter
from testbed.ue.drafters.controlled import ReplayDrafter
from testbed.ue.pace import REAL_TIME, ConstantPace
from testbed.ue.windows.fixed import FixedWindow

CLIENTS = 16
"""Connections of the measuring process, which share its requests."""
TIMEOUT_S = 600.0
DRAFT_MS = 2.0
"""Default drafting time of a replayed token, about that of a small drafter on this machine."""

T = TypeVar("T")
Told = Callable[[str], None]
Known = dict[tuple[int, ...], list[int]]
"""The target's own output by prompt."""


def outputs_of(config: LoadConfig, work: Workload, out: Path, told: Told) -> Known:
    """The target's outputs to all prompts, those of the warm-up included, if replays need them; decoded by a
    separate BS because of the prefix cache.
    """
    if not any(alpha is not None for _, alpha in config.series):
        return {}
    path, prompts = out / "outputs.json", [*work.prompts, *work.warmup]

    def decode() -> list[list[int]]:
        told(f"the target's own outputs to {len(prompts)} prompts")
        own = msgspec.structs.replace(config, pace=None)
        metrics = out / "outputs.metrics"
        return with_station(own, work, lambda clients: _decode_alone(own, prompts, clients), metrics)

    known = kept(path, list[list[int]], decode)
    return {tuple(p.ids): ids for p, ids in zip(prompts, known, strict=True)}


Use = Callable[[Sequence[Client]], Awaitable[T]]
"""A measurement over connections to a new BS."""


def with_station(
    config: LoadConfig, work: Workload, use: Use[T], metrics: Path, count: int = CLIENTS, **more: Any
) -> T:
    """Start a BS with fields of `ServeConfig` in `more`, connect `count` times, and stop it afterwards; counters go to
    `metrics`. An interrupt ends it also while the BS starts.
    """
    serve = ServeConfig(
        bind="tcp://127.0.0.1:*", engine=config.engine, model=config.model, dtype=config.dtype, pace=config.pace,
        metrics=str(metrics), **more,
    )  # fmt: skip
    with base_station(serve) as ready, own_standstill_told():
        return asyncio.run(beside([keep_checking()], _connected(ready["bind"], work, use, count)))


async def _connected(address: str, work: Workload, use: Use[T], count: int) -> T:
    clients = [Client(ZmqLink(address, new_identity()), WallClock(), 0, TIMEOUT_S) for _ in range(count)]
    try:
        assert work.prompter is not None
        for client in clients:
            await client.connect(work.prompter.fingerprint, work.prompter.vocab_size)
        return await use(clients)
    finally:
        for client in clients:
            await client.close()


def late_share(metrics: Path) -> float | None:
    """Time by which passes exceeded the pace, as a share of their time; None without a pace."""
    counted = counted_in(metrics)
    return counted["pace"]["late_s"] / counted["busy_s"] if "pace" in counted and counted["busy_s"] else None


def fleet_of(config: LoadConfig, clients: Sequence[Client], drafter: Drafter, k: int, replayed: bool) -> Fleet:
    """Connections that take requests in turn, with windows of K; 0: the target decodes alone."""
    welcome, clock = clients[0].welcome, clients[0].clock
    assert welcome is not None
    draft_ms = DRAFT_MS if config.draft_ms is None else config.draft_ms
    pace = ConstantPace(clock, draft_ms / 1e3) if replayed else REAL_TIME
    policy = FixedWindow(k) if k else None
    return Fleet([LoadUe(client, drafter, policy, pace, welcome.end_ids) for client in clients], clock)


def workload_of(run: RunConfig) -> Workload:
    """The prompts of a run.

    Raises:
        BadInput: fewer prompts than its limit.
    """
    work = prepare(run)
    if len(work.prompts) < (run.limit or 0):
        raise BadInput(f"this measurement needs {run.limit} prompts, but {run.dataset} has {len(work.prompts)}")
    return work


def requests_of(config: LoadConfig, prompts: Sequence[Prompt]) -> list[LoadRequest]:
    """A request for each prompt."""
    return [LoadRequest(prompt.ids, config.max_tokens) for prompt in prompts]


async def _decode_alone(config: LoadConfig, prompts: Sequence[Prompt], clients: Sequence[Client]) -> list[list[int]]:
    """The target's own outputs, decoded concurrently."""
    fleet = fleet_of(config, clients, ReplayDrafter({}, vocab_size=2, alpha=0.0, context=1), 0, False)
    requests = requests_of(config, prompts)

    async def output(number: int) -> list[int]:
        return (await fleet.decode(number, requests[number])).token_ids

    return await closed_loop(len(requests), config.at_once, output)
