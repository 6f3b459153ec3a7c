"""Section of a report on `testbed bench`: metrics over the request rate."""

from __future__ import annotations

from testbed.experiments.plots.bench import bench_figure
from testbed.experiments.plots.style import Figure
from testbed.experiments.report.data import Shown
from testbed.experiments.report.rows_table import study_html, table_html
from testbed.experiments.results.bench_columns import BENCH_COLUMNS

KIND = "bench"


def is_bench(shown: Shown) -> bool:
    """Whether a directory is of `testbed bench`."""
    return shown.document.get("kind") == KIND


def table(shown: Shown) -> str:
    """The metrics that matter most, and all columns folded."""
    rows = shown.rows
    names = [name for name in BENCH_COLUMNS if any(row.get(name) is not None for row in rows)]
    most = table_html("", None, names, rows, [{}] * len(rows), lambda name: BENCH_COLUMNS[name][0])
    return f"{most}<details><summary>All columns</summary>{study_html(rows)}</details>"


def figures(shown: Shown) -> list[Figure]:
    """The metrics over the request rate, where several finite rates were measured."""
    rates = {row.get("rate_rps") for row in shown.rows} - {None}
    return [bench_figure(shown.rows)] if is_bench(shown) and len(rates) > 1 else []
