"""Output of commands: one JSON document on stdout with `--json`, tables and progress for people otherwise."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console

from testbed.config import DemoConfig
from testbed.process.streams import write_stderr
from testbed.table_text import CONTROLS

COLUMNS: dict[str, tuple[str, str]] = {
    "method": ("method", "{}"),
    "requests": ("n", "{:d}"),
    "latency_s": ("latency s", "{:.4f}"),
    "throughput_tps": ("tok/s", "{:.1f}"),
    "aal": ("AAL", "{:.2f}"),
    "acceptance_cond": ("α", "{:.3f}"),
    "accuracy": ("accuracy", "{:.3f}"),
    "unparsed": ("unparsed", "{:.3f}"),
    "lossless": ("lossless", "{}"),
    "uplink_bytes": ("up B", "{:.0f}"),
    "downlink_bytes": ("down B", "{:.0f}"),
    "uplink_payload_bytes": ("up payload B", "{:.0f}"),
    "downlink_payload_bytes": ("down payload B", "{:.0f}"),
    "rounds": ("rounds", "{:.1f}"),
    "tokens": ("tokens", "{:.1f}"),
    "latency_p95_s": ("p95 s", "{:.4f}"),
    "draft_s": ("draft s", "{:.4f}"),
    "link_s": ("link s", "{:.4f}"),
    "queue_s": ("queue s", "{:.4f}"),
    "verify_s": ("verify s", "{:.4f}"),
    "overhead_s": ("overhead s", "{:.4f}"),
}
"""Columns of a run's rows, the most important ones first."""

CATEGORY_COLUMNS: dict[str, tuple[str, str]] = {"category": ("category", "{}"), **COLUMNS}
"""Columns of a run's rows by category of prompts."""

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
    "lookahead": ("lookahead", "{:g}"),
    "drafter": ("drafter", "{}"),
    "engine": ("engine", "{}"),
    "dtype": ("dtype", "{}"),
    "temperature": ("T", "{:g}"),
    "sampling": ("sampling", "{}"),
    "verification": ("verification", "{}"),
    "q_top": ("q top", "{:d}"),
    "q_bits": ("q bits", "{:d}"),
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
    **{key: spec for key, spec in COLUMNS.items() if key not in ("method", "queue_s", "overhead_s")},
}
"""Columns of a sweep's rows; those that differ from point to point come first."""
UNDIVIDED = 1000
"""Width of a table that is not shown on a terminal."""
OF_A_SERIES = ("method", "judge", "head", "payload")
"""Fields that name a series."""


def console(stderr: bool = False) -> Console:
    """A rich console; wide where it is not a terminal, so that tables in files are not divided."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else UNDIVIDED, highlight=False)


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


def grid_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    """Columns of a sweep's rows, without what all have alike and what their series or method sets; of one run's rows,
    the usual ones.
    """
    if len({row.get("method") for row in rows}) == len(rows):
        return COLUMNS
    others = {key: (key.replace("_", " "), "{}") for key in DemoConfig.__struct_fields__ if key not in GRID_COLUMNS}
    columns = {**others, **GRID_COLUMNS}
    differing = {key for key in columns if len({str(row.get(key)) for row in rows}) > 1}
    name = "series" if "series" in differing else "method"
    names = {row.get(name) for row in rows}
    stood_for = {
        key
        for key in columns
        if key not in COLUMNS
        and key != name
        and len({(row.get(name), str(row.get(key))) for row in rows}) == len(names)
    }
    stood_for |= set(OF_A_SERIES) if name == "series" else set()
    shown = {
        key: spec for key, spec in columns.items() if (key in COLUMNS or key in differing) and key not in stood_for
    }
    if "downlink_mbps" in shown and all(row.get("uplink_mbps") == row.get("downlink_mbps") for row in rows):
        del shown["downlink_mbps"]
        shown["uplink_mbps"] = ("Mbit/s", shown["uplink_mbps"][1])
    return shown


@contextlib.contextmanager
def progress(label: str = "loading", total: int | None = None) -> Iterator[Callable[..., None]]:
    """A progress bar on a terminal, nothing elsewhere; yields the function that updates it, called with the number
    done, the total and, where it changes, the text beside the bar (empty: `label`).
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    err = console(stderr=True)
    with Progress(*columns, console=err, disable=not err.is_terminal, transient=True) as bar:
        task = bar.add_task(label, total=total)

        def told(done: int, total: int, text: str = "") -> None:
            bar.update(task, completed=done, total=total, description=text or label)

        yield told


def visible(text: str) -> str:
    """Text from a model, a file or another machine, for a terminal: without the control characters that begin commands
    to it (ANSI escape sequences), which could forge output or write to the clipboard.
    """
    return text.translate(CONTROLS)


def for_stderr(text: str) -> str:
    """Text from elsewhere for stderr: `visible`, and broken between words where a terminal would break it in one."""
    lines = visible(text).split("\n")
    width = os.get_terminal_size(sys.stderr.fileno()).columns if sys.stderr.isatty() else 0
    if width:
        lines = [textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) for line in lines]
    return "\n".join(lines)


def note(text: str) -> None:
    """One line for people, on stderr; lost if nobody reads it, or its disk is full."""
    with contextlib.suppress(OSError):
        write_stderr(f"{for_stderr(text)}\n")


def note_power(power: Mapping[str, Any]) -> None:
    """Notes on power samples: invalid lines and readings, gaps."""
    if power.get("skipped"):
        note(f"{power['skipped']} lines were no samples")
    if power.get("missed"):
        note(f"{power['missed']} readings failed, the last one: {power.get('missed_why')}")
    if power.get("gaps"):
        note(f"{power['gaps']} gaps in the samples, {power['gaps_s']:.3g} s together: energy there is not known")
