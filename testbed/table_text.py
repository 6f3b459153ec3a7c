"""Tables as Markdown, CSV or LaTeX, and numbers in their cells."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from testbed.errors import BadInput

NOTHING = "–"
"""A cell without a value."""
TEX = str.maketrans(
    {mark: rf"\{mark}" for mark in "%_&#${}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"θ": r"$\theta$", "α": r"$\alpha$", "–": "--"}
)
CONTROLS = dict.fromkeys((*range(32), *range(127, 160)), "\N{REPLACEMENT CHARACTER}") | {9: "\t", 10: "\n", 13: None}
"""What stands for each control character on a terminal."""
_FORMULA = re.compile(r"\s*[=+@-]")
_NUMBERS = re.compile(r"[-+]?(inf|nan)|[-+\d.,eE%\s\[\]]*")
"""A number, or an estimate with its interval: nothing that a formula could compute with."""


class TableData(NamedTuple):
    """A table as text."""

    headers: Sequence[str]
    lines: Sequence[Sequence[str]]
    names: int
    """Number of first columns that name the rows."""
    left: Sequence[bool]
    """Columns that are aligned left."""
    title: str | None = None


def as_markdown(data: TableData) -> str:
    """Markdown, numbers aligned right."""
    rule = ["---" if left else "---:" for left in data.left]
    lines = [data.headers, rule, *([cell.replace("|", r"\|") for cell in line] for line in data.lines)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def plain_cell(value: Any) -> Any:
    """A cell's value; text that a spreadsheet would run as a formula gets an apostrophe in front, which it hides, and
    control characters, which begin commands to a terminal, are replaced.
    """
    value = value.translate(CONTROLS) if isinstance(value, str) else value
    formula = isinstance(value, str) and _FORMULA.match(value) and not _NUMBERS.fullmatch(value)
    return f"'{value}" if formula else value


def cell_number(text: str) -> float:
    """The number in a cell of CSV.

    Raises:
        ValueError: there is none, or it is written as in Python alone: 1_000, or in digits of another script.
    """
    if "_" in text or not text.isascii():
        raise ValueError(f"could not convert string to float: {text!r}")
    return float(text)


def as_csv(data: TableData) -> str:
    """CSV; cells without a value are empty."""
    buffer = io.StringIO()
    cells = [["" if cell == NOTHING else cell for cell in line] for line in data.lines]
    csv.writer(buffer, lineterminator="\n").writerows(map(plain_cell, line) for line in (data.headers, *cells))
    return buffer.getvalue()


def as_latex(data: TableData) -> str:
    """LaTeX; it needs the package booktabs."""
    body = [" & ".join(cell.translate(TEX) for cell in line) + r" \\" for line in (data.headers, *data.lines)]
    kinds = "".join("l" if left else "r" for left in data.left)
    return "\n".join(
        [rf"\begin{{tabular}}{{{kinds}}}", r"\toprule", body[0], r"\midrule", *body[1:], r"\bottomrule",
         r"\end{tabular}", ""]
    )  # fmt: skip


def check_once(where: str, header: Sequence[str], read: Iterable[str]) -> None:
    """Check that the columns that are read occur once in a header.

    Args:
        where: begin of the message: the file, or its line.

    Raises:
        BadInput: one occurs more than once.
    """
    if twice := [name for name in read if header.count(name) > 1]:
        raise BadInput(f"{where} has the column {twice[0]} more than once")
