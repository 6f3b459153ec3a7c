"""Compares runs: matching rows against those of the first run, paired by prompt if the prompts are the same."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from testbed.experiments.report.data import RowSource, Shown
from testbed.experiments.report.intervals import AT
from testbed.experiments.report.tables import SETTINGS
from testbed.intervals import Bootstrap, Interval

SAME = ("method", "series", *SETTINGS, "judge", "head", "payload", "threshold", "level", "hidden_bits", *AT)
"""Keys in which matching rows agree."""
LOOSE = ("method", "series", "window")
"""Keys in which rows must agree if no rows match in `SAME`, for instance because the links differ."""
COLUMNS = ("latency", "rounds", "tokens/s", "AAL", "accuracy")


def compared_html(shown: Sequence[Shown]) -> str:
    """HTML table of differences from the first run, by decoding method; empty if no rows match."""
    first, lines = shown[0], []
    for other in shown[1:]:
        if first.speculates and other.speculates:
            lines += [_line(first, base, other, part) for base, part in pairs(first.parts, other.parts)]
    if not lines:
        return ""
    names = ("run", "method", "window", "prompts", *COLUMNS)
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>" for line in lines)
    return (
        f"<h2>Compared with {html.escape(first.path.resolve().name)}</h2>"
        f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        "<p><small>Relative changes; for accuracy, differences. Paired rows decode the same prompts and have 95 % "
        "bootstrap intervals over the prompts.</small></p>"
    )


def pairs(first: Sequence[RowSource], other: Sequence[RowSource]) -> list[tuple[RowSource, RowSource]]:
    """Matching rows: equal in `SAME`, or else in `LOOSE`; keys that match several rows are ignored."""
    for keys in (SAME, LOOSE):
        known: dict[tuple[str, ...], list[RowSource]] = {}
        for part in first:
            known.setdefault(_key(part, keys), []).append(part)
        found = [(known[key][0], part) for part in other if len(known.get(key := _key(part, keys), [])) == 1]
        if found:
            return found
    return []


def _key(part: RowSource, keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(str(part.row.get(key)) for key in keys)


def _line(first: Shown, base: RowSource, other: Shown, part: RowSource) -> list[str]:
    drawn = _together(first, base, other, part)
    cells = [
        html.escape(other.path.resolve().name),
        html.escape(part.name),
        html.escape(str(part.row.get("window", "–"))),
    ]
    if drawn is None:
        return [*cells, "different", *(change(base.row.get(k), part.row.get(k)) for k in
                ("latency_s", "rounds", "throughput_tps", "aal")), _difference(base.row, part.row)]  # fmt: skip
    quotients = {
        "latency": drawn.ratio("b latency_s", "a latency_s"),
        "rounds": drawn.ratio("b rounds", "a rounds"),
    }
    changes = [_percent(quotients["latency"]), _percent(quotients["rounds"])]
    changes += [change(base.row.get(key), part.row.get(key)) for key in ("throughput_tps", "aal")]
    accuracy = _difference(base.row, part.row)
    if (right := _right(first, base, other, part)) is not None:
        found = right.difference("b", "a")
        accuracy = f"{found.value:+.3f}<br><small>{found.low:+.3f} … {found.high:+.3f}</small>"
    return [*cells, f"{drawn.n} paired", *changes, accuracy]


def _together(first: Shown, base: RowSource, other: Shown, part: RowSource) -> Bootstrap | None:
    """Paired bootstrap of both rows' columns; None if their prompts differ."""
    a, b = base.requests, part.requests
    same = first.config.get("dataset") == other.config.get("dataset")
    if a is None or b is None or not same or not len(a["request"]):
        return None
    if any(not np.array_equal(a[key], b[key]) for key in ("request", "prompt_len")):
        return None
    columns = {f"{run} {key}": table[key] for run, table in (("a", a), ("b", b)) for key in ("latency_s", "rounds")}
    return Bootstrap(columns)


def _right(first: Shown, base: RowSource, other: Shown, part: RowSource) -> Bootstrap | None:
    a, b = base.right(first.config), part.right(other.config)
    return None if a is None or b is None or a.size != b.size else Bootstrap({"a": a, "b": b})


def _percent(found: Interval) -> str:
    value, low, high = (number - 1 for number in found)
    return f"{value:+.1%}<br><small>{low:+.1%} … {high:+.1%}</small>"


def change(before: Any, after: Any) -> str:
    """Relative change."""
    return "–" if not before or after is None else f"{after / before - 1:+.1%}"


def _difference(before: Any, after: Any) -> str:
    a, b = before.get("accuracy"), after.get("accuracy")
    return "–" if a is None or b is None else f"{b - a:+.3f}"
