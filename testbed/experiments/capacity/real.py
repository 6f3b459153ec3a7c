"""Token-speed SLOs in real time: a BS process and UE processes that replay recorded drafts, one load after another.

The BS is that of `testbed bs serve`, with the bundled pair's target on vLLM. Each UE is a process with the session,
windows and messages of every UE; only its drafts are replayed (`ue/drafters/recorded.py`), at a device's pace, because
many drafters on one machine would measure that machine. Speeds, pace and batches are scaled to such a BS.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import msgspec

from testbed.config import ServeConfig, resolved
from testbed.errors import EngineError
from testbed.experiments.capacity.config import dealt
from testbed.experiments.capacity.pooled import pooled
from testbed.experiments.capacity.real_config import RealConfig, real_system
from testbed.experiments.capacity.real_tally import RealRun, tally
from testbed.experiments.capacity.real_ue import Report, UeOrder, run_ue
from testbed.experiments.deployment.distortions import TOLD_S, StoppedWatch, metrics_still_s, warn_others, warn_still
from testbed.experiments.deployment.links import radio_section
from testbed.experiments.links.shared import shared_radio
from testbed.experiments.lockstep.drafts import DraftsConfig, record
from testbed.experiments.results import directory as results
from testbed.experiments.results.claims import claimed, kept
from testbed.experiments.results.csv_file import write_csv
from testbed.experiments.runs.forked import forking, start, stop_all
from testbed.experiments.runs.prepare import predictor_directory
from testbed.experiments.runs.processes import WATCH_S, base_station, check_serving, counted_in, proxy
from testbed.intervals import independent_seed
from testbed.options import replaced

LOG = logging.getLogger(__name__)
CALIBRATED_BY = "fcfs-cache"
LEAD_S = 2.0
"""Time between the start of UE processes and their first requests, and the addition for each process."""
EACH_S = 0.15
STOPPING_S = 60.0
METRICS_S = 0.25
"""Time between two lines of the base station's counters."""

Told = Callable[[str], None]


def study(config: RealConfig, out: Path, told: Told) -> dict[str, Any]:
    """Run every system at every load with every seed, except for finished runs; writes `summary.json` and `pooled.csv`.

    Systems alternate within a seed, so that slow phases of the machine affect all of them.

    Raises:
        BadInput: an invalid configuration, or a directory of another study.
        EngineError: a process died.
    """
    with claimed(config, out, "study"):
        return _study(config, out, told)


def _study(config: RealConfig, out: Path, told: Told) -> dict[str, Any]:
    drafts = out / "drafts.msgpack"
    if not drafts.exists():
        told(f"recording the drafts of {config.prompts} prompts")
        asked = DraftsConfig(
            dataset=config.dataset, prompts=config.prompts, depth=config.depth, max_tokens=config.max_tokens
        )
        record(asked, lambda done, of: None).save(drafts)
    (out / "real").mkdir(exist_ok=True)
    rows = []
    loads = itertools.product(range(config.repeats), config.ues, config.systems)
    for repeat, ues, system in loads:
        seed = config.seed + repeat
        at_scale = replaced(config, {"speed_scale": speed_scale(config, ues, out / "real", drafts, told)})
        run = kept_load(at_scale, system, ues, seed, out / "real" / f"{system}-{ues}-{seed}.json", drafts, told)
        rows.append(run.row(config.epsilon))
    document = results.summary(resolved(config), config.seed, results.host(), rows)
    document["pooled"] = pooled(rows, config.epsilon)
    results.write_summary(out, document)
    write_csv(out / "pooled.csv", document["pooled"])
    return document


def speed_scale(config: RealConfig, ues: int, directory: Path, drafts: Path, told: Told) -> float:
    """Tokens a second of a speed of 1: as configured, or calibrated by a load of fcfs-cache."""
    if config.speed_scale is not None:
        return config.speed_scale
    free = replaced(config, {"speed_scale": 1.0})
    run = kept_load(free, CALIBRATED_BY, ues, config.seed, directory / f"calibration-{ues}.json", drafts, told)
    return config.load * run.goodput_tps / sum(dealt(config.mix, ues))


def kept_load(config: RealConfig, system: str, ues: int, seed: int, path: Path, drafts: Path, told: Told) -> RealRun:
    """One load, from its file if that exists."""

    def run() -> RealRun:
        told(f"{system}, {ues} UEs, seed {seed}")
        found = one_load(config, system, ues, seed, drafts, told)
        told(f"  {found.described()}")
        return found

    known = path.exists()
    found = kept(path, RealRun, run)
    if known and found.still_s > TOLD_S:
        LOG.warning(
            "something stood still for %.1f s during %s; remove that file to measure it again", found.still_s, path
        )
    return found


def one_load(
    config: RealConfig, system: str, ues: int, seed: int, drafts: Path, told: Told = lambda _: None
) -> RealRun:
    """One BS process and `ues` UE processes, until the load is over.

    Raises:
        TestbedError: a process died.
    """
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        metrics = directory / "metrics.jsonl"
        serving = base_station(_serving(config, system, metrics), say=told, watch=False)
        bs = stack.enter_context(serving)["bind"]
        addresses, relays = stack.enter_context(_links(config, ues, bs))
        watch = stack.enter_context(StoppedWatch(relays))
        start_s = time.monotonic() + LEAD_S + EACH_S * ues
        reports = _reports(_orders(config, system, seed, addresses, drafts, start_s), directory)
        from_s = start_s + config.warmup_s
        began_s = time.monotonic() - counted_in(metrics)["t_s"]
        still_s = metrics_still_s(metrics, METRICS_S, from_s - began_s, from_s + config.horizon_s - began_s)
        served = counted_in(metrics)["rounds"]
    warn_still(0.0, watch.still_s, [still_s], [report.still_s for report in reports])
    warn_others(served, sum(len(report.rounds) for report in reports), ues)
    return tally(system, ues, seed, reports, from_s, from_s + config.horizon_s, max(still_s, watch.still_s))


@contextlib.contextmanager
def _links(config: RealConfig, ues: int, bs: str) -> Iterator[tuple[Sequence[str], Sequence[int]]]:
    """The addresses at which the UEs reach the BS, each over its own link, and the processes that relay."""
    if config.radio is not None:
        with shared_radio(radio_section(config.radio), ues, bs, config.weights, watch=False) as cell:
            yield cell.listens, [cell.pid]
    elif config.link.kind == "none":
        yield [bs] * ues, []
    else:
        with proxy(config.link, bs, watch=False) as ready:
            yield ready["listens"][:ues] if config.link.shares else [ready["listen"]] * ues, [ready["pid"]]


def _serving(config: RealConfig, system: str, metrics: Path) -> ServeConfig:
    """Configuration of the BS."""
    chosen = real_system(system)
    return ServeConfig(
        bind="tcp://127.0.0.1:*",
        scheduler=chosen.order.kind,
        max_batch=config.max_batch,
        admission=config.admission or not chosen.order.admits,
        coefficients=(config.coefficients or None) if chosen.order.needs_coefficients else None,
        prefix_cache=chosen.prefix_cache,
        metrics=str(metrics), metrics_interval_s=METRICS_S,
    )  # fmt: skip


def _orders(
    config: RealConfig, system: str, seed: int, addresses: Sequence[str], drafts: Path, start_s: float
) -> list[UeOrder]:
    """Orders of UEs, one for each address."""
    ues = len(addresses)
    chosen = real_system(system)
    needs = chosen.rule is not None and chosen.rule.predictor
    own = independent_seed(seed, ues)  # each load draws its own prompts and starts, the same for all systems
    return [
        UeOrder(
            number=number, ues=ues, address=addresses[number], recording=str(drafts),
            rule=chosen.rule and chosen.rule.kind,
            window=chosen.window or config.window,
            predictor=str(predictor_directory(config.predictor)) if needs else None,
            draft_tps=config.draft_tps, speed_tps=speed * (config.speed_scale or 1.0),
            promised=chosen.order.admits, seed=own,
            start_s=start_s, spread_s=config.warmup_s / 2,
            stop_s=start_s + config.warmup_s + config.horizon_s + config.tail_s,
        )
        for number, speed in enumerate(dealt(config.mix, ues))
    ]  # fmt: skip


def _reports(orders: Sequence[UeOrder], directory: Path) -> list[Report]:
    """Start a process for each order, and wait for all reports."""
    context = forking(run_ue.__module__)
    paths = [directory / f"{order.number}.json" for order in orders]
    processes = [
        context.Process(target=run_ue, name=f"UE {order.number}", args=(order, path), daemon=True)
        for order, path in zip(orders, paths, strict=True)
    ]
    try:
        for process in processes:
            start(process)
        end_s = orders[0].stop_s + STOPPING_S
        while (alive := [p.sentinel for p in processes if p.is_alive()]) and time.monotonic() < end_s:
            wait(alive, WATCH_S)
            check_serving()
            if any(process.exitcode for process in processes):
                break
    finally:
        stop_all(processes)
    if dead := [path for path in paths if not path.exists()]:
        raise EngineError(f"{len(dead)} of {len(paths)} UE processes ended without a report")
    return [msgspec.json.decode(path.read_bytes(), type=Report) for path in paths]
