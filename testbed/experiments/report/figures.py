"""Figures of a run or sweep: latency and its parts, and curves over windows and thresholds."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from testbed.experiments.plots.style import (
    HATCHES,
    PART_COLOURS,
    PARTS,
    Figure,
    canvas,
    legend,
    styles_of,
)  # fmt: skip
from testbed.experiments.report.data import Row, RowSource, Shown
from testbed.experiments.report.intervals import LINK, Intervals
from testbed.experiments.report.rows_table import GRID as SETTINGS_OF_A_ROW
from testbed.experiments.report.rows_table import setting_texts
from testbed.experiments.report.tables import link_text
from testbed.protocols import TARGET_ONLY

MOST_BARS = 24
"""Maximum number of rows for the bar chart of latency."""
KEY_WIDTH = 110
"""Characters of a line of the key below bars."""
CURVES = {
    "aal": "AAL [tokens/round]",
    "rounds": "rounds per request",
    "latency_s": "mean latency per request [s]",
    "accuracy": "accuracy",
}
GRID = ("series", *SETTINGS_OF_A_ROW)
"""Settings in which rows of one method may differ."""
CLIPPED, NEAR = 3.0, 1.7
"""A bar higher than `CLIPPED` times the median and `NEAR` times the highest other bar is clipped and labelled with its
height."""


def row_names(rows: Sequence[Row]) -> list[str]:
    """A name for each row: its method, and the settings in which rows differ."""
    methods = {row["method"] for row in rows}
    differing = [key for key in GRID if len({(row["method"], str(row.get(key))) for row in rows}) > len(methods)]
    return [", ".join([row["method"], *setting_texts(row, differing)]) for row in rows]


def figures(shown: Shown, intervals: Sequence[Intervals]) -> list[Figure]:
    """All figures for the rows of a run or sweep."""
    rows, found = shown.rows, []
    windows = {row.get("window") for row in rows}
    levels = {_level(row) for row in rows} - {None}
    if len(rows) <= MOST_BARS:
        found.append(Figure("latency", "Mean latency per request, stacked by parts.", lambda: _latency(rows)))
    if len(windows) > 1:
        found.append(
            Figure("latency-window", "Mean latency over the draft window, stacked by parts. Outlying bars are clipped "
                   "and labelled with their height.", lambda: _stacked(shown.parts))
        )  # fmt: skip
        for key, title in _known(rows, CURVES):
            caption = f"{title[0].upper()}{title[1:]} over the draft window, with 95 % intervals over the prompts."
            draw = _curve_drawer(shown.parts, intervals, key, title, "window", "draft window K [tokens]")
            found.append(Figure(f"{key.removesuffix('_s')}-curve", caption, draw))
    if len(levels) > 2:
        for key, title in _known(rows, ("accuracy", "aal", "latency_s")):
            caption = (
                f"{title[0].upper()}{title[1:]} over the threshold (Fig. 3), with 95 % intervals over the prompts."
            )
            draw = _curve_drawer(shown.parts, intervals, key, title, "level", "threshold, level = 16 θ")
            found.append(Figure(f"{key.removesuffix('_s')}-threshold", caption, draw))
    return [*found, *_of_rounds(shown)]


def _known(rows: Sequence[Row], keys: Iterable[str]) -> list[tuple[str, str]]:
    """Columns that have values, with their axis labels."""
    return [(key, CURVES[key]) for key in keys if any(row.get(key) is not None for row in rows)]


def _level(row: Row) -> float | None:
    if row.get("level") is not None:
        return float(row["level"])
    return None if row.get("threshold") is None else 16 * float(row["threshold"])


def _link(row: Row) -> dict[str, Any]:
    return {key: row.get(key) for key in LINK}


def _panels(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Distinct links, in the order of the rows, as in tables."""
    return list({str(_link(row)): _link(row) for row in rows}.values())


# ---------------------------------------------------------------- latency


def _latency(rows: Sequence[Row]) -> Any:
    figure, axes = canvas(width=7.5, height=0.8 + 0.33 * len(rows))
    one, names, left = axes[0, 0], row_names(rows), np.zeros(len(rows))
    for part, colour, hatch in zip(PARTS, PART_COLOURS, HATCHES, strict=False):
        values = np.array([row.get(part) or 0.0 for row in rows])
        if not values.any():
            continue
        one.barh(
            range(len(rows)),
            values,
            left=left,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            label=part.removesuffix("_s"),
        )
        left += values
    one.set_yticks(range(len(rows)), names)
    one.grid(axis="y", visible=False)
    one.invert_yaxis()
    one.set_xlabel("mean latency per request [s]")
    legend(figure, axes)
    return figure


def _stacked(parts: Sequence[RowSource]) -> Any:
    """Groups of bars by window, one bar per series, one panel per link."""
    panels = _panels([part.row for part in parts])
    windows, names = sorted({part.row["window"] for part in parts}), list(dict.fromkeys(part.name for part in parts))
    figure, axes = canvas(1, len(panels), width=8.0, height=2.6)
    width = 0.84 / len(names)
    letters = [chr(ord("a") + i) for i in range(len(names))]
    places = [at - 0.42 + width * (i + 0.5) for at in range(len(windows)) for i in range(len(names))]
    for one, panel in zip(axes[:, 0], panels, strict=True):
        mine = [part for part in parts if _link(part.row) == panel]
        top = _top([sum(part.row.get(key) or 0.0 for key in PARTS) for part in mine])
        for part in mine:
            at = windows.index(part.row["window"]) - 0.42 + width * (names.index(part.name) + 0.5)
            _bar(one, at, width * 0.92, part.row, top)
        one.set_ylim(0, top)
        one.set_ylabel("mean latency [s]")
        one.set_title(link_text(panel), loc="left", fontsize=9)
        one.grid(axis="x", visible=False)
        one.xaxis.remove_overlapping_locs = False
        one.set_xticks(range(len(windows)), [f"\n{window}" for window in windows])
        one.set_xticks(places, letters * len(windows), minor=True, fontsize=7)
        one.tick_params(axis="x", which="both", length=0)
    key = ", ".join(f"{letter}: {name}" for letter, name in zip(letters, names, strict=True))
    axes[-1, 0].set_xlabel(f"draft window K [tokens]\n{textwrap.fill(key, KEY_WIDTH)}")
    legend(figure, axes)
    return figure


def _bar(axes: Any, at: float, width: float, row: Row, top: float) -> None:
    bottom = 0.0
    for part, colour, hatch in zip(PARTS, PART_COLOURS, HATCHES, strict=False):
        value = row.get(part) or 0.0
        label = part.removesuffix("_s") if value else "_none"
        axes.bar(at, value, width, bottom, color=colour, hatch=hatch, edgecolor="white", linewidth=0.4, label=label)
        bottom += value
    if bottom > top:
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
        axes.text(at, top * 0.97, f"{bottom:.3g} s", ha="center", va="top", rotation=90, fontsize=7, bbox=box)


def _top(totals: Sequence[float]) -> float:
    """Height of a panel: that of the tallest bar without outliers."""
    usual = max((total for total in totals if total <= CLIPPED * float(np.median(totals))), default=0.0)
    return 1.12 * max((total for total in totals if total <= NEAR * usual), default=1.0)


# ---------------------------------------------------------------- curves


def _curve_drawer(
    parts: Sequence[RowSource], intervals: Sequence[Intervals], key: str, title: str, across: str, label: str
) -> Any:
    return lambda: _curves(parts, intervals, key, title, across, label)


def _curves(
    parts: Sequence[RowSource], intervals: Sequence[Intervals], key: str, title: str, across: str, label: str
) -> Any:
    """One line per series, one panel per link."""
    target = [part for part in parts if part.row["method"] == TARGET_ONLY and across == "level"]
    pairs = [
        pair
        for pair in zip(parts, intervals, strict=True)
        if pair[0] not in target and pair[0].row.get(key) is not None
    ]
    panels = _panels([part.row for part, _ in pairs])
    look = styles_of([part.name for part in parts if part not in target])
    figure, axes = canvas(min(2, len(panels)), -(-len(panels) // 2), sharey=True, width=4.2)
    spread = [part.row[key] for part, _ in pairs]
    for one, panel in zip(axes.flat, panels, strict=False):
        for number, name in enumerate(look):
            mine = [(p, i) for p, i in pairs if p.name == name and _link(p.row) == panel]
            _line(one, mine, key, across, name, look[name], number - (len(look) - 1) / 2)
        for part in target[:1] if key == "accuracy" else ():
            one.axhline(part.row[key], color="black", linestyle="--", linewidth=1, label=part.name)
        one.set_title(link_text(panel), loc="left", fontsize=9)
        if across == "window":
            one.set_xscale("log", base=2)
            windows = sorted({part.row["window"] for part, _ in pairs})
            one.set_xticks(windows, [str(window) for window in windows])
            one.minorticks_off()
        if key == "latency_s" and min(spread) > 0 and max(spread) > 10 * min(spread):
            one.set_yscale("log")
            _log_ticks(one.yaxis)
    if key == "accuracy":
        low, high = axes[0, 0].get_ylim()  # shared by all panels
        axes[0, 0].set_ylim(max(0.0, low), min(1.02, high))
    for one in axes[:, 0]:
        one.set_ylabel(title)
    for one in axes[-1, :]:
        one.set_xlabel(label)
    for one in list(axes.flat)[len(panels) :]:
        one.set_visible(False)
    legend(figure, axes)
    return figure


def _log_ticks(axis: Any) -> None:
    """Ticks at 1, 2, 5, 10, 20, … as plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(10, (1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _line(
    axes: Any, pairs: Sequence[tuple[RowSource, Intervals]], key: str, across: str, name: str, look: Any, place: float
) -> None:
    """Draw one series, shifted horizontally so that error bars do not overlap."""
    found: dict[float, list[tuple[float, Intervals]]] = {}
    for part, interval in pairs:
        at = _level(part.row) if across == "level" else part.row.get(across)
        if at is not None:
            found.setdefault(float(at), []).append((part.row[key], interval))
    if not found:
        return
    places = sorted(found)
    values = np.array([np.mean([value for value, _ in found[at]]) for at in places])
    known = [found[at][0][1].get(key) for at in places]
    if all(known) and all(len(found[at]) == 1 for at in places):
        bounds = np.array([[max(0.0, i.value - i.low), max(0.0, i.high - i.value)] for i in known if i]).T
    else:
        bounds = None
    aside = [at * 1.012**place if across == "window" else at + 0.1 * place for at in places]
    axes.errorbar(
        aside, values, bounds, **look.line, label=name, elinewidth=0.8,
        capsize=2,
    )  # fmt: skip


# ---------------------------------------------------------------- rounds


def _of_rounds(shown: Shown) -> list[Figure]:
    from testbed.experiments.report import rounds as report_rounds

    return report_rounds.figures(shown)
