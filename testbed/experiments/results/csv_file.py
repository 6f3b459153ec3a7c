"""Rows as CSV files."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from testbed.files import whole_file
from testbed.table_text import plain_cell


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]], names: Iterable[str] = (), newline: str = "\n") -> None:
    """Write rows under a header.

    Args:
        names: columns; default: all keys in order of appearance, except those of lists and mappings.
        newline: end of a line.

    Raises:
        BadInput, TestbedError: as `whole_file`.
    """
    rows = list(rows)
    found = dict.fromkeys(name for row in rows for name, value in row.items() if not isinstance(value, dict | list))
    with whole_file(path) as part, part.open("w", newline="", encoding="utf-8") as stream:
        columns = list(names) or list(found)
        writer = csv.writer(stream, lineterminator=newline)
        writer.writerow(map(plain_cell, columns))
        writer.writerows([plain_cell(row.get(name, "")) for name in columns] for row in rows)
