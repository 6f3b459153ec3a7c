"""Tables of a report as HTML, LaTeX and CSV: all rows with their intervals, and WISV's Table I."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from testbed.experiments.report.data import Row
from testbed.experiments.report.intervals import LINK, Intervals
from testbed.table_text import CONTROLS, TEX, plain_cell

SETTINGS = (
    "window_rule", "lookahead", "drafter", "engine", "dtype", "temperature", "sampling", "verification", "q_top",
    "q_bits",
)  # fmt: skip
"""Settings of a run that a row names only where the rows differ in them."""
TABLE = (
    "method", "series", *SETTINGS, "judge", "head", "payload", "window", "threshold", "level", "hidden_bits",
    "uplink_mbps", "downlink_mbps", "rtt_ms", "per", "requests", "accuracy", "aal", "rounds", "acceptance",
    "acceptance_cond", "mean_accepted", "mean_acceptance_length", "latency_s", "latency_p95_s", "ttft_s", "tpot_s",
    "itl_s", "itl_p50_s", "itl_p95_s", "itl_p99_s", "speedup_target_only", "speedup_colocated", "throughput_tps",
    "tokens", "uplink_bytes", "downlink_bytes", "uplink_bytes_per_token", "downlink_bytes_per_token",
    "uplink_payload_bytes", "downlink_payload_bytes",
    "energy_j", "energy_per_token_j", "draft_j", "link_j", "wait_j", "other_j", "above_idle_j", "power_gap_s",
    "throttled_rounds", "lossless", "ties",
)  # fmt: skip
HEADERS = {
    "window_rule": "window rule", "window": "K", "threshold": "θ", "hidden_bits": "b_h",
    "uplink_mbps": "up Mbit/s", "downlink_mbps": "down Mbit/s",
    "rtt_ms": "RTT ms", "per": "PER", "requests": "n", "aal": "AAL", "acceptance": "accepted", "acceptance_cond": "α",
    "latency_s": "latency s", "latency_p95_s": "p95 s", "throughput_tps": "tokens/s", "uplink_bytes": "up B",
    "downlink_bytes": "down B", "uplink_payload_bytes": "up payload B",
    "downlink_payload_bytes": "down payload B", "speedup": "speed-up", "accuracy_lost": "accuracy lost",
    "energy_j": "energy J", "energy_per_token_j": "J/token", "ttft_s": "TTFT s", "tpot_s": "TPOT s", "itl_s": "ITL s",
    "itl_p50_s": "p50 ITL s", "itl_p95_s": "p95 ITL s", "itl_p99_s": "p99 ITL s",
    "uplink_bytes_per_token": "up B/token", "downlink_bytes_per_token": "down B/token",
    "speedup_target_only": "× target-only", "speedup_colocated": "× colocated",
    "mean_accepted": "accepted/round", "mean_acceptance_length": "mean acc. length", "draft_j": "draft J",
    "link_j": "link J", "wait_j": "BS J", "other_j": "other J", "above_idle_j": "above idle J",
    "power_gap_s": "power unknown s", "throttled_rounds": "throttled rounds",
}  # fmt: skip
CELLS = {
    "latency_s": ("Latency [s]", "{:.3f}"),
    "aal": ("AAL", "{:.3f}"),
    "rounds": ("Rounds", "{:.3f}"),
    "throughput_tps": ("Throughput [tok/s]", "{:.3f}"),
    "accuracy": ("Accuracy", "{:.3f}"),
}
"""Columns of Table I: latency, AAL, rounds and throughput as in the paper, and accuracy."""


class Pivot(NamedTuple):
    """Table I: windows and methods as rows, links as columns."""

    links: list[tuple[Any, ...]]
    keys: list[str]
    """Keys in which the links differ, in the order of `links`' values."""
    windows: list[int]
    names: list[str]
    cells: dict[tuple[int, str, tuple[Any, ...]], Row]

    def link_text(self, link: Sequence[Any]) -> str:
        """A link as text."""
        return link_text(dict(zip(self.keys, link, strict=True)))


def link_text(link: Mapping[str, Any]) -> str:
    """A link as text; a rate equal in both directions is given once."""
    up, down = link.get("uplink_mbps"), link.get("downlink_mbps")
    words = []
    if up is not None:
        words.append(f"{up:g} Mbit/s" if down in (None, up) else f"{up:g} up, {down:g} down Mbit/s")
    words += [f"RTT {link['rtt_ms']:g} ms"] if link.get("rtt_ms") is not None else []
    words += [f"PER {link['per']:g}"] if link.get("per") else []
    words += [f"{key.removesuffix('_ms')} {link[key]}" for key in ("file", "jitter_ms") if link.get(key)]
    return ", ".join(words) or "link unknown"


def pivot(rows: Sequence[Row], name: Sequence[str]) -> Pivot | None:
    """Table I of rows; None if windows do not vary, or if other settings do.

    Args:
        name: name of every row.
    """
    windows = sorted({row["window"] for row in rows if row.get("window") is not None})
    keys = [key for key in LINK if len({str(row.get(key)) for row in rows}) > 1] or ["uplink_mbps"]
    links = list(dict.fromkeys(tuple(row.get(key) for key in keys) for row in rows))
    cells = {
        (row["window"], own, tuple(row.get(key) for key in keys)): row for row, own in zip(rows, name, strict=True)
    }
    if len(windows) < 2 or len(cells) < len(rows):
        return None
    return Pivot(links, keys, windows, list(dict.fromkeys(name)), cells)


def pivot_html(table: Pivot) -> str:
    """Table I as HTML, with a header over each link's columns."""
    spans = "".join(f"<th colspan={len(CELLS)}>{html.escape(table.link_text(link))}</th>" for link in table.links)
    heads = "".join(f"<th>{title}</th>" for _ in table.links for title, _ in CELLS.values())
    groups: dict[str, list[list[str]]] = {}
    for window, *line in _lines(table, "–"):
        groups.setdefault(window, []).append(line)
    body = "".join(
        f"<tbody><tr><th rowspan={len(lines)}>{window}</th>" + "</tr><tr>".join(map(_cells, lines)) + "</tr></tbody>"
        for window, lines in ((html.escape(window), lines) for window, lines in groups.items())
    )
    return (
        f"<div class=wide><table class=pivot><thead><tr><th></th><th></th>{spans}</tr><tr><th>K</th><th>method</th>"
        f"{heads}</tr></thead>{body}</table></div>"
    )


def _cells(line: Sequence[str]) -> str:
    return "".join(f"<td>{html.escape(cell)}</td>" for cell in line)


def pivot_latex(table: Pivot) -> str:
    """Table I as LaTeX; needs the package booktabs."""
    wide = len(CELLS)
    spans = " & ".join(
        rf"\multicolumn{{{wide}}}{{c}}{{{table.link_text(link).translate(TEX)}}}" for link in table.links
    )
    rules = "".join(rf"\cmidrule(lr){{{3 + wide * i}-{2 + wide * (i + 1)}}}" for i in range(len(table.links)))
    heads = " & ".join(title for _ in table.links for title, _ in CELLS.values())
    lines, last = [], ""
    for line in _lines(table, "--"):
        if last and line[0] != last:
            lines.append(r"\midrule")
        shown = ["" if line[0] == last else f"draft={line[0]}", *line[1:]]
        last = line[0]
        lines.append(" & ".join(cell.translate(TEX) for cell in shown) + r" \\")
    columns = "ll" + "r" * (wide * len(table.links))
    return "\n".join(
        [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", rf" & & {spans} \\", rules, rf" & Method & {heads} \\",
         r"\midrule", *lines, r"\bottomrule", r"\end{tabular}", ""]
    )  # fmt: skip


def pivot_csv(table: Pivot) -> str:
    """Table I as CSV with one header line."""
    heads = [f"{key} @ {table.link_text(link)}" for link in table.links for key in CELLS]
    return _csv([["window", "method", *heads], *_lines(table, "")])


def _lines(table: Pivot, nothing: str) -> list[list[str]]:
    lines = []
    for window in table.windows:
        for name in table.names:
            found = [table.cells.get((window, name, link)) for link in table.links]
            if not any(found):
                continue
            cells = [_shown(row, key, form, nothing) for row in found for key, (_, form) in CELLS.items()]
            lines.append([str(window), name, *cells])
    return lines


def _shown(row: Row | None, key: str, form: str, nothing: str) -> str:
    return nothing if row is None or row.get(key) is None else form.format(row[key])


# ---------------------------------------------------------------- all rows


def cell(value: Any) -> str:
    """A value as HTML of a table's cell."""
    return html.escape(text_of(value))


def text_of(value: Any) -> str:
    """A value as text."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"
    return str(value).translate(CONTROLS)


def rows_csv(rows: Sequence[Row], intervals: Sequence[Intervals]) -> str:
    """CSV of all rows and columns with one value, with `…_low` and `…_high` for columns with intervals."""
    names = list(
        dict.fromkeys(name for row in rows for name, value in row.items() if not isinstance(value, dict | list))
    )
    bounds = list(dict.fromkeys(name for one in intervals for name in one))
    beside = [name for name in bounds if name not in names]
    ends = [f"{name}_{end}" for name in bounds for end in ("low", "high")]
    heads = [*names, *beside, *(f"{end}_bootstrap" if end in names else end for end in ends)]
    lines: list[list[Any]] = [heads]
    for row, one in zip(rows, intervals, strict=True):
        line = [row.get(name) for name in names] + [one[n].value if n in one else None for n in beside]
        lines.append(line + [value for n in bounds for value in (one[n][1:] if n in one else (None, None))])
    return _csv(lines)


def _csv(lines: Sequence[Sequence[Any]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(map(plain_cell, line) for line in lines)
    return buffer.getvalue()
