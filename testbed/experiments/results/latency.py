"""Reads measured latencies from CSV: a header, then one operating point of a server per row."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from testbed.errors import BadInput
from testbed.files import file_bytes
from testbed.optim.serving.model import Array
from testbed.optim.serving.points import NEEDED, SETTING, Points
from testbed.optim.serving.ratios import LoadSeries
from testbed.table_text import cell_number, check_once

RULES: dict[str, tuple[Callable[[float], bool], str]] = {
    "rps": (lambda v: v >= 0, "0 or more, in requests a second"),
    "alpha": (lambda v: 0 <= v <= 1, "in [0, 1]"),
    "imposed": (lambda v: 0 <= v <= 1, "in [0, 1]"),
    "k": (lambda v: v >= 0 and v == int(v), "a whole number, 0 or more"),
    "prefill": (lambda v: v >= 0, "0 or more, in tokens"),
    "decode": (lambda v: v > 0, "positive, in tokens"),
    "saturated": (lambda v: v in (0, 1), "0 or 1"),
    "repeat": (lambda v: v >= 0 and v == int(v), "a whole number, 0 or more"),
}
SATURATED = "saturated"
"""Column that says of a load whether requests piled up."""
POSITIVE: tuple[Callable[[float], bool], str] = (lambda v: v > 0, "positive, in seconds")


def read_points(
    path: Path, column: str = "latency_s", windows: Sequence[int] | None = None, piled_up: bool = False
) -> tuple[Points, Array]:
    """Read operating points and the latencies [n] of a column. Columns: rps and `column`, optionally alpha, k, prefill,
    decode and saturated; others are ignored. A byte order mark, CRLF and empty lines are accepted.

    Args:
        windows: keep only rows with these k; None: all.
        piled_up: keep rows that are marked as saturated, in which requests piled up and which have no mean.

    Raises:
        BadInput: an unreadable file, a missing or duplicate column, a cell that is missing, not a number or out of
            range (with its line), no row with these windows, or none below saturation.
    """
    lines = _lines(path)
    if not lines:
        raise BadInput(f"{path.name} is empty; its first line must name the columns: rps,{column}")
    header = [name.strip().lower() for name in lines[0][1]]
    wanted = ["rps", column.strip().lower()]
    lacking = [name for name in wanted if name not in header]
    if lacking:
        raise BadInput(f"{path.name} has no column {lacking[0]}; its first line is {','.join(lines[0][1])!r:.120}")
    wanted += [name for name in SETTING if name in header and name not in wanted]
    check_once(path.name, header, wanted)
    lacking = [name for name in NEEDED if name not in header]
    if "alpha" in header and lacking:
        raise BadInput(f"{path.name} has alpha but no {', '.join(lacking)}, which the speculation-aware form needs")
    if len(lines) == 1:
        raise BadInput(f"{path.name} has a header and no rows")
    kept = lines[1:] if piled_up else _steady(path)
    columns = {name: np.array([_cell(path, header, line, row, name) for line, row in kept]) for name in wanted}
    latency_s = columns.pop(wanted[1])
    points = Points(**columns)
    if windows is None:
        return points, latency_s
    rows = np.zeros(latency_s.size, bool) if points.k is None else np.isin(points.k, windows)
    if not rows.any():
        raise BadInput(f"{path.name} has no row with k of {', '.join(map(str, windows))}")
    return points.take(rows), latency_s[rows]


def repeats_of(path: Path, windows: Sequence[int] | None = None) -> Array | None:
    """[n] number of the repeat of each row of `read_points` below saturation; None without a column `repeat`.

    Raises:
        BadInput: as `read_points`.
    """
    if "repeat" not in _header(path):
        return None
    found = column_of(path, "repeat", piled_up=False)
    return found if windows is None else found[np.isin(column_of(path, "k", piled_up=False), windows)]


def read_series(path: Path) -> list[LoadSeries]:
    """Series by window and imposed acceptance rate, of a table of `latency measure`.

    Raises:
        BadInput: as `read_points`, or a file that lacks alpha, k, prefill, decode or repeat.
    """
    points, latency_s = read_points(path)
    repeat = repeats_of(path)
    columns = points.k, points.alpha, points.prefill, points.decode, repeat
    if any(column is None for column in columns):
        raise BadInput(
            f"{path.name} needs the columns alpha, k, prefill, decode and repeat; give points.csv of latency measure"
        )
    assert points.k is not None and repeat is not None
    imposed = _imposed(path, points.k.size)
    found = []
    for k, rate in sorted({(int(k), rate) for k, rate in zip(points.k.tolist(), imposed, strict=True)}, key=str):
        rows = (points.k == k) & np.array([each == rate for each in imposed])
        found.append(LoadSeries(k, rate, points.take(rows), latency_s[rows], repeat[rows]))
    return found


def _imposed(path: Path, count: int) -> list[float | None]:
    """[n] imposed acceptance rates; None where the column is missing or empty."""
    rows, header = _steady(path), _header(path)
    if "imposed" not in header:
        return [None] * count
    place = header.index("imposed")
    empty = [len(row) > place and not row[place].strip() for _, row in rows]
    return [
        None if blank else _cell(path, header, line, row, "imposed")
        for blank, (line, row) in zip(empty, rows, strict=True)
    ]


def has_values(path: Path, name: str) -> bool:
    """Whether a table has this column with a value in every row.

    Raises:
        BadInput: the file cannot be read.
    """
    header = _header(path)
    if header.count(name) != 1:
        return False
    place = header.index(name)
    return all(len(row) > place and row[place].strip() for _, row in _lines(path)[1:])


def piled_up(path: Path) -> int:
    """Number of rows that are marked as saturated.

    Raises:
        BadInput: as `read_points`.
    """
    return int(column_of(path, SATURATED).sum()) if SATURATED in _header(path) else 0


def column_of(path: Path, name: str, piled_up: bool = True) -> Array:
    """Non-negative numbers of one column, [n].

    Args:
        piled_up: as `read_points`.

    Raises:
        BadInput: as `read_points`.
    """
    lines, header = _lines(path), _header(path)
    if header.count(name) != 1:
        raise BadInput(f"{path.name} needs exactly one column {name}; give all.csv of `testbed latency measure`")
    return np.array([_cell(path, header, line, row, name) for line, row in (lines[1:] if piled_up else _steady(path))])


def _steady(path: Path) -> list[tuple[int, list[str]]]:
    """Rows below saturation: all without a column `saturated`."""
    rows = _lines(path)[1:]
    if SATURATED not in _header(path):
        return rows
    kept = [row for row, piled in zip(rows, column_of(path, SATURATED), strict=True) if not piled]
    if not kept:
        raise BadInput(f"{path.name} has no load below saturation")
    return kept


def _header(path: Path) -> list[str]:
    lines = _lines(path)
    return [cell.strip().lower() for cell in lines[0][1]] if lines else []


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """Non-empty rows, each with its (last) line number."""
    try:
        text = file_bytes(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        raise BadInput(f"cannot read {path}: {getattr(exc, 'strerror', None) or exc}") from exc
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        return [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as exc:
        raise BadInput(f"{path.name} line {reader.line_num} is not CSV: {exc}") from exc


def _cell(path: Path, header: Sequence[str], line: int, row: Sequence[str], name: str) -> float:
    """The number in a cell, checked for its range."""
    if len(row) != len(header):
        raise BadInput(f"{path.name} line {line} has {len(row)} cells, the first line {len(header)}")
    text = row[header.index(name)].strip()
    holds, right = RULES.get(name, POSITIVE)
    try:
        value = cell_number(text)
    except ValueError as exc:
        raise BadInput(f"{path.name} line {line}: {name} must be a number, not {text!r:.40}") from exc
    if not (math.isfinite(value) and holds(value)):
        raise BadInput(f"{path.name} line {line}: {name} must be {right}, not {text!r:.40}")
    return value
