"""Latency under load, measured: a BS process for every window, and one process that sends the requests of many UEs.

The BS is real. Drafts are replayed, at a chosen acceptance rate and without using this machine, or come from the real
drafter. Every run is saved; a second call resumes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from testbed.config import RunConfig, resolved
from testbed.experiments.deployment.load import Fleet, throughput_rps
from testbed.experiments.latency.lengths import drawn
from testbed.experiments.latency.load_config import LoadConfig
from testbed.experiments.latency.openloop import (
    LoadPoint,
    Served,
    batches,
    loads,
    offer,
    point,
    synchronous_rps,
)  # fmt: skip
from testbed.experiments.latency.station import (
    Known,
    Told,
    fleet_of,
    late_share,
    outputs_of,
    requests_of,
    with_station,
    workload_of,
)
from testbed.experiments.results import directory as results
from testbed.experiments.results.claims import claimed, kept
from testbed.experiments.results.csv_file import write_csv
from testbed.experiments.runs.execute import drafter_of
from testbed.experiments.runs.prepare import Workload
from testbed.ue.client import Client
from testbed.ue.drafters.base import Drafter
from testbed.ue.drafters.controlled import ReplayDrafter

COLUMNS = (
    "rps", "latency_s", "alpha", "k", "prefill", "decode", "latency_p95_s", "latency_p99_s", "requests", "batch_size",
    "saturated",
)  # fmt: skip
SYNCHRONOUS = 10
"""Requests that are sent one after another."""
ROUNDS_OF_CEILING = 4
"""Requests for measuring the maximum throughput, in multiples of those in progress at once."""


class LoadRange(msgspec.Struct, frozen=True):
    """LoadRange of loads of one window, in requests a second."""

    synchronous_rps: float
    ceiling_rps: float
    loads: list[float]


class Repeat(msgspec.Struct, frozen=True):
    """One repeat of all loads with one window."""

    range: LoadRange
    served: list[list[Served]]
    """Requests of each load, in the order of `range.loads`; the loads ran in random order."""
    late: float | None = None
    """Time by which passes exceeded the pace, as a share of their time; None without a pace."""


class Series(msgspec.Struct, frozen=True):
    """All loads with one window, over all repeats."""

    k: int
    alpha: float | None
    """Acceptance rate of replayed drafts; None: real drafts."""
    synchronous_rps: float
    ceiling_rps: float
    points: list[LoadPoint]


def measure(config: LoadConfig, out: Path, told: Told) -> list[Series]:
    """Carry out all unfinished runs; writes `all.csv`, `points.csv` (without saturated loads) and `summary.json`.

    Raises:
        BadInput: an invalid configuration, too few prompts, or a directory of another measurement.
    """
    work = _prepare(config)
    with claimed(config, out, "measurement"):
        known = outputs_of(config, work, out, told)
        found: dict[tuple[int, float | None], list[Repeat]] = {}
        for repeat in range(config.repeats):
            for index in np.random.default_rng([config.seed, repeat]).permutation(len(config.series)):
                k, alpha = config.series[index]
                done = found.setdefault((k, alpha), [])
                job = _Job(config, work, known, k, alpha, repeat, done[0].range if done else None, told)
                path = out / f"series-k{k}{'' if alpha is None else f'-alpha{alpha:g}'}-repeat{repeat}.json"
                done.append(kept(path, Repeat, partial(job.run, path.with_suffix(".metrics"))))
        return _written(config, out, [_pooled(key, found[key]) for key in config.series])


def _pooled(key: tuple[int, float | None], repeats: Sequence[Repeat]) -> Series:
    """All repeats of one window together."""
    k, alpha = key
    points = [point(served, k) for served in zip(*(repeat.served for repeat in repeats), strict=True)]
    return Series(k, alpha, repeats[0].range.synchronous_rps, repeats[0].range.ceiling_rps, points)


def _written(config: LoadConfig, out: Path, found: list[Series]) -> list[Series]:
    """Write the tables of all series; returns the series."""
    points = [p for series in found for p in series.points]
    write_points(out / "all.csv", points)
    write_points(out / "points.csv", [p for p in points if not p.saturated])
    rows = [msgspec.to_builtins(p) for p in points]
    results.write_summary(out, results.summary(resolved(config), config.seed, results.host(), rows))
    return found


@dataclass(frozen=True)
class _Job:
    """One repeat of one series."""

    config: LoadConfig
    work: Workload
    known: Known
    k: int
    alpha: float | None
    repeat: int
    span: LoadRange | None
    """None: to be measured first."""
    told: Told

    def run(self, metrics: Path) -> Repeat:
        """Run with a drafter and a BS of its own, whose metrics are written to `metrics`."""
        self.told(f"window {self.k}" + ("" if self.alpha is None else f", acceptance rate {self.alpha:g}"))
        drafter = self._drafter()
        try:
            span, served = asyncio.run(
                with_station(
                    self.config, self.work, lambda clients: self._loads(self._fleet(clients, drafter)), metrics
                )
            )
        finally:
            drafter.close()
        late = late_share(metrics)
        if late is not None:
            self.told(f"  passes exceeded the pace by {late:.1%}")
        return Repeat(span, served, late)

    def _drafter(self) -> Drafter:
        config, prompter = self.config, self.work.prompter
        assert prompter is not None
        if self.k == 0:
            return ReplayDrafter({}, vocab_size=prompter.vocab_size, alpha=0.0, context=1)
        if self.alpha is None:
            return drafter_of(_run_config(config), self.work)
        return ReplayDrafter(
            self.known,
            vocab_size=prompter.vocab_size,
            alpha=self.alpha,
            context=max(map(len, self.known)) + config.max_tokens + max(config.windows),
            seed=config.seed,
        )

    def _fleet(self, clients: Sequence[Client], drafter: Drafter) -> Fleet:
        return fleet_of(self.config, clients, drafter, self.k, self.alpha is not None)

    async def _loads(self, fleet: Fleet) -> tuple[LoadRange, list[list[Served]]]:
        """All loads in random order, each with prompts that are not in the BS's prefix cache."""
        config = self.config
        sizes = [SYNCHRONOUS, ROUNDS_OF_CEILING * config.at_once, *[config.requests] * config.rates]
        first, second, *loaded = batches(requests_of(config, self.work.prompts), sizes)
        for number, request in enumerate(requests_of(config, self.work.warmup)):
            await fleet.decode(number, request)
        span = self.span
        if span is None:
            low_rps = await synchronous_rps(fleet, first)
            high_rps = await throughput_rps(fleet, second, config.at_once, config.at_once)
            self.told(f"  one at a time {low_rps:.2f} requests/s, at most {high_rps:.2f}")
            span = LoadRange(low_rps, high_rps, loads(low_rps, high_rps, config.rates))
        served = [list[Served]() for _ in span.loads]
        for index in np.random.default_rng([config.seed, self.repeat, self.k]).permutation(config.rates):
            rps = span.loads[index]
            served[index] = await offer(fleet, loaded[index], rps, [config.seed, self.repeat])
            found = point([served[index]], self.k)
            piling = ", requests pile up" if found.saturated else ""
            self.told(f"  {rps:.2f} requests/s: {found.latency_s:.3f} s{piling}")
        return span, served


def write_points(path: Path, points: Sequence[LoadPoint]) -> None:
    """Write points as CSV for `testbed latency fit --csv`."""
    rows = (
        msgspec.structs.asdict(each) | {"alpha": each.alpha or 0.0, "saturated": int(each.saturated)} for each in points
    )
    write_csv(path, rows, COLUMNS, newline="\r\n")


def _prepare(config: LoadConfig) -> Workload:
    """The prompts of one series; all series have the same ones, each with a new BS."""
    work = workload_of(_run_config(config))
    return work if config.prefill is None else drawn(work, config.prefill, config.seed)


def _run_config(config: LoadConfig) -> RunConfig:
    """Run configuration with the prompts and drafter of a series."""
    return RunConfig(
        dataset=config.dataset,
        limit=SYNCHRONOUS + ROUNDS_OF_CEILING * config.at_once + config.rates * config.requests,
        max_tokens=config.max_tokens,
        drafter=config.drafter,
        tokenizer=config.tokenizer,
        concurrency=max(config.at_once, config.requests),
        window=max(1, *config.windows),
    )
