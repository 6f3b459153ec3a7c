"""Section of a report on `testbed cell run`: groups of UEs, and the cell over time."""

from __future__ import annotations

import html

import msgspec

from testbed.errors import BadInput
from testbed.experiments.plots.cell import draw_series
from testbed.experiments.plots.style import Figure
from testbed.experiments.report.data import Shown
from testbed.experiments.report.rows_table import study_html, table_html
from testbed.experiments.results.cell_columns import CELL_COLUMNS, cell_line, flat_row
from testbed.files import file_bytes

KIND, SERIES = "cell", "series.json"


def is_cell(shown: Shown) -> bool:
    """Whether a directory is of `testbed cell run`."""
    return shown.document.get("kind") == KIND


def table(shown: Shown) -> str:
    """The columns that matter most, the sentence on the cell, and all columns folded."""
    rows = [flat_row(row) for row in shown.rows]
    names = [name for name in CELL_COLUMNS if any(row.get(name) is not None for row in rows)]
    most = table_html("", None, names, rows, [{}] * len(rows), lambda name: CELL_COLUMNS[name][0])
    told = html.escape(cell_line(shown.document["cell"]))
    return f"{most}<p>{told}</p><details><summary>All columns</summary>{study_html(rows)}</details>"


def figures(shown: Shown) -> list[Figure]:
    """The series of a virtual cell."""
    path = shown.path / SERIES
    if not is_cell(shown) or not path.exists():
        return []
    caption = (
        "Shares of the radio, drafted tokens per round and goodput by group; windows waiting at the base station; "
        "distribution of the latencies of responses."
    )
    try:
        series = msgspec.json.decode(file_bytes(path))
    except (OSError, ValueError, RecursionError) as exc:
        raise BadInput(f"cannot read {path}: {exc}") from exc
    return [Figure("cell", caption, lambda: draw_series(series))]
