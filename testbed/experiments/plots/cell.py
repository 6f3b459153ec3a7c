"""Series of a cell over time, tails of its latencies, UEs that it sustains, and the map of what binds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from testbed.experiments.plots.style import COLOURS, canvas, from_zero, legend, save_figure, styles_of

Row = Mapping[str, Any]
BINDING = {"radio": COLOURS[0], "drafting": COLOURS[2], "verification": COLOURS[3]}
MARKERS = {"radio": "o", "drafting": "s", "verification": "^"}
MOST_COLUMNS = 3
"""Panels beside each other."""


def write_plot(rows: Sequence[Row], varied: Sequence[str], path: Path) -> Path:
    """Draw UEs over the first varied field, a line per combination of the others; every point is coloured by what
    binds. Filled points of given numbers of UEs were sustained with every seed.
    """
    return save_figure(lambda: _drawn(rows, varied), path)


def _drawn(rows: Sequence[Row], varied: Sequence[str]) -> Any:
    first, *others = varied or [""]
    labels = [", ".join(f"{name.rpartition('.')[2]} {_value(name, row[name])}" for name in others) for row in rows]
    names = list(dict.fromkeys(labels))
    columns = min(len(names), MOST_COLUMNS)
    figure, axes = canvas(columns, math.ceil(len(names) / columns), width=3.2, sharey=True)
    for unused in axes.flat[len(names) :]:
        unused.set_visible(False)
    places = list(dict.fromkeys(row.get(first, "") for row in rows))
    if all(isinstance(place, int | float) for place in places):
        places.sort()
    for one, name in zip(axes.flat[: len(names)], names, strict=True):
        mine = [row for row, label in zip(rows, labels, strict=True) if label == name]
        if "ues_by_seed" in mine[0]:
            one.plot([places.index(row.get(first, "")) for row in mine], [row["ues"] for row in mine], color="0.7")
        for row in mine:
            colour = BINDING[row["bound_by"]]
            at, filled = places.index(row.get(first, "")), row.get("kept", 1.0) == 1.0
            if row.get("ues_low") is not None:
                one.plot([at, at], [row["ues_low"], row["ues_high"]], color=colour, linewidth=1)
            one.plot(
                at, row["ues"], MARKERS[row["bound_by"]], color=colour, markerfacecolor=colour if filled else "none"
            )
        one.set_xticks(range(len(places)), [_tick(first, place) for place in places])
        one.set_xlabel(_axis(first))
        one.set_title(name)
    if any("kept" in row for row in rows):  # given numbers, mostly of a geometric sequence
        numbers = sorted({row["ues"] for row in rows})
        axes.flat[0].set_yscale("log")
        axes.flat[0].set_yticks(numbers, [str(number) for number in numbers], minor=False)
        axes.flat[0].minorticks_off()
    else:
        from_zero(axes.flat[0])  # once all panels are drawn, since they share the axis
    for part, colour in BINDING.items():
        axes[0, 0].plot([], [], MARKERS[part], color=colour, label=f"bound by {part}")
    if any((row.get("kept", 1.0) or 0.0) < 1 for row in rows):
        axes[0, 0].plot([], [], "o", color="0.4", markerfacecolor="none", label="not sustained with every seed")
    for row_of_panels in axes:
        row_of_panels[0].set_ylabel("UEs")
    legend(figure, axes)
    return figure


SWEPT = {"goodput_tps": "goodput [tokens/s]", "latency_s": "mean latency [s]", "violations": "late responses"}


def write_sweep(rows: Sequence[Row], varied: Sequence[str], path: Path) -> Path:
    """Draw goodput, latency and late responses over the first varied field, with intervals over seeds; a line per
    group and combination of the other fields.
    """
    return save_figure(lambda: _drawn_sweep(rows, varied), path)


def _drawn_sweep(rows: Sequence[Row], varied: Sequence[str]) -> Any:
    first, *others = varied or [""]
    figures = [name for name in SWEPT if any(row[name] is not None for row in rows)] or ["message_delay_s"]
    labels = [", ".join(f"{row[name]}" for name in ["group", *others]) for row in rows]
    places = list(dict.fromkeys(row.get(first, "") for row in rows))
    figure, axes = canvas(len(figures), 1, width=3.8)
    looks = styles_of(list(dict.fromkeys(labels)))
    for one, name in zip(axes.flat, figures, strict=True):
        for label, look in looks.items():
            mine = [row for row, its in zip(rows, labels, strict=True) if its == label and row[name] is not None]
            at = [places.index(row.get(first, "")) for row in mine]
            one.plot(at, [row[name] for row in mine], look.marker, color=look.colour, linestyle="-", label=label)
            for x, row in zip(at, mine, strict=True):
                if row[f"{name}_low"] is not None:
                    one.plot([x, x], [row[f"{name}_low"], row[f"{name}_high"]], color=look.colour, linewidth=1)
        one.set_xticks(range(len(places)), [_tick(first, place) for place in places])
        one.set_xlabel(_axis(first))
        one.set_ylabel(SWEPT.get(name, "mean message delay [s]"))
        from_zero(one)
    legend(figure, axes)
    return figure


def _axis(name: str) -> str:
    """Label of the axis of a field; frequencies are in MHz."""
    return f"{name} [MHz]" if name.endswith("_hz") else name


def _tick(name: str, place: object) -> str:
    """The value of a field, without its unit."""
    if name.endswith("_hz") and isinstance(place, int | float):
        return f"{place / 1e6:g}"
    return f"{place:g}" if isinstance(place, float) else f"{place}"


def _value(name: str, place: object) -> str:
    return f"{_tick(name, place)} MHz" if name.endswith("_hz") else _tick(name, place)


PANELS = {
    "uplink_share": "share of the uplink",
    "downlink_share": "share of the downlink",
    "window": "drafted tokens per round",
    "goodput_tps": "goodput [tokens/s]",
}
MOST_POINTS = 120
"""Points of a line; steps are averaged."""


def draw_series(series: Mapping[str, Any]) -> Any:
    """Draw what `cell run` writes as `series.json`, a line per group."""
    figure, axes = canvas(2, 3, width=3.8, height=2.1)
    per = max(1, math.ceil(len(series["queue"]) / MOST_POINTS))
    looks = styles_of(list(series["groups"]))
    for one, (name, title) in zip(axes.flat, PANELS.items(), strict=False):
        for group, values in series["groups"].items():
            known = _averaged(values[name], per)
            if not np.isnan(known).all():
                one.plot(_times(series, known, per), known, color=looks[group].colour, label=group)
        one.set_ylabel(title)
    queue, tails = axes.flat[4], axes.flat[5]
    waiting = _averaged(series["queue"], per)
    queue.plot(_times(series, waiting, per), waiting, color="0.3")
    queue.set_ylabel("windows in the queue")
    for group, latencies in series["latencies_s"].items():
        if latencies:
            late = 1 - np.arange(len(latencies)) / len(latencies)
            tails.step(np.sort(latencies), late, where="post", color=looks[group].colour, label=group)
    tails.set_yscale("log")
    most = max((len(latencies) for latencies in series["latencies_s"].values()), default=0)
    tails.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    tails.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if most < 10 else "")  # less than a decade
    tails.set_ylabel("share that takes longer")
    tails.set_xlabel("latency [s]")
    for one in axes.flat[:5]:
        from_zero(one)
        one.set_xlabel("time after the warm-up [s]")
    legend(figure, axes)
    return figure


def _averaged(values: Sequence[float | None], per: int) -> Any:
    """Means over `per` values each, NaN where none is known."""
    known = np.array([np.nan if value is None else value for value in values], np.float64)
    padded = np.append(known, np.full(-len(known) % per, np.nan)).reshape(-1, per)
    count = np.maximum(1, (~np.isnan(padded)).sum(axis=1))
    return np.where(np.isnan(padded).all(axis=1), np.nan, np.nansum(padded, axis=1) / count)


def _times(series: Mapping[str, Any], values: Any, per: int) -> Any:
    return (np.arange(len(values)) + 0.5) * per * series["step_s"]
