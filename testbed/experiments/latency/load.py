"""Latency under load: a new BS for every window, acceptance rate and repeat, and UEs whose requests arrive at random.

The BS is a process on this machine, or, in virtual time, one with a profile's pass times. Drafts are replayed at a
chosen acceptance rate, or come from the real drafter. Arrivals and accepted tokens of every load, series and repeat
have seeds of their own. Every run is saved; a second call resumes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from testbed.config import RunConfig, resolved
from testbed.experiments.deployment.load import Fleet, LoadRequest, throughput_rps
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
from testbed.experiments.latency.virtual import VirtualBs
from testbed.experiments.results import directory as results
from testbed.experiments.results.claims import claimed, kept
from testbed.experiments.results.csv_file import write_csv
from testbed.experiments.runs.execute import drafter_of
from testbed.experiments.runs.prepare import Workload
from testbed.intervals import independent_seed
from testbed.ue.client import Client
from testbed.ue.drafters.base import Drafter
from testbed.ue.drafters.controlled import ReplayDrafter
from testbed.ue.windows.fixed import FixedWindow

COLUMNS = (
    "rps", "latency_s", "alpha", "k", "prefill", "decode", "latency_p95_s", "latency_p99_s", "requests", "batch_size",
    "saturated", "imposed", "repeat",
)  # fmt: skip
SYNCHRONOUS = 10
"""Requests that are sent one after another."""
MAX_BATCH = 256
"""Requests of one pass in virtual time."""
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
    """All loads with one window."""

    k: int
    alpha: float | None
    """Acceptance rate of replayed drafts; None: real drafts."""
    synchronous_rps: float
    ceiling_rps: float
    points: list[LoadPoint]
    """Loads over all repeats together."""
    single: list[LoadPoint]
    """Loads of each repeat; saturated if they are over all repeats together."""


def measure(config: LoadConfig, out: Path, told: Told) -> list[Series]:
    """Carry out all unfinished runs; writes `all.csv` (a row for each load and repeat), `points.csv` (the same without
    saturated loads), `pooled.csv` (a row for each load over all repeats) and `summary.json`.

    Raises:
        BadInput: an invalid configuration, too few prompts, or a directory of another measurement.
    """
    config.check_kind()
    work = _prepare(config) if config.kind == "real" else None
    with claimed(config, out, "measurement"):
        known = {} if work is None else outputs_of(config, work, out, told)
        found: dict[tuple[int, float | None], list[Repeat]] = {}
        for repeat in range(config.repeats):
            for index in np.random.default_rng([config.seed, repeat]).permutation(len(config.series)):
                k, alpha = config.series[index]
                done = found.setdefault((k, alpha), [])
                job = _Job(config, work, known, k, alpha, repeat, done[0].range if done else None, told)
                path = out / f"series-{_named(k, alpha)}-repeat{repeat}.json"
                done.append(kept(path, Repeat, partial(job.run, path.with_suffix(".metrics"))))
        return _written(config, out, [_pooled(key, found[key]) for key in config.series])


def _named(k: int, alpha: float | None) -> str:
    """Name of a series: no other one of a measurement has it."""
    if alpha is None:
        return f"k{k}"
    return f"k{k}-alpha{alpha:g}" if float(f"{alpha:g}") == alpha else f"k{k}-alpha{alpha!r}"


def _pooled(key: tuple[int, float | None], repeats: Sequence[Repeat]) -> Series:
    """All repeats of one window together."""
    k, alpha = key
    points, single = [], []
    for load in zip(*(repeat.served for repeat in repeats), strict=True):
        together = point(load, k, alpha)
        points.append(together)
        each = (point([served], k, alpha, number) for number, served in enumerate(load))
        single += [msgspec.structs.replace(one, saturated=together.saturated) for one in each]
    return Series(k, alpha, repeats[0].range.synchronous_rps, repeats[0].range.ceiling_rps, points, single)


def _written(config: LoadConfig, out: Path, found: list[Series]) -> list[Series]:
    """Write the tables of all series; returns the series."""
    write_tables(out, found)
    rows = [msgspec.to_builtins(p) for series in found for p in series.points]
    results.write_summary(out, results.summary(resolved(config), config.seed, results.host(), rows))
    return found


@dataclass(frozen=True)
class _Job:
    """One repeat of one series."""

    config: LoadConfig
    work: Workload | None
    """None: virtual time."""
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
        if self.work is None:
            return self._virtual()
        work, drafter = self.work, self._drafter(self.work)

        async def use(clients: Sequence[Client]) -> tuple[LoadRange, list[list[Served]]]:
            fleet = fleet_of(self.config, clients, drafter, self.k, self.alpha is not None)
            for number, request in enumerate(requests_of(self.config, work.warmup)):
                await fleet.decode(number, request)
            return await self._loads(fleet, requests_of(self.config, work.prompts))

        try:
            span, served = with_station(self.config, work, use, metrics)
        finally:
            drafter.close()
        late = late_share(metrics)
        if late is not None:
            self.told(f"  passes exceeded the pace by {late:.1%}")
        return Repeat(span, served, late)

    def _virtual(self) -> Repeat:
        config, seed = self.config, self._seed("virtual")
        bs = VirtualBs(config, config.draft_ms, MAX_BATCH)
        requests = bs.requests([(0, 0.0)] * requests_needed(config), seed)
        (span, served), _ = bs.served(
            lambda: FixedWindow(self.k) if self.k else None, self.alpha or 0.0, seed, requests,
            lambda fleet: self._loads(fleet, requests),
        )  # fmt: skip
        return Repeat(span, served)

    def _seed(self, *use: object) -> int:
        """Seed of one use in this series and repeat."""
        return independent_seed(self.config.seed, "load", self.k, self.alpha, self.repeat, *use)

    def _drafter(self, work: Workload) -> Drafter:
        config, prompter = self.config, work.prompter
        assert prompter is not None
        if self.k == 0:
            return ReplayDrafter({}, vocab_size=prompter.vocab_size, alpha=0.0, context=1)
        if self.alpha is None:
            return drafter_of(_run_config(config), work)
        return ReplayDrafter(
            self.known,
            vocab_size=prompter.vocab_size,
            alpha=self.alpha,
            context=max(map(len, self.known)) + config.max_tokens + max(config.windows),
            seed=self._seed("drafts"),
        )

    async def _loads(self, fleet: Fleet, requests: Sequence[LoadRequest]) -> tuple[LoadRange, list[list[Served]]]:
        """All loads in random order, each with prompts that are not in the BS's prefix cache."""
        config = self.config
        sizes = [SYNCHRONOUS, ROUNDS_OF_CEILING * config.at_once, *[config.requests] * config.rates]
        random = np.random.default_rng(self._seed("order"))
        first, second, *loaded = batches((requests[i] for i in random.permutation(len(requests))), sizes)
        span = self.span
        if span is None:
            low_rps = await synchronous_rps(fleet, first)
            high_rps = await throughput_rps(fleet, second, config.at_once, config.at_once)
            self.told(f"  one at a time {low_rps:.2f} requests/s, at most {high_rps:.2f}")
            span = LoadRange(low_rps, high_rps, loads(low_rps, high_rps, config.rates))
        served = [list[Served]() for _ in span.loads]
        for index in random.permutation(config.rates):
            rps = span.loads[index]
            served[index] = await offer(fleet, loaded[index], rps, self._seed("arrivals", int(index)))
            found = point([served[index]], self.k)
            piling = ", requests pile up" if found.saturated else ""
            self.told(f"  {rps:.2f} requests/s: {found.latency_s:.3f} s{piling}")
        return span, served


def write_tables(out: Path, found: Sequence[Series]) -> None:
    """Write `all.csv`, `points.csv` and `pooled.csv` (see `measure`)."""
    single = [p for series in found for p in series.single]
    _write_points(out / "all.csv", single)
    _write_points(out / "points.csv", [p for p in single if not p.saturated])
    _write_points(out / "pooled.csv", [p for series in found for p in series.points])


def _write_points(path: Path, points: Sequence[LoadPoint]) -> None:
    rows = (
        msgspec.structs.asdict(each) | {"alpha": each.alpha or 0.0, "saturated": int(each.saturated)} for each in points
    )
    write_csv(path, rows, COLUMNS, newline="\r\n")


def requests_needed(config: LoadConfig) -> int:
    """Requests of one repeat of a series, each used once."""
    return SYNCHRONOUS + ROUNDS_OF_CEILING * config.at_once + config.rates * config.requests


def _prepare(config: LoadConfig) -> Workload:
    """The prompts of one series; all series have the same ones, each with a new BS."""
    work = workload_of(_run_config(config))
    return work if config.prefill is None else drawn(work, config.prefill, config.seed)


def _run_config(config: LoadConfig) -> RunConfig:
    """Run configuration with the prompts and drafter of a series."""
    return RunConfig(
        dataset=config.dataset,
        limit=requests_needed(config),
        max_tokens=config.max_tokens,
        drafter=config.drafter,
        tokenizer=config.tokenizer,
        concurrency=max(config.at_once, config.requests),
        window=max(1, *config.windows),
    )
