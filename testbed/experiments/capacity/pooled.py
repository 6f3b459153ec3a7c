"""Rows of fixed loads, and the same pooled over seeds: intervals, and paired differences with a verdict."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import to_builtins

from testbed.experiments.capacity.tally import CapacityRun
from testbed.experiments.plots.capacity import NOTHING
from testbed.intervals import class_verdict, compared, paired_interval, repeats_interval

Row = dict[str, Any]
BASELINE = "fcfs-cache"
"""The system that all others are compared with, seed by seed; where it does not run, the first one."""


def run_row(run: CapacityRun, epsilon: float) -> Row:
    """Row of one run at a fixed load."""
    row: Row = {"system": run.system, "ues": run.ues, "seed": run.seed,
                "violations": {name: count.share for name, count in run.classes.items()},
                "verdicts": {name: count.verdict(epsilon) for name, count in run.classes.items()},
                "classes": to_builtins(run.classes)}  # fmt: skip
    return row | figures_of([run])


def figures_of(runs: Sequence[CapacityRun]) -> Row:
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


def pooled(rows: Iterable[Mapping[str, Any]], epsilon: float) -> list[Row]:
    """One row per system, number of UEs, class and variation, from a row per seed.

    `violation` and `goodput_tps` are means over the seeds with Student's t interval. Differences are paired by seed: of
    a variation to the same system without it, otherwise to `BASELINE`. "Ahead": fewer violations, or more goodput.
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        for speed in row["classes"]:
            groups.setdefault((row["system"], row["ues"], speed, row.get("varied")), []).append(row)
    systems = [system for system, *_ in groups]
    base = BASELINE if BASELINE in systems else next(iter(systems), BASELINE)
    return [_pooled(key, found, _others(key, groups, base), epsilon) for key, found in groups.items()]


def _others(
    key: tuple[Any, ...], groups: Mapping[tuple[Any, ...], list[Mapping[str, Any]]], base: str
) -> Sequence[Mapping[str, Any]]:
    """Rows that a group is compared with; none for those themselves."""
    system, ues, speed, varied = key
    other = (base, ues, speed, None) if varied is None else (system, ues, speed, NOTHING)
    return [] if other == key else groups.get(other, [])


def _pooled(
    key: tuple[Any, ...], rows: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]], epsilon: float
) -> Row:
    system, ues, speed, varied = key
    counts = [row["classes"][speed] for row in rows]
    judged, violated = (sum(count[name] for count in counts) for name in ("judged", "violated"))
    found: Row = {"system": system, "class_tps": float(speed), "ues": ues, "seeds": len(rows), "judged": judged,
                  "starved": sum(count["starved"] for count in counts),
                  "class_verdict": class_verdict(violated, judged, epsilon)}  # fmt: skip
    if varied is not None:
        found["varied"] = varied
    means = [name for name in ("batch_size", "evicted_tokens", "memory_bound", "empty") if name in rows[0]]
    found |= {name: statistics.fmean(row[name] for row in rows) for name in means}
    theirs = [other["classes"][speed] for other in others]
    found |= _column("violation", [_share(count) for count in counts], [_share(count) for count in theirs], -1.0)
    for end in ("violation_low", "violation_high"):
        found[end] = None if found[end] is None else min(max(found[end], 0.0), 1.0)
    return found | _column("goodput_tps", [r["goodput_tps"] for r in rows], [o["goodput_tps"] for o in others], 1.0)


def _share(count: Mapping[str, Any]) -> float:
    """Share of the judged responses that are violated; a class that judged nobody counts as violated."""
    return float(count["violated"] / count["judged"]) if count["judged"] else 1.0


def _column(name: str, ours: Sequence[float], theirs: Sequence[float], better: float) -> Row:
    """A column's mean, interval and values by seed, and its difference to `theirs`; `better` is the sign of a gain."""
    value = repeats_interval(ours)
    low, high = value.ends
    found: Row = {name: value.value, f"{name}_low": low, f"{name}_high": high, f"{name}_by_seed": list(ours)}
    if len(theirs) != len(ours):
        return found
    gap = paired_interval(ours, theirs)
    verdict = compared(paired_interval([better * v for v in ours], [better * v for v in theirs]))
    low, high = gap.ends
    return found | {f"{name}_difference": gap.value, f"{name}_difference_low": low, f"{name}_difference_high": high,
                    f"{name}_verdict": verdict}  # fmt: skip
