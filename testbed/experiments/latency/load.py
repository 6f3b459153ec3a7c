"""Latency under load, measured: a BS process for every window, one UE that sends what many would.

The BS is real. Drafts are replayed, so that their acceptance rate is a dial and they cost this machine nothing, or come
from the real drafter. Series are kept one by one; a second run goes on where the first stopped.
"""

from __future__ import annotations

import asyncio
import csv
import itertools
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from testbed.channel.link import ZmqLink, new_identity
from testbed.clock import WallClock
from testbed.config import Config, RunConfig, load, resolved, save
from testbed.errors import BadInput
from testbed.experiments.latency.lengths import drawn
from testbed.experiments.latency.openloop import (
    LoadPoint,
    Station,
    batches,
    ceiling_rps,
    loads,
    offer,
    point,
    synchronous_rps,
)  # fmt: skip
from testbed.experiments.results import directory as results
from testbed.experiments.runs.execute import load_drafter
from testbed.experiments.runs.prepare import Work, prepare
from testbed.experiments.runs.processes import base_station
from testbed.models.bundle import bundled
from testbed.ue.client import Client
from testbed.ue.drafting import Drafter
from testbed.ue.pace import Steady
from testbed.ue.replay import ReplayDrafter
from testbed.ue.session import REAL_TIME
from testbed.ue.window import FixedWindow

COLUMNS = (
    "rps", "latency_s", "alpha", "k", "prefill", "decode", "latency_p95_s", "latency_p99_s", "requests", "batch_size",
    "saturated",
)  # fmt: skip
SYNCHRONOUS = 10
"""Requests sent one after another."""
ROUNDS_OF_CEILING = 4
"""Requests of the ceiling's measurement, in multiples of those under way at once."""
CLIENTS = 16
"""Connections of the one UE, which share what a BS lets each have of sessions."""
TIMEOUT_S = 600.0

T = TypeVar("T")
Told = Callable[[str], None]
Known = dict[tuple[int, ...], list[int]]
"""The target's own output by prompt."""


class LoadConfig(Config, frozen=True, kw_only=True):
    """What `testbed latency measure` does."""

    engine: str = "vllm"
    model: str | None = None
    """None: the bundled target."""
    dtype: str = "float32"
    windows: tuple[int, ...] = (0, 2, 4, 8)
    """K; 0: the target alone."""
    alphas: tuple[float, ...] = (0.8,)
    """Acceptance rates imposed on replayed drafts; none: the real drafter."""
    rates: int = 9
    """Loads between one request at a time and the ceiling."""
    requests: int = 60
    """Of each load."""
    at_once: int = 32
    """Requests under way where the ceiling is measured."""
    draft_ms: float = 0.0
    """Time that a replayed token takes to draft."""
    max_tokens: int = 256
    prefill: int | None = None
    """Tokens of every prompt, drawn at random; None: the data set's prompts as they are."""
    dataset: str = "bundled:test"
    drafter: str | None = None
    tokenizer: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for window in self.windows:
            if window:
                FixedWindow(window)
        if not self.windows or min(self.windows) < 0:
            raise BadInput("give one window or more, each 0 or more")
        if not all(0 <= alpha <= 1 for alpha in self.alphas):
            raise BadInput(f"acceptance rates lie in [0, 1], not {', '.join(map(str, self.alphas))}")
        for name, least in (("rates", 1), ("requests", 1), ("at_once", 2), ("max_tokens", 1), ("prefill", 1)):
            if getattr(self, name) is not None and getattr(self, name) < least:
                raise BadInput(f"{name.replace('_', '-')} must be at least {least}, not {getattr(self, name)}")
        if self.draft_ms < 0:
            raise BadInput(f"draft-ms must not be negative, not {self.draft_ms:g}")

    @property
    def series(self) -> list[tuple[int, float | None]]:
        """Windows and imposed acceptance rates; the target alone once."""
        found: list[tuple[int, float | None]] = []
        for window in self.windows:
            found += [(0, None)] if window == 0 else [(window, alpha) for alpha in self.alphas or (None,)]
        return found


class Series(msgspec.Struct, frozen=True):
    """All loads under one window."""

    k: int
    alpha: float | None
    """Imposed; None: not."""
    synchronous_rps: float
    ceiling_rps: float
    points: list[LoadPoint]


def measure(config: LoadConfig, out: Path, told: Told) -> list[Series]:
    """Run what is not there yet; writes `all.csv`, `points.csv` (without saturated loads), and `summary.json`.

    Raises:
        BadInput: what cannot be run, too few prompts, or a directory of another measurement.
    """
    work = _prepare(config)
    claim(config, out)
    known = outputs_of(config, work, out, told)
    found = []
    for k, alpha in config.series:
        path = out / f"series-k{k}{'' if alpha is None else f'-alpha{alpha:g}'}.json"
        if not path.exists():
            told(f"window {k}" + ("" if alpha is None else f", acceptance rate {alpha:g}"))
            write_whole(path, msgspec.json.encode(_measure_one(config, work, known, k, alpha, told)))
        found.append(msgspec.json.decode(path.read_bytes(), type=Series))
    points = [p for series in found for p in series.points]
    write_csv(out / "all.csv", points)
    write_csv(out / "points.csv", [p for p in points if not p.saturated])
    rows = [msgspec.to_builtins(p) for p in points]
    results.write_summary(out, results.summary(resolved(config), config.seed, results.host(), rows))
    return found


def _measure_one(config: LoadConfig, work: Work, known: Known, k: int, alpha: float | None, told: Told) -> Series:
    """One series, with a drafter and a BS of its own."""
    assert work.prompter is not None
    if k == 0:
        drafter: Drafter = ReplayDrafter({}, vocab_size=work.prompter.vocab_size, alpha=0.0, context=1)
    elif alpha is None:
        drafter = load_drafter(_run_config(config), work)
    else:
        context = max(map(len, known)) + config.max_tokens + max(config.windows)
        drafter = ReplayDrafter(
            known, vocab_size=work.prompter.vocab_size, alpha=alpha, context=context, seed=config.seed
        )  # fmt: skip
    try:
        return asyncio.run(
            with_station(config, work, lambda clients: _series(config, work, drafter, clients, k, alpha, told))
        )
    finally:
        drafter.close()


def write_csv(path: Path, points: Sequence[LoadPoint]) -> None:
    """Points as `testbed latency fit --csv` reads them."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for each in points:
            row = msgspec.structs.asdict(each) | {"alpha": each.alpha or 0.0, "saturated": int(each.saturated)}
            writer.writerow([row[name] for name in COLUMNS])


def _prepare(config: LoadConfig) -> Work:
    """The prompts of one series: every series has the same ones, and a BS that has not seen them."""
    bundle = bundled()
    run = _run_config(config)
    work = prepare(run, (bundle.drafter, bundle.tokenizer), None)
    if len(work.prompts) < (run.limit or 0):
        raise BadInput(f"these loads need {run.limit} prompts, and {config.dataset} has {len(work.prompts)}")
    return work if config.prefill is None else drawn(work, config.prefill, config.seed)


def _run_config(config: LoadConfig) -> RunConfig:
    """Prompts and drafter of a series."""
    return RunConfig(
        dataset=config.dataset,
        limit=SYNCHRONOUS + ROUNDS_OF_CEILING * config.at_once + config.rates * config.requests,
        max_tokens=config.max_tokens,
        drafter=config.drafter,
        tokenizer=config.tokenizer,
        concurrency=max(config.at_once, config.requests),
        window=max(1, *config.windows),
    )


def claim(config: Config, out: Path) -> None:
    """Make a directory a measurement's own, or find it to be.

    Raises:
        BadInput: it holds something else.
    """
    path = out / "config.yaml"
    if path.exists():
        if load(type(config), path) != config:
            raise BadInput(f"{out} holds another measurement; give another --out, or the same options to resume it")
        return
    if out.exists() and any(out.iterdir()):
        raise BadInput(f"{out} is not empty and holds no measurement; give another --out")
    out.mkdir(parents=True, exist_ok=True)
    save(config, path)


def outputs_of(config: LoadConfig, work: Work, out: Path, told: Told) -> Known:
    """What the target decodes after each prompt, where replays need it; by a BS of its own, for the prefix cache."""
    if not any(alpha is not None for _, alpha in config.series):
        return {}
    path = out / "outputs.json"
    if not path.exists():
        told(f"the target's own outputs to {len(work.prompts)} prompts")
        outputs = asyncio.run(with_station(config, work, lambda clients: _decode_alone(config, work, clients)))
        write_whole(path, msgspec.json.encode(outputs))
    known = msgspec.json.decode(path.read_bytes(), type=list[list[int]])
    return {tuple(p.ids): ids for p, ids in zip(work.prompts, known, strict=True)}


def write_whole(path: Path, content: bytes) -> None:
    """A file that is whole when it is there."""
    part = path.with_suffix(".part")
    part.write_bytes(content)
    part.replace(path)


Use = Callable[[Sequence[Client]], Awaitable[T]]
"""What is done over connections to a BS that has just started."""


async def with_station(
    config: LoadConfig, work: Work, use: Use[T], more: Sequence[str] = (), count: int = CLIENTS
) -> T:
    """Start a BS, with `more` arguments, connect so many times, and stop it afterwards."""
    arguments = ["--engine", config.engine, "--bind", "tcp://127.0.0.1:*", "--dtype", config.dtype, *more]
    if config.model:
        arguments += ["--model", config.model]
    with base_station(arguments) as ready:
        clock = WallClock()
        clients = [Client(ZmqLink(ready["bind"], new_identity()), clock, 0, TIMEOUT_S) for _ in range(count)]
        try:
            assert work.prompter is not None
            for client in clients:
                await client.connect(work.prompter.fingerprint, work.prompter.vocab_size)
            return await use(clients)
        finally:
            for client in clients:
                await client.close()


def _station(config: LoadConfig, clients: Sequence[Client], drafter: Drafter, k: int, replayed: bool) -> Station:
    welcome = clients[0].welcome
    assert welcome is not None
    pace = Steady(clients[0].clock, config.draft_ms / 1e3) if replayed else REAL_TIME
    return Station(itertools.cycle(clients), drafter, pace, k, config.max_tokens, welcome.end_ids, clients[0].clock)


async def _decode_alone(config: LoadConfig, work: Work, clients: Sequence[Client]) -> list[list[int]]:
    """The target's own outputs, many at once."""
    station = _station(config, clients, ReplayDrafter({}, vocab_size=2, alpha=0.0, context=1), 0, False)
    found: dict[int, list[int]] = {}
    queue = iter(enumerate(work.prompts))

    async def worker() -> None:
        for index, prompt in queue:
            found[index] = (await station.decode(prompt)).token_ids

    await asyncio.gather(*(worker() for _ in range(config.at_once)))
    return [found[index] for index in range(len(work.prompts))]


async def _series(
    config: LoadConfig, work: Work, drafter: Drafter, clients: Sequence[Client], k: int, alpha: float | None, told: Told
) -> Series:
    """All loads of one window, every one with prompts that the BS has not seen."""
    station = _station(config, clients, drafter, k, alpha is not None)
    sizes = [SYNCHRONOUS, ROUNDS_OF_CEILING * config.at_once, *[config.requests] * config.rates]
    groups = batches(work.prompts, sizes)
    for prompt in work.warmup:
        await station.decode(prompt)
    low_rps = await synchronous_rps(station, next(groups))
    high_rps = await ceiling_rps(station, next(groups), config.at_once)
    told(f"  one at a time {low_rps:.2f} requests/s, at most {high_rps:.2f}")
    points = []
    for rps, prompts in zip(loads(low_rps, high_rps, config.rates), groups, strict=True):
        found = point(await offer(station, prompts, rps, config.seed), rps, k)
        told(f"  {rps:.2f} requests/s: {found.latency_s:.3f} s" + (", requests pile up" if found.saturated else ""))
        points.append(found)
    return Series(k, alpha, low_rps, high_rps, points)
