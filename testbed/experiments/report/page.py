"""Reports: tables and plots of run directories in one self-contained HTML file, generated from the result files."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from pathlib import Path

from testbed.errors import BadInput
from testbed.experiments.plots.style import check_formats, write_figure
from testbed.experiments.report import bench as report_bench
from testbed.experiments.report import capacity as report_capacity
from testbed.experiments.report import cell as report_cell
from testbed.experiments.report import field as report_field
from testbed.experiments.report import figures as report_figures
from testbed.experiments.report import power as report_power
from testbed.experiments.report import tables as report_tables
from testbed.experiments.report.compare import compared_html
from testbed.experiments.report.data import Shown, load_shown
from testbed.experiments.report.facts import facts_html
from testbed.experiments.report.figures import row_names
from testbed.experiments.report.intervals import Intervals, with_intervals
from testbed.experiments.report.rows_table import rows_html, study_html
from testbed.experiments.results.directory import write_text
from testbed.experiments.results.folders import refuse_link
from testbed.experiments.results.traffic import by_meaning
from testbed.files import make_folder

__all__ = ["row_names", "write_report"]

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""A report shows results that may come from others: it runs no script and loads nothing."""
MOST_ROWS = 24
"""Number of rows beyond which the table is collapsed."""
STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:88rem;padding:0 1rem;color:#222}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}div.wide{overflow-x:auto;margin:1rem 0}
td,th{padding:.2rem .45rem;border-bottom:1px solid #ddd;text-align:right;vertical-align:top;white-space:nowrap}
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:#fff;max-width:16rem}
td:first-child{white-space:normal;min-width:6rem}
th{font-weight:600;vertical-align:bottom}td small{font-size:73%}small{color:#666}details{margin:.5rem 0}
summary{cursor:pointer}
.pivot th{white-space:normal}.pivot td,.pivot tbody th{border:0;vertical-align:top}
.pivot tbody{border-bottom:1px solid #999}
.pivot [colspan]{text-align:center}.pivot th+td,.pivot tr:nth-child(2) th:nth-child(2){text-align:left}
.visits tr>:nth-child(2),.visits tr>:last-child{text-align:left}
figure{margin:1.5rem 0}figcaption{color:#444;max-width:46rem}img{max-width:100%;height:auto}
code{background:#f3f3f3;padding:0 .2em}p.note{border-left:4px solid #e69f00;padding-left:.8rem}
dl{display:grid;grid-template-columns:max-content 1fr;gap:0 1rem}dd{margin:0;overflow-wrap:break-word;min-width:0}
@media (max-width:600px){th:first-child,td:first-child{max-width:8.5rem}th{white-space:normal}dl{display:block}
dd{margin-left:1rem}}
@media print{body{max-width:none}figure{break-inside:avoid}}
"""


def write_report(runs: Sequence[Path], out: Path, formats: Sequence[str] = ("png",)) -> Path:
    """Write `report.html`, `plots/` and `tables/` into `out` from run directories and finished sweeps.

    Raises:
        BadInput: not a run directory, an unknown format, or matplotlib is missing.
    """
    return write_shown(load_shown(runs), out, formats)


def write_shown(
    shown: Sequence[Shown], out: Path, formats: Sequence[str] = ("png",), against: str | None = None
) -> Path:
    """Write the report of directories already read.

    Args:
        formats: formats of the files in `plots/`: png, svg, pdf.
        against: series or method that speed-up and accuracy lost compare with; None: the first with the same window
            and link.

    Raises:
        BadInput: an unknown format, no row named `against`, matplotlib is missing, or `out` cannot be created.
    """
    check_formats(formats)
    names = {part.name: None for one in shown if one.speculates for part in one.parts}
    if against is not None and against not in names:
        raise BadInput(f"no rows are named {against!r}; there are {', '.join(names)}")
    intervals = [with_intervals(one.parts, one.config, against) if one.speculates else [] for one in shown]
    for folder in (out / "plots", out / "tables"):
        refuse_link(folder, out)
        make_folder(folder)
    parts = [_section(one, found, out, formats) for one, found in zip(shown, intervals, strict=True)]
    compared = compared_html(shown) + report_cell.compared_html(shown) if len(shown) > 1 else ""
    paths = [one.path.resolve().name for one in shown]
    title = html.escape(", ".join(paths[:4]) + (" …" if len(paths) > 4 else ""))
    page = (
        f"<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>"
        f"<meta http-equiv='Content-Security-Policy' content=\"{POLICY}\">"
        f"<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>testbed report: {title}</title><style>{STYLE}</style></head>\n"
        f"<body><h1>testbed report</h1>{_contents(shown)}{compared}{''.join(parts)}</body></html>\n"
    )
    write_text(out / "report.html", page)
    return out / "report.html"


def _contents(shown: Sequence[Shown]) -> str:
    if len(shown) < 2:
        return ""
    items = "".join(f"<li><a href='#{_id(one)}'>{html.escape(one.path.resolve().name)}</a></li>" for one in shown)
    return f"<ul>{items}</ul>"


def _id(shown: Shown) -> str:
    return "run-" + re.sub(r"[^A-Za-z0-9-]+", "-", shown.label)


def _section(shown: Shown, intervals: Sequence[Intervals], out: Path, formats: Sequence[str]) -> str:
    name = html.escape(shown.path.resolve().name)
    blocks = [f"<h2 id='{_id(shown)}'>{name}</h2>", facts_html(shown.document)]
    if shown.missing:
        blocks.append(f"<p class='note'>Not finished: {shown.missing} points of this sweep are missing.</p>")
    sections = (report_cell, report_capacity, report_field, report_bench)
    figures = [figure for section in sections for figure in section.figures(shown)]
    blocks.append(report_field.notes(shown))
    if shown.speculates:
        figures += [*report_figures.figures(shown, intervals), *report_power.figures(shown)]
        blocks += [*_tables(shown, intervals, out / "tables"), _categories(shown, out / "tables")]
        blocks.append(report_power.notes(shown))
    else:
        blocks += [_study_table(shown), report_field.contention(shown), report_field.visits(shown)]
    for figure in figures:
        image = write_figure(figure, out / "plots", shown.label, formats)
        blocks.append(
            f"<figure><img alt='{figure.name}' src='data:image/png;base64,{base64.b64encode(image).decode()}'>"
            f"<figcaption>{html.escape(figure.caption)}</figcaption></figure>"
        )
    return "".join(blocks)


def _study_table(shown: Shown) -> str:
    """Rows of a directory without decoding methods."""
    sections = (report_bench, report_cell, report_field)
    tables = {section.KIND: section.table for section in sections}
    kind = shown.document.get("kind")
    return tables[kind](shown) if kind in tables else study_html(shown.rows)


def _categories(shown: Shown, folder: Path) -> str:
    """HTML of the rows of each category of prompts, which are also written as CSV; empty without categories."""
    parts = shown.categories
    if not parts:
        return ""
    intervals = with_intervals(parts, shown.config)
    write_text(
        folder / f"{shown.label}-categories.csv", report_tables.rows_csv([part.row for part in parts], intervals)
    )
    return "<h3>By category</h3>" + rows_html([by_meaning(part.row) for part in parts], intervals)


def _tables(shown: Shown, intervals: Sequence[Intervals], folder: Path) -> list[str]:
    """HTML of Table I, if windows vary, and of all rows; also writes them as LaTeX and CSV."""
    blocks = []
    table = report_tables.pivot(shown.rows, [part.name for part in shown.parts])
    if table is not None:
        write_text(folder / f"{shown.label}-table1.tex", report_tables.pivot_latex(table))
        write_text(folder / f"{shown.label}-table1.csv", report_tables.pivot_csv(table))
        blocks += ["<h3>By window and link</h3>", report_tables.pivot_html(table)]
    write_text(folder / f"{shown.label}-rows.csv", report_tables.rows_csv(shown.rows, intervals))
    rows = rows_html(list(map(by_meaning, shown.rows)), intervals)
    if any(intervals):
        rows += (
            "<p><small>In small type: 95 % bootstrap intervals over the prompts. <i>Speed-up</i> and <i>accuracy "
            "lost</i> compare a row with the first of its window and link, or the chosen one, paired by prompt."
            "</small></p>"
        )
    if table is not None or len(shown.rows) > MOST_ROWS:
        unfolded = "" if len(shown.rows) > MOST_ROWS else " open"
        return [*blocks, f"<details{unfolded}><summary>All {len(shown.rows)} rows</summary>{rows}</details>"]
    return [*blocks, rows]
