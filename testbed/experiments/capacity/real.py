"""Token-speed SLOs in real time: a BS process and UE processes that replay recorded drafts, one load after another.

The BS is that of `testbed bs serve`, with the bundled pair's target on vLLM. Each UE is a process with the session,
windows and messages of every UE; only its drafts are replayed (`ue/drafters/recorded.py`), at a device's pace, because
many drafters on one machine would measure that machine. Speeds, pace and batches are scaled to such a BS.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from testbed.bs.scheduling.registry import SCHEDULERS, SchedulerEntry
from testbed.channel.spec import ChannelSpec
from testbed.config import Config, ServeConfig, resolved
from testbed.errors import BadInput, EngineError
from testbed.experiments.capacity.config import dealt
from testbed.experiments.capacity.pooled import pooled
from testbed.experiments.capacity.real_tally import RealRun, tally
from testbed.experiments.capacity.real_ue import Report, UeOrder, run_ue
from testbed.experiments.lockstep.drafts import DraftsConfig, record
from testbed.experiments.results import directory as results
from testbed.experiments.results.claims import claimed, kept
from testbed.experiments.results.csv_file import write_csv
from testbed.experiments.runs.forked import start, stop_all
from testbed.experiments.runs.prepare import predictor_directory
from testbed.experiments.runs.processes import WATCH_S, base_station, check_serving, proxy
from testbed.intervals import independent_seed
from testbed.options import replaced
from testbed.ue.windows.base import MAX_WINDOW, WindowRule
from testbed.ue.windows.fixed import FIXED
from testbed.ue.windows.gain import GAIN
from testbed.ue.windows.predicted import BEFORE


class RealSystem(NamedTuple):
    """A serving system of real processes."""

    order: SchedulerEntry
    rule: WindowRule | None
    """Window rule of the UEs; None: the target decodes alone."""
    prefix_cache: bool = True
    window: int | None = None
    """K of fixed windows; None: the configuration's."""


FCFS, SLO = SCHEDULERS["fcfs"], SCHEDULERS["slo"]
SYSTEMS = {
    "wisp": RealSystem(SLO, BEFORE),
    "wisp-gain": RealSystem(SLO, GAIN),
    "wisp-fixed": RealSystem(SLO, FIXED),
    "fcfs-cache": RealSystem(FCFS, FIXED),
    "fcfs-predicted": RealSystem(FCFS, BEFORE),
    "fcfs-gain": RealSystem(FCFS, GAIN),
    "sled": RealSystem(FCFS, FIXED, prefix_cache=False),
    "centralized": RealSystem(FCFS, None),
}
"""Systems by name; `fixed-K` is `fcfs-cache` with K tokens."""
CALIBRATED_BY = "fcfs-cache"
LEAD_S = 2.0
"""Time between the start of UE processes and their first requests, and the addition for each process."""
EACH_S = 0.15
MOST_UES = 64
STOPPING_S = 60.0

Told = Callable[[str], None]


class RealConfig(Config, frozen=True, kw_only=True):
    """What `testbed capacity --real` does.

    Raises:
        BadInput: values that cannot be.
    """

    systems: tuple[str, ...] = ("wisp", "fcfs-cache", "sled", "centralized")
    ues: tuple[int, ...] = (16,)
    """Processes at once, one load each."""
    mix: dict[float, int] = msgspec.field(default_factory=lambda: {2.0: 1, 4.0: 1, 6.0: 1, 8.0: 1})
    """Shares of UEs by speed, in units of `speed_scale` tokens a second."""
    speed_scale: float | None = None
    """None: the guarantees add up to `load` of what fcfs-cache carries at this number of UEs, measured first."""
    load: float = 0.6
    """That of the virtual mix of 130 UEs, whose guarantees add up to 650 tokens/s; fcfs-cache carries 1090 there."""
    epsilon: float = 0.05
    repeats: int = 1
    seed: int = 0
    warmup_s: float = 4.0
    horizon_s: float = 20.0
    """Responses that begin within it, after the warm-up, are judged."""
    tail_s: float = 3.0
    """The load goes on for so long after it."""
    draft_tps: float = 500.0
    """Tokens a second of a UE's drafter."""
    rtt_ms: float = 0.0
    """Round-trip time of a link through the proxy; 0: loopback only."""
    window: int = 5
    """K of fixed windows, and K_max of all other rules."""
    predictor: str | None = None
    """Directory; None: the bundled one."""
    max_batch: int = 2
    """Requests of a pass."""
    coefficients: str | None = None
    """Coefficients of scheduler slo: see `bs serve --coefficients`; None: the BS measures them."""
    admission: bool = False
    """Whether scheduler slo refuses UEs: a comparison at one load serves all of them."""
    prompts: int = 400
    """Recorded; they are dealt out to the UEs, each once before any comes again."""
    dataset: str = "bundled:test"
    max_tokens: int = 256

    def __post_init__(self) -> None:
        for name in self.systems:
            real_system(name)
        if not self.systems or len(set(self.systems)) < len(self.systems):
            raise BadInput("give one system or more, each once")
        if not self.ues or not all(1 <= n <= MOST_UES for n in self.ues):
            raise BadInput(f"UE processes: 1 to {MOST_UES}, not {', '.join(map(str, self.ues))}")
        if not self.mix or any(speed <= 0 or share < 1 for speed, share in self.mix.items()):
            raise BadInput("a mix has positive speeds, each with a share of 1 or more")
        for name in ("speed_scale", "load", "horizon_s", "draft_tps"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise BadInput(f"{name.replace('_', '-')} must be positive, not {value:g}")
        for name, low, high in (
            ("epsilon", 0, 1), ("warmup_s", 0, 1e4), ("tail_s", 0, 1e4), ("rtt_ms", 0, 1e4), ("repeats", 1, 1000),
            ("seed", 0, 2**31), ("window", 1, MAX_WINDOW), ("max_batch", 1, 4096),
            ("prompts", max(self.ues), 10**6), ("max_tokens", 1, 10**6),
        ):  # fmt: skip
            if not low <= getattr(self, name) <= high:
                raise BadInput(f"{name.replace('_', '-')} must lie in [{low:g}, {high:g}], not {getattr(self, name):g}")

    @property
    def depth(self) -> int:
        """Longest window of any system."""
        return max(real_system(name).window or self.window for name in self.systems)


def real_system(system: str) -> RealSystem:
    """The system of that name.

    Raises:
        BadInput: an unknown system.
    """
    kind, dash, size = system.partition("-")
    if kind == FIXED.kind and dash:
        if not size.isdecimal() or not 1 <= int(size) <= MAX_WINDOW:
            raise BadInput(f"fixed-K has a window K in 1..{MAX_WINDOW}, not {size!r}")
        return RealSystem(FCFS, FIXED, window=int(size))
    if system not in SYSTEMS:
        raise BadInput(f"unknown system {system!r}; known: {', '.join(SYSTEMS)}, fixed-K")
    return SYSTEMS[system]


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
        found = one_load(config, system, ues, seed, drafts)
        told(f"  {found.described()}")
        return found

    return kept(path, RealRun, run)


def one_load(config: RealConfig, system: str, ues: int, seed: int, drafts: Path) -> RealRun:
    """One BS process and `ues` UE processes, until the load is over.

    Raises:
        TestbedError: a process died.
    """
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(base_station(_serving(config, system)))["bind"]
        if config.rtt_ms > 0:
            link = ChannelSpec(kind="proxy", rtt_ms=config.rtt_ms)
            address = stack.enter_context(proxy(link, address))["listen"]
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        start_s = time.monotonic() + LEAD_S + EACH_S * ues
        reports = _reports(_orders(config, system, ues, seed, address, drafts, start_s), directory)
    from_s = start_s + config.warmup_s
    return tally(system, ues, seed, reports, from_s, from_s + config.horizon_s)


def _serving(config: RealConfig, system: str) -> ServeConfig:
    """Configuration of the BS."""
    chosen = real_system(system)
    return ServeConfig(
        bind="tcp://127.0.0.1:*",
        scheduler=chosen.order.kind,
        max_batch=config.max_batch,
        admission=config.admission or not chosen.order.admits,
        coefficients=(config.coefficients or None) if chosen.order.needs_coefficients else None,
        prefix_cache=chosen.prefix_cache,
    )


def _orders(
    config: RealConfig, system: str, ues: int, seed: int, address: str, drafts: Path, start_s: float
) -> list[UeOrder]:
    chosen = real_system(system)
    needs = chosen.rule is not None and chosen.rule.predictor
    own = independent_seed(seed, ues)  # each load draws its own prompts and starts, the same for all systems
    return [
        UeOrder(
            number=number, ues=ues, address=address, recording=str(drafts),
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
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([run_ue.__module__])
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
    finally:
        stop_all(processes)
    if dead := [path for path in paths if not path.exists()]:
        raise EngineError(f"{len(dead)} of {len(paths)} UE processes ended without a report")
    return [msgspec.json.decode(path.read_bytes(), type=Report) for path in paths]
