"""`testbed bench`: open-loop load on the device–edge pair and on the target alone, with the metrics of `vllm bench
serve`: TTFT, TPOT, inter-token latency, and goodput under an SLO.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from testbed.bs.engines.registry import ENGINES
from testbed.clock import WallClock
from testbed.config import RunConfig, ServeConfig, resolved
from testbed.errors import BadInput
from testbed.experiments.deployment.distortions import own_standstill_told
from testbed.experiments.deployment.load import Fleet, LoadRequest, open_loop, poisson_arrivals
from testbed.experiments.inputs.pair import target_for
from testbed.experiments.latency.bench_config import BenchConfig
from testbed.experiments.plots.bench import bench_figure
from testbed.experiments.plots.style import write_figure
from testbed.experiments.results import directory as results
from testbed.experiments.results.claims import reserved
from testbed.experiments.results.csv_file import write_csv
from testbed.experiments.results.metrics import RequestTimes, times_of
from testbed.experiments.runs.execute import drafter_of
from testbed.experiments.runs.prepare import Workload, prepare
from testbed.experiments.runs.processes import base_station, keep_checking
from testbed.intervals import LEAST_VALUES, independent_seed
from testbed.protocols.methods import run_method
from testbed.tasks import beside
from testbed.ue.dial import dial
from testbed.ue.drafters.base import Drafter
from testbed.ue.records import RequestRecord
from testbed.ue.run import Clients, JobRunner, Setting
from testbed.ue.windows.fixed import FixedWindow

Say = Callable[[str], None]
PERCENTILES = {"median": 50, "p95": 95, "p99": 99}
"""Percentiles by the beginning of their columns' names."""
SLOS = ("ttft", "tpot", "e2el")
"""Metrics that a goodput may bound, in ms: time to first token, time per output token, latency of the request."""


def limits_of(texts: Sequence[str]) -> dict[str, float]:
    """Limits in ms by metric.

    Raises:
        BadInput: an unknown metric, or not a positive number.
    """
    found = {}
    for text in texts:
        name, _, value = text.partition(":")
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = math.nan
        if name not in SLOS or not found[name] > 0:
            raise BadInput(f"--goodput takes NAME:MS with NAME one of {', '.join(SLOS)}, not {text!r}")
    return found


def row_of(
    method: str, rate_rps: float, window: int, served: Sequence[RequestTimes], prompts: Sequence[int],
    seconds: float, limits_ms: Mapping[str, float],
) -> dict[str, Any]:  # fmt: skip
    """Metrics of one load; times in ms as in `vllm bench serve`. Percentiles are None if they rest on too few requests
    (`intervals.LEAST_VALUES`).

    Args:
        prompts: tokens of each prompt.
        seconds: from the first arrival to the last answer.
    """
    tokens = sum(one.tokens for one in served)
    row: dict[str, Any] = {
        "method": method, "window": window, "rate_rps": rate_rps if math.isfinite(rate_rps) else None,
        "requests": len(served), "duration_s": seconds, "input_tokens": sum(prompts), "output_tokens": tokens,
        "request_throughput_rps": len(served) / seconds, "output_throughput_tps": tokens / seconds,
        "total_throughput_tps": (tokens + sum(prompts)) / seconds,
    }  # fmt: skip
    row["goodput_rps"] = sum(_kept(one, limits_ms) for one in served) / seconds if limits_ms else None
    values = {
        "ttft": [one.ttft_s for one in served],
        "tpot": [one.tpot_s for one in served if one.tpot_s is not None],
        "itl": [gap_s for one in served for gap_s in one.gaps_s],
        "e2el": [one.latency_s for one in served],
    }
    for name, found_s in values.items():
        found_ms = 1e3 * np.array(found_s)
        row[f"mean_{name}_ms"] = float(found_ms.mean()) if found_ms.size else None
        for word, share in PERCENTILES.items():
            enough = found_ms.size and len(served) >= LEAST_VALUES.get(share, 1)
            row[f"{word}_{name}_ms"] = float(np.percentile(found_ms, share)) if enough else None
    return row


def _kept(one: RequestTimes, limits_ms: Mapping[str, float]) -> bool:
    """Whether a request keeps all limits; a single token has no time per output token to keep."""
    taken_s = {"ttft": one.ttft_s, "tpot": one.tpot_s or 0.0, "e2el": one.latency_s}
    return all(1e3 * taken_s[name] <= limit for name, limit in limits_ms.items())


# ---------------------------------------------------------------- running


@dataclass(frozen=True)
class MethodFleet(Fleet):
    """Requests decoded by one method over one connection, a bounded number concurrently."""

    runner: JobRunner
    method: str
    end_ids: Sequence[int]
    places: asyncio.Semaphore

    async def decode(self, number: int, request: LoadRequest) -> RequestRecord:
        """See `Fleet.decode`."""
        async with self.places:
            return await self.runner.decode(self.method, request.prompt, request.tokens, self.end_ids, request=number)


def run_bench(config: BenchConfig, out: Path | None, say: Say) -> dict[str, Any]:
    """Measure every method at every rate, and write `summary.json`, `bench.csv` and plots where `out` says so.

    Raises:
        BadInput: a configuration that cannot be used; nothing was started then.
    """
    limits = limits_of(config.goodput)
    if not config.rates or not all(rate > 0 for rate in config.rates):
        raise BadInput("--rates takes positive numbers separated by commas, or inf")
    for method in config.methods:
        if run_method(method).on_bs:
            raise BadInput(f"{method} has no link of its own; give other --methods")
    with contextlib.nullcontext() if out is None else reserved(out):
        document = _measured(config, limits, say)
        if out is not None:
            _write(out, document)
    return document


OF_OWN_STATION = ("engine", "dtype")
"""Options of the base station that is started for the measurement."""


def _measured(config: BenchConfig, limits: Mapping[str, float], say: Say) -> dict[str, Any]:
    """The document of `summary.json`."""
    if config.bs is not None:
        config.refuse_unused(OF_OWN_STATION, "with --bs")
    run = RunConfig(
        methods=config.methods, window=config.window, limit=config.requests * len(config.rates), dataset=config.dataset,
        max_tokens=config.max_tokens, drafter=config.drafter, seed=config.seed, concurrency=config.max_concurrency,
        tokenizer=config.tokenizer or (config.model if config.drafter else None), keys=config.keys,
        insecure=config.insecure, bs=config.bs or RunConfig().bs, threads=config.threads,
    )  # fmt: skip
    work = prepare(run)
    with _station(config, say) as address:
        drafter = drafter_of(run, work)
        try:
            with own_standstill_told():
                rows = asyncio.run(beside([keep_checking()], _measure(config, work, drafter, address, limits, say)))
        finally:
            drafter.close()
    stated = resolved(config)
    stated["rates"] = [rate if math.isfinite(rate) else None for rate in config.rates]  # JSON has no infinity
    if config.bs is not None:  # what it computes with is not known here
        stated |= dict.fromkeys(OF_OWN_STATION)
    return {**results.summary(stated, config.seed, results.host(), rows), "kind": "bench"}


@contextlib.contextmanager
def _station(config: BenchConfig, say: Say) -> Iterator[str]:
    """Address of the given BS, or of one that is started for the measurement."""
    if config.bs is not None:
        yield config.bs
        return
    say(f"starting the base station ({config.engine})")
    model = str(target_for(config.engine, config.model)) if ENGINES.choose(config.engine).needs_model else None
    serve = ServeConfig(bind="tcp://127.0.0.1:*", engine=config.engine, model=model, dtype=config.dtype)
    with base_station(serve, say=say) as ready:
        yield ready["bind"]


async def _measure(
    config: BenchConfig, work: Workload, drafter: Drafter, address: str, limits: Mapping[str, float], say: Say
) -> list[dict[str, Any]]:
    clock = WallClock()
    client = dial(address, config.keys, clock, config.timeout_s, insecure=config.insecure)
    try:
        fingerprint = work.prompter.fingerprint if work.prompter else ""
        welcome = await client.connect(fingerprint, drafter.vocab_size)
        setting = Setting(Clients(client, client), drafter, FixedWindow(config.window), seed=config.seed)
        rows = []
        for method in config.methods:
            places = asyncio.Semaphore(config.max_concurrency)
            fleet = MethodFleet((), clock, JobRunner(setting), method, welcome.end_ids, places)
            await fleet.decode(0, LoadRequest(work.prompts[0].ids, config.max_tokens))  # warm-up
            for number, rate in enumerate(config.rates):
                least = f", {config.requests / rate:.0f} s or more" if math.isfinite(rate) else ""
                say(f"{method}: {config.requests} requests at {rate:g} requests/s{least}")
                rows.append(await _load(config, work, fleet, number, limits))
        return rows
    finally:
        await client.close()


def arrivals(config: BenchConfig, rate: float) -> list[float]:
    """Arrival times at a rate: its own Poisson process, the same for all methods; all at once at an infinite rate."""
    if not math.isfinite(rate):
        return [0.0] * config.requests
    seed = independent_seed(config.seed, "arrivals", rate)
    return poisson_arrivals([rate], [config.requests], np.random.default_rng(seed))


async def _load(
    config: BenchConfig, work: Workload, fleet: MethodFleet, number: int, limits: Mapping[str, float]
) -> dict[str, Any]:
    """One method at the rate of this number, with prompts that no other rate has as far as there are enough."""
    rate, first = config.rates[number], number * config.requests
    prompts = [work.prompts[i % len(work.prompts)].ids for i in range(first, first + config.requests)]
    times_s = arrivals(config, rate)
    requests = [LoadRequest(ids, config.max_tokens, at_s) for ids, at_s in zip(prompts, times_s, strict=True)]
    served = await open_loop(fleet, requests)
    seconds = max(at_s + took_s for at_s, (_, took_s) in zip(times_s, served, strict=True)) - times_s[0]
    window = config.window if run_method(fleet.method).drafts else 0
    found = [times_of(record, took_s) for record, took_s in served]
    return row_of(fleet.method, rate, window, found, list(map(len, prompts)), seconds, limits)


def _write(out: Path, document: dict[str, Any]) -> None:
    rows = document["rows"]
    write_csv(out / "bench.csv", rows)
    (out / "plots").mkdir(exist_ok=True)
    write_figure(bench_figure(rows), out / "plots", "1", ("png", "svg"))
    results.write_summary(out, document)
