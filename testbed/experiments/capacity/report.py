"""The rows of `testbed capacity`, and the files of its output directory."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from testbed.config import resolved
from testbed.errors import BadInput
from testbed.experiments.capacity.paper import ESTIMATES, SENSITIVITY, SWITCHES, TABLE_2
from testbed.experiments.capacity.search import (
    CapacityPoint,
    CapacityResult,
    Job,
    Told,
    capacity_of,
    knees_of,
    run_jobs,
    single,
)  # fmt: skip
from testbed.experiments.capacity.systems import CapacityConfig, spread
from testbed.experiments.capacity.tally import CapacityRun
from testbed.experiments.plots.capacity import NOTHING
from testbed.experiments.results import directory as results
from testbed.experiments.results.claims import claimed
from testbed.intervals import compared, paired_interval, repeats_interval
from testbed.options import replaced

Row = dict[str, Any]
VARIATIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "sensitivity": SENSITIVITY,
    "switches": SWITCHES,
    "estimates": ESTIMATES,
}
BASELINE = "fcfs-cache"
"""The system that all others are compared with, seed by seed."""


@dataclass(frozen=True)
class Study:
    """One call of the command.

    Raises:
        BadInput: mutually exclusive options.
    """

    config: CapacityConfig
    vary: str | None = None
    """One of `VARIATIONS`: values of the configuration, each varied by itself."""
    sweep: tuple[int, ...] = ()
    tables: bool = False
    workers: int = 1

    def __post_init__(self) -> None:
        asked = [self.vary is not None, bool(self.sweep), self.config.ues is not None]
        if sum(asked) > 1:
            raise BadInput("--ues, --sweep and --sensitivity, --switches, --estimates exclude each other")
        if self.tables and (sum(asked) or self.config.mix is not None):
            raise BadInput("--tables goes with a search of classes by themselves: leave out --mix, --ues and --sweep")


@dataclass(frozen=True)
class Asked:
    """A job, and the rows of its result."""

    job: Job
    rows: Callable[[Any], list[Row]]


def study(plan: Study, out: Path | None, told: Told) -> dict[str, Any]:
    """Carry out all runs, and return the document of `summary.json`; written to `out` with tables and plots.

    Raises:
        BadInput: `out` belongs to another study.
    """
    if out is None:
        return _study(plan, None, told)
    with claimed(plan.config, out, "study"):
        return _study(plan, out, told)


def _study(plan: Study, out: Path | None, told: Told) -> dict[str, Any]:
    config = plan.config
    asked = _asked(plan)
    found = run_jobs([one.job for one in asked], plan.workers, None if out is None else out / "points", told)
    rows = [row for one, result in zip(asked, found, strict=True) for row in one.rows(result)]
    if plan.vary is not None:
        _compare(rows)
    for name in ("", "all_"):
        _compare_seeds(rows, name)
    document = results.summary(resolved(config), config.seed, results.host(), rows)
    if out is not None:
        from testbed.experiments.capacity.tables import run_extras, write_extras, write_study

        results.write_summary(out, document)
        write_study(rows, config, out)
        if plan.tables:
            write_extras(run_extras(config, plan.workers, out / "points", told), config, out)
    return document


# ---------------------------------------------------------------- jobs


def _asked(plan: Study) -> list[Asked]:
    config = plan.config
    if config.ues is not None:
        return [one for system in config.systems for one in _at(config, system, (config.ues,))]
    if plan.sweep:
        return [one for system in config.systems for one in _at(config, system, plan.sweep)]
    varied: list[dict[str, Any]] = [{}, *(VARIATIONS[plan.vary] if plan.vary is not None else ())]
    return [
        one
        for values in varied
        for system in config.systems
        for one in _searches(replaced(config, values), system, None if plan.vary is None else values)
    ]


def _searches(config: CapacityConfig, system: str, varied: dict[str, Any] | None) -> list[Asked]:
    if config.mix is not None:
        return [_knees(config, system, varied)]
    return [_capacity(config, system, speed, varied) for speed in config.classes]


def _capacity(config: CapacityConfig, system: str, speed: float, varied: dict[str, Any] | None) -> Asked:
    def rows(result: CapacityResult) -> list[Row]:
        row = _row(system, speed, result, varied)
        paper = TABLE_2.get(config.paper or "", {}).get(system, {}).get(speed)
        if paper is not None:
            row |= {"paper": paper, "ratio": result.ues / paper}
        return [row | _figures(result.runs)]

    return Asked(cast(Job, capacity_of(config, system, speed)), rows)


def _row(system: str, speed: float, result: CapacityResult, varied: dict[str, Any] | None) -> Row:
    low, high = repeats_interval(result.by_seed).ends
    row: Row = {"system": system, "class_tps": speed, "capacity": result.ues, "capacity_low": low,
                "capacity_high": high, "by_seed": list(result.by_seed)}  # fmt: skip
    if varied is not None:
        row["varied"] = ", ".join(f"{key}={value}" for key, value in varied.items()) or NOTHING
    return row


def _knees(config: CapacityConfig, system: str, varied: dict[str, Any] | None) -> Asked:
    def rows(result: dict[float, CapacityResult]) -> list[Row]:
        every = [min(found) for found in zip(*(knee.by_seed for knee in result.values()), strict=True)]
        return [
            _row(system, speed, knee, varied) | _figures(knee.runs) | _own(knee.runs, speed)
            | {"all": statistics.median_low(every), "all_by_seed": every}
            for speed, knee in sorted(result.items())
        ]  # fmt: skip

    return Asked(cast(Job, knees_of(config, system)), rows)


def _own(runs: Sequence[CapacityRun], speed_tps: float) -> Row:
    """Results of one class of a mix."""
    counts = [run.classes[name] for run in runs if (name := f"{speed_tps:g}") in run.classes]
    judged = sum(count.judged for count in counts)
    return {"violation": sum(c.violated for c in counts) / judged if judged else None, "judged": judged}


def _at(config: CapacityConfig, system: str, numbers: Sequence[int]) -> list[Asked]:
    """Runs at given numbers of UEs, for each class alone or for the mix."""
    loads = [None] if config.mix is not None else list(config.classes)
    return [
        _run(config, system, speed, ues, config.seed + repeat)
        for ues in numbers
        for speed in loads
        for repeat in range(config.repeats)
    ]


def _run(config: CapacityConfig, system: str, speed: float | None, ues: int, seed: int) -> Asked:
    classes = tuple(spread(config, ues)) if speed is None else (speed,) * ues

    def rows(run: CapacityRun) -> list[Row]:
        shares = {name: count.share for name, count in run.classes.items()}
        verdicts = {name: count.verdict(config.epsilon) for name, count in run.classes.items()}
        row: Row = {"system": system, "class_tps": speed, "ues": ues, "seed": seed, "violations": shares}
        return [row | {"verdicts": verdicts} | _figures([run])]

    return Asked(cast(Job, single(CapacityPoint(config, system, classes, seed))), rows)


def _figures(runs: Sequence[CapacityRun]) -> Row:
    """Means over the runs of all seeds; violations are pooled."""
    if not runs:
        return {"goodput_tps": 0.0}
    counts = [count for run in runs for count in run.classes.values()]
    judged, drafted = sum(count.judged for count in counts), sum(run.drafted for run in runs)
    goodput = repeats_interval([run.goodput_tps for run in runs])
    mean = {
        name: statistics.fmean(getattr(run, name) for run in runs)
        for name in ("batch_size", "busy_share", "evicted_tokens", "memory_bound", "virtual_s", "cpu_s")
    }
    return {
        "violation": sum(count.violated for count in counts) / judged if judged else None,
        "judged": judged,
        "starved": sum(count.starved for count in counts),
        "goodput_tps": goodput.value,
        "goodput_low": goodput.ends[0],
        "goodput_high": goodput.ends[1],
        "acceptance": sum(run.accepted for run in runs) / drafted if drafted else None,
        "empty": sum(run.empty for run in runs) / max(1, sum(run.rounds for run in runs)),
        **mean,
    }


def _compare_seeds(rows: list[Row], name: str) -> None:
    """Add each capacity's difference to that of `BASELINE` under the same conditions, paired by seed, and a verdict."""
    key = f"{name}by_seed"
    base = {(row["class_tps"], row.get("varied")): row[key] for row in rows if row["system"] == BASELINE and key in row}
    for row in rows:
        theirs = base.get((row["class_tps"], row.get("varied")))
        if theirs is None or key not in row or row["system"] == BASELINE:
            continue
        found = paired_interval(row[key], theirs)
        low, high = found.ends
        row |= {f"{name}difference": found.value, f"{name}difference_low": low, f"{name}difference_high": high,
                f"{name}verdict": compared(found)}  # fmt: skip


def _compare(rows: list[Row]) -> None:
    """Add each variation's change of the capacity, and the factor of `wisp` (or the first system) over the others."""
    base = {(row["system"], row["class_tps"]): row["capacity"] for row in rows if row["varied"] == NOTHING}
    mine = {(row["system"], row["class_tps"], row["varied"]): row["capacity"] for row in rows}
    first = rows[0]["system"]
    for row in rows:
        before = base[row["system"], row["class_tps"]]
        row["change"] = row["capacity"] / before if before else None
        row["factor"] = mine[first, row["class_tps"], row["varied"]] / row["capacity"] if row["capacity"] else None
