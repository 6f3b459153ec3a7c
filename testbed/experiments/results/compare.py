"""Compares two runs of one configuration: outputs token by token, and every column of their rows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.experiments.results.directory import read_summary
from testbed.experiments.results.files import REQUESTS, read_requests

Row = Mapping[str, Any]
POINTS = "points"


def compare(before: Path, after: Path) -> dict[str, Any]:
    """Differences between two run directories or sweeps, with rows matched by point and method.

    Returns:
        `same`: whether there are no differences; `outputs`: how many were compared and which differ (`row`, `request`);
        `differences`: one entry per row and column, with both values and, for numbers, the relative `change`;
        `missing` and `more`: rows that only one of the two has.

    Raises:
        BadInput: not a run directory, or its outputs cannot be read.
    """
    old, new = (_rows(read_summary(run)["rows"]) for run in (before, after))
    both = [name for name in old if name in new]
    differences = [entry for name in both for entry in _columns(name, old[name], new[name])]
    outputs, different = 0, []
    for point in dict.fromkeys(old[name].get("point") for name in both):
        folders = [run / POINTS / point if point else run for run in (before, after)]
        count, found = _outputs(*folders)
        outputs += count
        different += [{"row": point, **one} if point else one for one in found]
    missing, more = ([name for name in a if name not in b] for a, b in ((old, new), (new, old)))
    return {
        "same": not (differences or different or missing or more),
        "outputs": {"compared": outputs, "different": different},
        "differences": differences,
        "missing": missing,
        "more": more,
    }


def _rows(rows: Sequence[Row]) -> dict[str, Row]:
    """Rows by name: series, method and point."""
    named: dict[str, Row] = {}
    for row in rows:
        parts = [row.get("series"), row.get("method"), row.get("point")]
        name = " ".join(str(part) for part in parts if part is not None)
        named[name if name not in named else f"{name} {len(named)}"] = row
    return named


def _columns(name: str, old: Row, new: Row) -> list[dict[str, Any]]:
    found = []
    for column in dict.fromkeys([*old, *new]):
        a, b = old.get(column), new.get(column)
        if a == b:
            continue
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (a, b))
        change = (b - a) / abs(a) if numbers and a else None
        found.append({"row": name, "column": column, "before": a, "after": b, "change": change})
    return found


def _outputs(before: Path, after: Path) -> tuple[int, list[dict[str, Any]]]:
    """Number of outputs in both runs, and those that differ; none where neither run keeps outputs."""
    if not any(os.path.lexists(run / REQUESTS) for run in (before, after)):
        return 0, []
    old, new = (_tokens(read_requests(run).to_pylist()) for run in (before, after))
    both = [key for key in old if key in new]
    return len(both), [{"method": m, "request": r} for m, r in both if old[m, r] != new[m, r]]


def _tokens(requests: Sequence[Row]) -> dict[tuple[str, int], Any]:
    return {(row["method"], row["request"]): row["token_ids"] for row in requests}
