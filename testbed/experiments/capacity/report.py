"""The rows of `testbed capacity`, and the files of its output directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from testbed.config import resolved
from testbed.errors import BadInput
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
from testbed.experiments.capacity.systems import (
    SENSITIVITY,
    TABLE_2,
    CapacityConfig,
    spread,
)  # fmt: skip
from testbed.experiments.capacity.tally import CapacityRun
from testbed.experiments.plots.capacity import NOTHING
from testbed.experiments.results import directory as results
from testbed.experiments.results.claims import claimed
from testbed.options import replaced

Row = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """One call of the command.

    Raises:
        BadInput: mutually exclusive options.
    """

    config: CapacityConfig
    sensitivity: bool = False
    sweep: tuple[int, ...] = ()
    tables: bool = False
    workers: int = 1

    def __post_init__(self) -> None:
        asked = [self.sensitivity, bool(self.sweep), self.config.ues is not None]
        if sum(asked) > 1:
            raise BadInput("--ues, --sweep and --sensitivity exclude each other")
        if self.tables and (sum(asked) or self.config.mix is not None):
            raise BadInput("--tables goes with a search of classes by themselves: leave out --mix, --ues and --sweep")
        if self.sensitivity and self.config.mix is not None:
            raise BadInput("--sensitivity varies classes by themselves: leave out --mix")


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
    if plan.sensitivity:
        _compare(rows)
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
    if config.mix is not None:
        return [_knees(config, system) for system in config.systems]
    varied: list[dict[str, Any]] = [{}, *(SENSITIVITY if plan.sensitivity else ())]
    return [
        _capacity(replaced(config, values), system, speed, values if plan.sensitivity else None)
        for values in varied
        for system in config.systems
        for speed in config.classes
    ]


def _capacity(config: CapacityConfig, system: str, speed: float, varied: dict[str, Any] | None) -> Asked:
    def rows(result: CapacityResult) -> list[Row]:
        row: Row = {"system": system, "class_tps": speed, "capacity": result.ues, "by_seed": list(result.by_seed)}
        if varied is not None:
            row["varied"] = ", ".join(f"{key}={value}" for key, value in varied.items()) or NOTHING
        paper = TABLE_2.get(config.paper or "", {}).get(system, {}).get(speed)
        if paper is not None:
            row |= {"paper": paper, "ratio": result.ues / paper}
        return [row | _figures(result.at)]

    return Asked(cast(Job, capacity_of(config, system, speed)), rows)


def _knees(config: CapacityConfig, system: str) -> Asked:
    def rows(result: dict[float, CapacityResult]) -> list[Row]:
        return [
            {"system": system, "class_tps": speed, "capacity": knee.ues, "by_seed": list(knee.by_seed),
             **_figures(knee.at), **_own(knee.at, speed)}
            for speed, knee in sorted(result.items())
        ]  # fmt: skip

    return Asked(cast(Job, knees_of(config, system)), rows)


def _own(run: CapacityRun | None, speed_tps: float) -> Row:
    """Results of one class of a mix."""
    count = None if run is None else run.classes.get(f"{speed_tps:g}")
    return {} if count is None else {"violation": count.share, "judged": count.judged}


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
        row: Row = {"system": system, "class_tps": speed, "ues": ues, "seed": seed, "violations": shares}
        return [row | _figures(run)]

    return Asked(cast(Job, single(CapacityPoint(config, system, classes, seed))), rows)


def _figures(run: CapacityRun | None) -> Row:
    if run is None:
        return {"goodput_tps": 0.0}
    judged = sum(count.judged for count in run.classes.values())
    return {
        "violation": sum(count.violated for count in run.classes.values()) / max(1, judged),
        "judged": judged,
        "goodput_tps": run.goodput_tps,
        "acceptance": run.accepted / run.drafted if run.drafted else None,
        "batch_size": run.batch_size,
        "busy_share": run.busy_share,
        "evicted_tokens": run.evicted_tokens,
        "virtual_s": run.virtual_s,
        "cpu_s": run.cpu_s,
    }


def _compare(rows: list[Row]) -> None:
    """Add each variation's change of the capacity, and the factor of `wisp` (or the first system) over the others."""
    base = {(row["system"], row["class_tps"]): row["capacity"] for row in rows if row["varied"] == NOTHING}
    mine = {(row["system"], row["class_tps"], row["varied"]): row["capacity"] for row in rows}
    first = rows[0]["system"]
    for row in rows:
        before = base[row["system"], row["class_tps"]]
        row["change"] = row["capacity"] / before if before else None
        row["factor"] = mine[first, row["class_tps"], row["varied"]] / row["capacity"] if row["capacity"] else None
