"""The rows of `testbed capacity`, and the files of its output directory."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from testbed.config import resolved
from testbed.errors import BadInput
from testbed.experiments.capacity.config import CapacityConfig, spread
from testbed.experiments.capacity.paper import ESTIMATES, SENSITIVITY, SWITCHES, TABLE_2
from testbed.experiments.capacity.pooled import BASELINE, figures_of, pooled, run_row
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
        if self.sweep and sum(asked) > 1:
            raise BadInput("--sweep and --ues, --sensitivity, --switches, --estimates exclude each other")
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
    fixed = config.ues is not None or bool(plan.sweep)
    if not fixed:
        if plan.vary is not None:
            _compare(rows)
        for name in ("", "all_"):
            _compare_seeds(rows, name)
    document = results.summary(resolved(config), config.seed, results.host(), rows)
    if fixed:
        document["pooled"] = pooled(rows, config.epsilon)
    if out is not None:
        from testbed.experiments.capacity.tables import run_extras, write_extras, write_study

        results.write_summary(out, document)
        write_study(document, config, out)
        if plan.tables:
            write_extras(run_extras(config, plan.workers, out / "points", told), config, out)
    return document


# ---------------------------------------------------------------- jobs


def _asked(plan: Study) -> list[Asked]:
    """The jobs, seed by seed where loads are fixed, so that an unfinished study has every variation."""
    config = plan.config
    varied: list[dict[str, Any]] = [{}, *(VARIATIONS[plan.vary] if plan.vary is not None else ())]
    cases = [
        (replaced(config, values), system, None if plan.vary is None else _named(values))
        for values in varied
        for system in config.systems
    ]
    numbers = plan.sweep if config.ues is None else (config.ues,)
    if not numbers:
        return [one for case in cases for one in _searches(*case)]
    seeds = range(config.seed, config.seed + config.repeats)
    return [one for seed in seeds for case in cases for one in _at(*case, numbers, seed)]


def _named(values: dict[str, Any]) -> str:
    """Name of a variation."""
    return ", ".join(f"{key}={value}" for key, value in values.items()) or NOTHING


def _searches(config: CapacityConfig, system: str, varied: str | None) -> list[Asked]:
    if config.mix is not None:
        return [_knees(config, system, varied)]
    return [_capacity(config, system, speed, varied) for speed in config.classes]


def _capacity(config: CapacityConfig, system: str, speed: float, varied: str | None) -> Asked:
    def rows(result: CapacityResult) -> list[Row]:
        row = _row(system, speed, result, varied)
        paper = TABLE_2.get(config.paper or "", {}).get(system, {}).get(speed)
        if paper is not None:
            row |= {"paper": paper, "ratio": result.ues / paper}
        return [row | figures_of(result.runs)]

    return Asked(cast(Job, capacity_of(config, system, speed)), rows)


def _row(system: str, speed: float, result: CapacityResult, varied: str | None) -> Row:
    mean = repeats_interval(result.by_seed)
    low, high = mean.ends
    row: Row = {"system": system, "class_tps": speed, "capacity": result.ues, "capacity_mean": mean.value,
                "capacity_low": low, "capacity_high": high, "by_seed": list(result.by_seed)}  # fmt: skip
    if varied is not None:
        row["varied"] = varied
    return row


def _knees(config: CapacityConfig, system: str, varied: str | None) -> Asked:
    def rows(result: dict[float, CapacityResult]) -> list[Row]:
        every = [min(found) for found in zip(*(knee.by_seed for knee in result.values()), strict=True)]
        return [
            _row(system, speed, knee, varied) | figures_of(knee.runs) | _own(knee.runs, speed)
            | {"all": statistics.median_low(every), "all_by_seed": every}
            for speed, knee in sorted(result.items())
        ]  # fmt: skip

    return Asked(cast(Job, knees_of(config, system)), rows)


def _own(runs: Sequence[CapacityRun], speed_tps: float) -> Row:
    """Results of one class of a mix."""
    counts = [run.classes[name] for run in runs if (name := f"{speed_tps:g}") in run.classes]
    judged = sum(count.judged for count in counts)
    return {"violation": sum(c.violated for c in counts) / judged if judged else None, "judged": judged}


def _at(config: CapacityConfig, system: str, varied: str | None, numbers: Sequence[int], seed: int) -> list[Asked]:
    """Runs at given numbers of UEs, for each class alone or for the mix."""
    loads = [None] if config.mix is not None else list(config.classes)
    return [_run(config, system, varied, speed, ues, seed) for ues in numbers for speed in loads]


def _run(config: CapacityConfig, system: str, varied: str | None, speed: float | None, ues: int, seed: int) -> Asked:
    classes = tuple(spread(config, ues)) if speed is None else (speed,) * ues

    def rows(run: CapacityRun) -> list[Row]:
        row = {"class_tps": speed} | run_row(run, config.epsilon)
        return [row if varied is None else row | {"varied": varied}]

    return Asked(cast(Job, single(CapacityPoint(config, system, classes, seed))), rows)


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
    """Add each variation's change of the capacity, and the factor of `wisp` (or the first system) over the others, with
    intervals over the seeds.
    """
    known = {(row["system"], row["class_tps"], row["varied"]): row for row in rows}
    first = rows[0]["system"]
    for row in rows:
        before = known[row["system"], row["class_tps"], NOTHING]
        row |= _ratio("change", row, before) | _ratio("factor", known[first, row["class_tps"], row["varied"]], row)


def _ratio(name: str, row: Row, of: Row) -> Row:
    """Mean ratio of two capacities over the seeds, with its interval; None where a capacity to divide by is 0."""
    if not all(of["by_seed"]):
        return {name: None}
    found = repeats_interval(np.divide(row["by_seed"], of["by_seed"]))
    low, high = found.ends
    return {name: found.value, f"{name}_low": low, f"{name}_high": high}
