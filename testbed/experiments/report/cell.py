"""Section of a report on `testbed cell run`: groups of UEs, and the cell over time."""

from __future__ import annotations

import html
from collections.abc import Sequence

import msgspec

from testbed.errors import BadInput
from testbed.experiments.plots.cell import draw_series
from testbed.experiments.plots.style import Figure
from testbed.experiments.report.compare import change
from testbed.experiments.report.data import Shown
from testbed.experiments.report.rows_table import study_html, table_html
from testbed.experiments.results.cell_columns import CELL_COLUMNS, cell_line, flat_row
from testbed.files import file_bytes

KIND, SERIES = "cell", "series.json"
COMPARED = ("goodput_tps", "latency_s", "uplink_mbps", "delay_s", "joules_per_token")
"""Columns of which a comparison shows relative changes."""


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


def compared_html(shown: Sequence[Shown]) -> str:
    """HTML table of the groups of other cells beside those of the same name in the first; empty if there are none."""
    first, lines = shown[0], []
    known = {row["group"]: row for row in map(flat_row, first.rows)} if is_cell(first) else {}
    for other in filter(is_cell, shown[1:]):
        for row in map(flat_row, other.rows):
            if (base := known.get(row["group"])) is not None:
                names = (other.path.resolve().name, row["group"], f"{base['ues']}, {row['ues']}")
                shares = ["–" if one["violations"] is None else f"{one['violations']:.3f}" for one in (base, row)]
                changes = [change(base[name], row[name]) for name in COMPARED]
                lines.append([*map(html.escape, names), *changes, ", ".join(shares)])
    if not lines:
        return ""
    heads = ("run", "group", "UEs", *(CELL_COLUMNS[name][0] for name in COMPARED), "violated")
    head = "".join(f"<th>{html.escape(name)}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>" for line in lines)
    return (
        f"<h2>Compared with {html.escape(first.path.resolve().name)}</h2>"
        f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        "<p><small>Relative changes of single runs; UEs and shares of late responses before and after.</small></p>"
    )


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
