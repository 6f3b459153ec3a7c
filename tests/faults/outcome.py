"""The outcome of a kind of fault, and the table of all kinds."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of fault."""

    fault: str
    seed: int
    injected: int
    """Times that it was seen to take effect."""
    phases: dict[str, int]
    """The message or file at which it struck."""
    outputs: int
    """Number of outputs compared with those of a run without faults."""
    differing: list[str]
    recovery_s: list[float]
    """Sorted; of every session that was hit."""
    took_s: float
    notes: dict[str, Any] = {}

    @property
    def median_s(self) -> float:
        """Median of the recoveries."""
        return statistics.median(self.recovery_s or [math.nan])

    @property
    def p95_s(self) -> float:
        """95th percentile of the recoveries: the smallest time that 95 % do not exceed."""
        return (self.recovery_s or [math.nan])[max(0, -(-95 * len(self.recovery_s) // 100) - 1)]

    def document(self) -> dict[str, Any]:
        """The outcome as a JSON document."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return {**found, "recovery_median_s": self.median_s, "recovery_p95_s": self.p95_s, "machine": machine()}


def compare(
    outputs: Iterable[tuple[Hashable, Sequence[int]]], expected: Mapping[Any, Sequence[int]]
) -> tuple[int, list[str]]:
    """How many outputs there are, and which are not what they should be."""
    seen = list(outputs)
    assert {job for job, _ in seen} <= set(expected)
    return len(seen), [f"{job}: {tokens}, not {expected[job]}" for job, tokens in seen if list(tokens) != expected[job]]


def counted(phases: Iterable[str]) -> dict[str, int]:
    """How often each was struck, most often first."""
    return dict(Counter(phases).most_common())


def machine() -> str:
    """Where it was measured."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{platform.system()} {platform.machine()}, {cores} cores, Python {platform.python_version()}"


def write(outcome: Outcome, folder: Path) -> None:
    """One file a kind."""
    folder.mkdir(parents=True, exist_ok=True)
    name = outcome.fault.replace(" ", "-").replace(",", "") + ".json"
    (folder / name).write_bytes(msgspec.json.format(msgspec.json.encode(outcome.document())) + b"\n")


def show(outcomes: Sequence[Outcome]) -> None:
    """The table, on stdout."""
    table = Table("fault", "injected", "outputs", "differing", "median s", "p95 s", "took s", title="Faults survived")
    for one in outcomes:
        figures = (one.median_s, one.p95_s, one.took_s)
        counts = (one.injected, one.outputs, len(one.differing))
        table.add_row(one.fault, *map(str, counts), *(f"{figure:.2f}" for figure in figures))
    total = [sum(values) for values in zip(*((o.injected, o.outputs, len(o.differing)) for o in outcomes), strict=True)]
    table.add_row("all", *map(str, total), "", "", f"{sum(o.took_s for o in outcomes):.0f}")
    Console(width=110).print(table)
