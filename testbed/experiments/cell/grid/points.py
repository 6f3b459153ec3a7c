"""Combinations of values of a cell's fields, computed one after the other or by processes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple

from testbed.errors import BadInput
from testbed.experiments.cell.config import CellConfig
from testbed.experiments.runs.workers import pool_of
from testbed.options import replaced, resolved

Row = dict[str, Any]
Told = Callable[[int, int], None]
"""Called after every finished point, with the numbers of finished and of all points."""


class CellPoint(NamedTuple):
    """One combination of varied values."""

    labels: dict[str, Any]
    cell: CellConfig


def combinations(cell: CellConfig, vary: Mapping[str, tuple[Any, ...]]) -> list[CellPoint]:
    """Every combination of the varied values, the last one varying fastest.

    Args:
        vary: fields of the cell and their values: `radio.bandwidth_hz`, `ues.NAME.protocol`, `ues.*.window`.

    Raises:
        BadInput: a field that does not exist, or a value that it cannot have.
    """
    points = []
    for values in itertools.product(*vary.values()):
        given = dict(zip(vary, values, strict=True))
        points.append(CellPoint({name: label(value) for name, value in given.items()}, varied(cell, given)))
    return points


def label(value: Any) -> Any:
    """A varied value as rows have it: lists are tuples, which can be keys."""
    return tuple(value) if isinstance(value, list) else value


def varied(cell: CellConfig, values: Mapping[str, Any]) -> CellConfig:
    """The cell with other values of some fields.

    Raises:
        BadInput: see `combinations`.
    """
    tree = resolved(cell)
    for path, value in values.items():
        *way, last = path.split(".")
        for holder in _holders(tree, way, path):
            holder[last] = value
    return replaced(cell, tree, strict=False)


def _holders(tree: Row, way: Sequence[str], path: str) -> list[Row]:
    """Parts of the tree that a path without its last name leads to."""
    found: list[Any] = [tree]
    for name in way:
        inner = [one[name] for one in found if isinstance(one, dict) and name in one]
        groups = [one for many in found if isinstance(many, list | tuple) for one in many if isinstance(one, dict)]
        inner += [one for one in groups if name in ("*", one.get("name"))]
        found = inner
    if not found or not all(isinstance(one, dict) for one in found):
        raise BadInput(f"the cell has no field {path}; groups of UEs are ues.NAME.FIELD or ues.*.FIELD")
    return found


def each_point(
    points: Sequence[CellPoint], rows_of: Callable[[CellPoint], list[Row]], workers: int, told: Told
) -> list[list[Row]]:
    """Rows of every point, in order.

    Args:
        workers: number of processes.

    Raises:
        EngineError: one of the processes was killed.
    """
    found: list[list[Row]] = [[] for _ in points]
    killed = "the process of a run was killed; with --out, the same call resumes"
    if workers == 1 or len(points) == 1:
        for number, point in enumerate(points):
            found[number] = rows_of(point)
            told(number + 1, len(points))
        return found
    with pool_of(min(workers, len(points)), killed) as pool:
        running = {pool.submit(rows_of, point): number for number, point in enumerate(points)}
        for done, future in enumerate(futures.as_completed(running), 1):
            found[running[future]] = future.result()
            told(done, len(points))
    return found
