"""HTML tables of rows: results first beside the row's name, all columns folded below, and the terms that they use."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from testbed.experiments.report.data import Row
from testbed.experiments.report.intervals import Intervals
from testbed.experiments.report.tables import HEADERS, SETTINGS, TABLE, cell, text_of
from testbed.intervals import Interval, printable

RESULTS = (
    "requests", "latency_s", "speedup", "throughput_tps", "aal", "acceptance_cond", "accuracy", "unparsed",
    "accuracy_lost", "lossless", "uplink_bytes", "downlink_bytes", "uplink_payload_bytes", "downlink_payload_bytes",
    "energy_per_token_j",
)  # fmt: skip
"""Columns of the table that is open: what a reader looks for first."""
GRID = (
    "category", *SETTINGS, "judge", "head", "payload", "window", "threshold", "level", "hidden_bits", "uplink_mbps",
    "downlink_mbps", "rtt_ms", "per",
)  # fmt: skip
"""Settings that name a row where rows differ in them."""
SHORT = {
    "window_rule": "rule", "window": "K", "threshold": "θ", "hidden_bits": "b_h", "uplink_mbps": "up",
    "downlink_mbps": "down", "rtt_ms": "RTT", "per": "PER",
}  # fmt: skip
UNITS = {"uplink_mbps": " Mbit/s", "downlink_mbps": " Mbit/s", "rtt_ms": " ms"}
TERMS = {
    "aal": ("AAL", "average accepted length: tokens committed per round, correction or bonus token included"),
    "acceptance_cond": ("α", "probability that a drafted token is accepted, given that those before it were"),
    "acceptance": ("accepted", "share of all drafted tokens that were accepted"),
    "mean_accepted": ("accepted/round", "accepted tokens per round that drafted, without correction or bonus token"),
    "mean_acceptance_length": (
        "mean acc. length",
        "1 + accepted tokens per round that drafted, as vLLM and llama.cpp count",
    ),
    "ttft_s": ("TTFT", "mean time to the first tokens"),
    "tpot_s": ("TPOT", "mean time per output token after the first"),
    "itl_s": ("ITL", "time between two arrivals of tokens; a round's tokens arrive together"),
    "speedup_target_only": ("× target-only", "latency of the target alone over the row's, for the same prompts"),
    "speedup_colocated": (
        "× colocated",
        "latency of greedy speculation at the BS over the row's, for the same prompts",
    ),
    "window": ("K", "draft window: largest number of tokens drafted per round"),
    "threshold": ("θ", "threshold of the judge: 0 rejects every mismatch, so that the output is the target's own"),
    "level": ("level", "threshold in steps of 1/16: 16 θ"),
    "hidden_bits": ("b_h", "bits per element of uploaded hidden states"),
    "per": ("PER", "packet error rate of the link"),
    "speedup": ("speed-up", "latency of the first row with the same window and link, divided by the row's"),
    "accuracy_lost": ("accuracy lost", "accuracy of that first row minus the row's"),
    "unparsed": (
        "unparsed",
        "share of outputs without an answer that the scorer can read; accuracy counts them as wrong",
    ),
    "lossless": ("lossless", "whether every output equals the target's own greedy output, token for token"),
    "uplink_bytes": ("up B, down B", "bytes per request at the socket, headers included"),
    "uplink_payload_bytes": ("payload B", "bytes per request that the models of the device profile would send"),
}
"""Columns that need an explanation: term and meaning."""


def rows_html(rows: Sequence[Row], intervals: Sequence[Intervals]) -> str:
    """The table of results, all columns folded, and the terms of both."""
    known = [_with_intervals(row, one) for row, one in zip(rows, intervals, strict=True)]
    shown = [name for name in RESULTS if any(row.get(name) is not None for row in known)]
    every = [name for name in (*TABLE, *RESULTS) if any(row.get(name) is not None for row in known)]
    every = [name for name in dict.fromkeys(every) if name not in SETTINGS or len({r.get(name) for r in known}) > 1]
    told = [name for name in TERMS if name in every]
    return (
        table_html("", row_titles(known), shown, known, intervals)
        + f"<details><summary>All columns</summary>{table_html('', None, every, known, intervals)}</details>"
        + terms_html(told)
    )


def _with_intervals(row: Row, intervals: Intervals) -> Row:
    """A row with the columns that only intervals have."""
    return {**{name: one.value for name, one in intervals.items() if name not in row}, **row}


def row_titles(rows: Sequence[Row]) -> list[str]:
    """HTML of each row's first cell: its series or method and, in small type, the settings in which rows differ."""
    differing = [key for key in GRID if key == "category" or len({str(row.get(key)) for row in rows}) > 1]
    titles = []
    for row in rows:
        name = text_of(row.get("series") or row["method"])
        more = [row["method"]] if name != row["method"] else []
        more += setting_texts(row, [key for key in differing if row.get(key) is not None])
        small = f"<br><small>{html.escape(', '.join(more), quote=False)}</small>" if more else ""
        titles.append(html.escape(name) + small)
    return titles


def setting_texts(row: Row, names: Sequence[str]) -> list[str]:
    """Settings of a row in short; a rate equal in both directions is given once."""
    rates = ("uplink_mbps", "downlink_mbps")
    same = set(rates) <= set(names) and row.get(rates[0]) == row.get(rates[1]) is not None
    texts = {name: f"{SHORT.get(name, name)} {text_of(row.get(name))}{UNITS.get(name, '')}" for name in names}
    if same:
        texts[rates[0]] = f"{text_of(row[rates[0]])} Mbit/s"
        del texts[rates[1]]
    return list(texts.values())


def table_html(
    heading: str,
    titles: Sequence[str] | None,
    names: Sequence[str],
    rows: Sequence[Row],
    intervals: Sequence[Mapping[str, Interval]],
    header: Callable[[str], str] = lambda name: HEADERS.get(name, name.replace("_", " ")),
) -> str:
    """A table that scrolls beside its first column, with intervals below the values.

    Args:
        heading: header of the first column.
        titles: HTML of each row's first cell; None: the first of `names`.
        header: header of a column.
    """
    heads = [f"<th{_title(name)}>{html.escape(header(name))}</th>" for name in names]
    if titles is not None:
        heads.insert(0, f"<th>{html.escape(heading)}</th>")
    lines = []
    for i, (row, one) in enumerate(zip(rows, intervals, strict=True)):
        cells = [_td(printable(row, name), one.get(name)) for name in names]
        lines.append("<tr>" + "".join([f"<td>{titles[i]}</td>", *cells] if titles is not None else cells) + "</tr>")
    head, body = "".join(heads), "".join(lines)
    return f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _title(name: str) -> str:
    return f" title='{html.escape(TERMS[name][1], quote=True)}'" if name in TERMS else ""


def _td(value: Any, interval: Interval | None) -> str:
    bounds = f"<br><small>{interval.low:.4g} … {interval.high:.4g}</small>" if interval is not None else ""
    return f"<td>{cell(value)}{bounds}</td>"


def terms_html(names: Sequence[str], terms: Mapping[str, tuple[str, str]] = TERMS) -> str:
    """A folded list of the terms among these columns; empty without any."""
    items = "".join(f"<dt>{html.escape(terms[n][0])}</dt><dd>{html.escape(terms[n][1])}</dd>" for n in names)
    return f"<details><summary>Terms</summary><dl>{items}</dl></details>" if items else ""


# ---------------------------------------------------------------- other studies


def study_html(rows: Sequence[Row]) -> str:
    """Rows of another kind of study: names first, then results with their intervals (`…_low`, `…_high`); what is the
    same in all rows above the table.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    names = [name for name in names if not any(isinstance(row.get(name), dict | list) for row in rows)]
    names = [name for name in names if any(row.get(name) is not None for row in rows)]
    bounds = {f"{name}_{end}" for name in names for end in ("low", "high") if f"{name}_low" in names}
    alike = [name for name in names if len(rows) > 1 and len({str(row.get(name)) for row in rows}) == 1]
    same = [name for name in alike if name not in bounds and f"{name}_low" not in names]
    left = [name for name in names if name not in bounds and name not in same]
    words = [name for name in left if any(isinstance(row.get(name), str) for row in rows)]
    results = sorted((name for name in left if name not in words), key=lambda name: f"{name}_low" not in names)
    titles = [_study_title(row, words) for row in rows] if words else None
    table = table_html(words[0] if words else "", titles, results, rows, [bounds_of(row, results) for row in rows])
    heads = {name: html.escape(HEADERS.get(name, name.replace("_", " "))) for name in same}
    stated = "; ".join(f"{head} {cell(rows[0].get(name))}" for name, head in heads.items())
    return table + (f"<p><small>The same in all rows: {stated}.</small></p>" if stated else "")


def _study_title(row: Row, words: Sequence[str]) -> str:
    found = [cell(row.get(name)) for name in words if row.get(name) is not None]
    return "<br>".join(found[:1] + ([f"<small>{', '.join(found[1:])}</small>"] if found[1:] else []))


def bounds_of(row: Row, names: Sequence[str]) -> dict[str, Interval]:
    """Intervals of a row that has their ends as columns of their own (`…_low`, `…_high`)."""
    found = {name: (row.get(name), row.get(f"{name}_low"), row.get(f"{name}_high")) for name in names}
    return {name: Interval(*values) for name, values in found.items() if None not in values}  # type: ignore[arg-type]
