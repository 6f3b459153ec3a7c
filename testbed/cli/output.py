"""Output of commands: one JSON document on stdout with `--json`, tables and progress for people otherwise."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from testbed.intervals import printable

COLUMNS: dict[str, tuple[str, str]] = {
    "method": ("method", "{}"),
    "requests": ("n", "{:d}"),
    "accuracy": ("accuracy", "{:.3f}"),
    "aal": ("AAL", "{:.2f}"),
    "rounds": ("rounds", "{:.1f}"),
    "acceptance_cond": ("α", "{:.3f}"),
    "latency_s": ("latency s", "{:.4f}"),
    "latency_p95_s": ("p95 s", "{:.4f}"),
    "throughput_tps": ("tok/s", "{:.1f}"),
    "tokens": ("tokens", "{:.1f}"),
    "uplink_bytes": ("up B", "{:.0f}"),
    "downlink_bytes": ("down B", "{:.0f}"),
    "draft_s": ("draft s", "{:.4f}"),
    "link_s": ("link s", "{:.4f}"),
    "queue_s": ("queue s", "{:.4f}"),
    "verify_s": ("verify s", "{:.4f}"),
    "overhead_s": ("overhead s", "{:.4f}"),
    "lossless": ("lossless", "{}"),
}

ENERGY_COLUMNS: dict[str, tuple[str, str]] = {
    "method": ("method", "{}"),
    "energy_requests": ("n", "{:d}"),
    "energy_j": ("energy J", "{:.4g}"),
    "energy_per_token_j": ("J/token", "{:.4g}"),
    "draft_j": ("draft J", "{:.4g}"),
    "link_j": ("link J", "{:.4g}"),
    "wait_j": ("BS J", "{:.4g}"),
    "other_j": ("other J", "{:.4g}"),
    "above_idle_j": ("above idle J", "{:.4g}"),
    "power_gap_s": ("not known s", "{:.3g}"),
    "throttled_rounds": ("throttled rounds", "{:d}"),
}

GRID_COLUMNS: dict[str, tuple[str, str]] = {
    "series": ("series", "{}"),
    "method": COLUMNS["method"],
    "window_rule": ("window rule", "{}"),
    "drafter": ("drafter", "{}"),
    "engine": ("engine", "{}"),
    "dtype": ("dtype", "{}"),
    "temperature": ("T", "{:g}"),
    "judge": ("judge", "{}"),
    "head": ("head", "{}"),
    "payload": ("payload", "{}"),
    "window": ("K", "{:d}"),
    "threshold": ("θ", "{:.2f}"),
    "level": ("level", "{:g}"),
    "hidden_bits": ("b_h", "{:d}"),
    "uplink_mbps": ("up Mbit/s", "{:.4g}"),
    "downlink_mbps": ("down Mbit/s", "{:.4g}"),
    "rtt_ms": ("RTT ms", "{:.4g}"),
    "per": ("PER", "{:.3g}"),
    **{key: COLUMNS[key] for key in ("requests", "accuracy", "aal", "rounds", "latency_s", "latency_p95_s")},
    **{key: COLUMNS[key] for key in ("throughput_tps", "draft_s", "link_s", "verify_s", "lossless")},
}
"""Columns of a sweep's rows; those that differ from point to point come first."""
NAMES = ("method", "series")
"""Columns that name a row, left-aligned and in every part of a table."""
OF_A_SERIES = ("method", "judge", "head", "payload")
"""Fields that name a series."""


def console(stderr: bool = False) -> Console:
    """A rich console; wide where it is not a terminal, so that tables keep their columns in files."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else 200, highlight=False)


def claim_stdout() -> TextIO:
    """Keep stdout for documents alone: what libraries print there from now on goes to stderr."""
    sys.stdout.flush()
    kept = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return kept


def print_json(document: Mapping[str, Any], stream: TextIO | None = None) -> None:
    """One JSON document on a stream; None: stdout."""
    stream = stream or sys.stdout
    json.dump(document, stream, allow_nan=False)
    stream.write("\n")
    stream.flush()


def print_rows(
    rows: Sequence[Mapping[str, Any]], title: str | None = None, columns: Mapping[str, tuple[str, str]] = COLUMNS
) -> None:
    """The table of a run, one method a row, without empty columns; in several parts where the terminal is narrow."""
    shown = [key for key in columns if any(row.get(key) is not None for row in rows)]
    names = [key for key in shown if key in NAMES] or shown[:1]
    rest, out = [key for key in shown if key not in names], console()
    while True:
        tables = (_table(rows, columns, [*names, *rest[:count]], title) for count in range(len(rest), 0, -1))
        table = next((one for one in tables if _width(one, out) <= out.width), None)
        if table is None:
            table = _table(rows, columns, [*names, *rest[:1]], title)
        out.print(table)
        rest, title = rest[max(1, len(table.columns) - len(names)) :], None
        if not rest:
            return


def _width(table: Table, out: Console) -> int:
    """Columns of a terminal that a table takes where nothing is shortened."""
    return table.__rich_measure__(out, out.options.update(max_width=1000)).maximum


def _table(
    rows: Sequence[Mapping[str, Any]], columns: Mapping[str, tuple[str, str]], keys: Sequence[str], title: str | None
) -> Table:
    table = Table(title=title, title_justify="left")
    for key in keys:
        table.add_column(columns[key][0], justify="left" if key in NAMES else "right", no_wrap=True)
    for row in rows:
        cells = ((columns[key][1], printable(row, key)) for key in keys)
        table.add_row(*("–" if value is None else form.format(value) for form, value in cells))
    return table


def grid_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    """Columns of a sweep's rows, without what all have alike; of one run's rows, the usual ones."""
    if len({row.get("method") for row in rows}) == len(rows):
        return COLUMNS
    differing = {key for key in GRID_COLUMNS if len({str(row.get(key)) for row in rows}) > 1}
    stood_for = OF_A_SERIES if "series" in differing else ()
    return {
        key: spec for key, spec in GRID_COLUMNS.items() if (key in COLUMNS or key in differing) and key not in stood_for
    }


def note(text: str) -> None:
    """One line for people, on stderr."""
    print(text, file=sys.stderr, flush=True)


def note_power(power: Mapping[str, Any]) -> None:
    """Notes on power samples: invalid lines and readings, gaps."""
    if power.get("skipped"):
        note(f"{power['skipped']} lines were no samples")
    if power.get("missed"):
        note(f"{power['missed']} readings failed, the last one: {power.get('missed_why')}")
    if power.get("gaps"):
        note(f"{power['gaps']} gaps in the samples, {power['gaps_s']:.3g} s together: energy there is not known")
