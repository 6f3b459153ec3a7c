"""Rows as CSV files, and cells that spreadsheets do not take for formulas."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_FORMULA = re.compile(r"\s*[=+@-]")
_NUMBERS = re.compile(r"[-+]?(inf|nan)|[-+\d.,eE%\s\[\]]*")
"""A number, or an estimate with its interval: nothing that a formula could compute with."""


def plain_cell(value: Any) -> Any:
    """A cell's value; text that a spreadsheet would run as a formula gets an apostrophe in front, which it hides."""
    formula = isinstance(value, str) and _FORMULA.match(value) and not _NUMBERS.fullmatch(value)
    return f"'{value}" if formula else value


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]], names: Iterable[str] = (), newline: str = "\n") -> None:
    """Write rows under a header.

    Args:
        names: columns; default: all keys in order of appearance, except those of lists and mappings.
        newline: end of a line.
    """
    rows = list(rows)
    found = dict.fromkeys(name for row in rows for name, value in row.items() if not isinstance(value, dict | list))
    with path.open("w", newline="", encoding="utf-8") as stream:
        columns = list(names) or list(found)
        writer = csv.writer(stream, lineterminator=newline)
        writer.writerow(map(plain_cell, columns))
        writer.writerows([plain_cell(row.get(name, "")) for name in columns] for row in rows)
