"""Measured passes from a CSV file: one row per request, rows of one batch sharing their latency."""

from __future__ import annotations

import csv
import io
import math
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from testbed.bs.scheduling.estimator_fit import Sample
from testbed.channel.trace import read_text
from testbed.errors import BadInput
from testbed.optim.pass_time import RequestWork
from testbed.table_text import cell_number, check_once

COLUMNS = ("batch", "new_tokens", "cached_tokens", "latency_s")
MOST_TOKENS, MOST_S = 2**31, 86_400.0
"""Tokens of a request, and seconds of a pass."""
HELD_OUT = "held_out"
"""Column in which `testbed estimator profile` marks passes that are not for the fit: 1, else 0."""


def read_samples(path: Path | str, held_out: bool | None = None) -> list[Sample]:
    """The passes of a file, in order of their first rows.

    The header names `COLUMNS` in any order, among others; `batch` is any text, and the rows of a batch need not be
    adjacent. Empty lines and lines that begin with # are ignored.

    Args:
        held_out: take the passes that are held out, or the others; the header then names `HELD_OUT`, too. None: all.

    Raises:
        BadInput: unreadable, a missing column, a value out of range, or rows of a batch that differ in their latency;
            the message names the line.
    """
    name = Path(path).name
    works: dict[str, list[RequestWork]] = {}
    latency: dict[str, tuple[float, int]] = {}
    for line, batch, work, latency_s in _requests(read_text(path), name, held_out):
        first_s, first = latency.setdefault(batch, (latency_s, line))
        if first_s != latency_s:
            raise BadInput(
                f"{name}, line {line}: batch {batch} takes {latency_s:g} s here and {first_s:g} s in line {first}; "
                "rows of a batch share their latency"
            )
        works.setdefault(batch, []).append(work)
    if not works:
        which = "" if held_out is None else f" with {HELD_OUT} = {held_out:d}"
        needs = f"it needs the columns {','.join(COLUMNS)} and a row for each request"
        raise BadInput(f"{name} has no rows{which}; {needs}")
    return [Sample(tuple(rows), latency[batch][0]) for batch, rows in works.items()]


def _requests(text: str, name: str, held_out: bool | None) -> Iterator[tuple[int, str, RequestWork, float]]:
    """Line, batch, work and latency of each request."""
    reader = csv.reader(io.StringIO(text))
    places: dict[str, int] | None = None
    try:
        for cells in reader:
            row = [cell.strip() for cell in cells]
            if not any(row) or row[0].startswith("#"):
                continue
            where = f"{name}, line {reader.line_num}"
            if places is None:
                places = _places(row, where, COLUMNS if held_out is None else (*COLUMNS, HELD_OUT))
                continue
            batch, work, latency_s = _parse(row, places, where)
            if held_out is None or _flag(row[places[HELD_OUT]], where) == held_out:
                yield reader.line_num, batch, work, latency_s
    except csv.Error as exc:
        raise BadInput(f"{name}, line {reader.line_num}: {exc}") from exc


def _places(header: Sequence[str], where: str, needed: Sequence[str]) -> dict[str, int]:
    missing = [column for column in needed if column not in header]
    if missing:
        raise BadInput(f"{where}: the header has no {', '.join(missing)}; it needs {','.join(needed)}")
    check_once(f"{where}: the header", header, needed)
    return {column: header.index(column) for column in needed}


def _flag(text: str, where: str) -> bool:
    if text not in ("0", "1"):
        raise BadInput(f"{where}: {HELD_OUT} must be 0 or 1, not {text!r}")
    return text == "1"


def _parse(row: Sequence[str], places: Mapping[str, int], where: str) -> tuple[str, RequestWork, float]:
    if len(row) <= max(places.values()):
        raise BadInput(f"{where}: {len(row)} cells, but the header has more columns")
    batch = row[places["batch"]]
    if not batch:
        raise BadInput(f"{where}: batch is empty; rows of one pass share a name or number")
    new, cached, latency_s = (_number(row[places[column]], column, where) for column in COLUMNS[1:])
    for column, value in (("new_tokens", new), ("cached_tokens", cached)):
        if not 0 <= value <= MOST_TOKENS or value != int(value):
            raise BadInput(f"{where}: {column} must be a whole number, 0 to {MOST_TOKENS}, not {value:g}")
    if not 0 < latency_s <= MOST_S:
        raise BadInput(f"{where}: latency_s must be positive, and {MOST_S:g} at most, not {latency_s:g}")
    return batch, RequestWork(int(new), int(cached)), latency_s


def _number(text: str, column: str, where: str) -> float:
    try:
        value = cell_number(text)
    except ValueError as exc:
        raise BadInput(f"{where}: {column} must be a number, not {text!r}") from exc
    if not math.isfinite(value):
        raise BadInput(f"{where}: {column} must be finite, not {reprlib.repr(text)}")
    return value
