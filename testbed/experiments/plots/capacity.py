"""Figures of capacity runs from the rows of their tables: WISP Table 2 as curves, and Figs. 7 and 8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from testbed.experiments.plots.style import COLOURS, canvas, from_zero, legend, styles_of

Row = Mapping[str, Any]
CAUSES = {"": ("in time", "#999999", "."), "queue": ("late by queueing", "#d55e00", "x"),
          "compute": ("late by verification", "#0072b2", "^")}  # fmt: skip
NOTHING = "nothing"
"""Name of the row of a sensitivity study in which nothing is varied."""
CROWD = 2000
"""Number of points beyond which they are drawn smaller and paler."""
MOST_PANELS = 4
"""Maximum number of panels per row."""


def capacities(rows: Sequence[Row], counted: str = "UEs sustained") -> Any:
    """Capacity over the class's token speed, one line per system, with its interval where the rows have one; crosses
    mark the paper's values.
    """
    figure, axes = canvas(width=6.0)
    one, printed = axes[0, 0], "WISP's Table 2"
    for system, style in styles_of([row["system"] for row in rows]).items():
        mine = sorted((row for row in rows if row["system"] == system), key=lambda row: float(row["class_tps"]))
        speeds, found = ([row[key] for row in mine] for key in ("class_tps", "capacity"))
        one.plot(speeds, found, **style.line, label=system)
        one.vlines(*_spans(mine, "class_tps", "capacity"), color=style.colour, linewidth=1)
        paper = [(row["class_tps"], row["paper"]) for row in mine if row.get("paper") is not None]
        if paper:
            one.plot(*zip(*paper, strict=True), "x", color=style.colour, markersize=8, markeredgewidth=1.6)
    if any(row.get("paper") is not None for row in rows):
        one.plot([], [], "x", color="black", markersize=8, markeredgewidth=1.6, label=printed)
    one.set_xlabel("token speed of the class [tokens/s]")
    one.set_ylabel(counted)
    one.set_xticks(sorted({row["class_tps"] for row in rows}))
    from_zero(one)
    legend(figure, axes)
    return figure


def _spans(rows: Sequence[Row], place: str, name: str) -> tuple[list[float], list[float], list[float]]:
    """Places and ends of the rows' intervals of a column, not below 0; rows without one are left out."""
    known = [row for row in rows if row.get(f"{name}_low") not in (None, "")]
    ends = ([max(0.0, float(row[f"{name}_{end}"])) for row in known] for end in ("low", "high"))
    low, high = ends
    return [float(row[place]) for row in known], low, high


def violations(rows: Sequence[Row], epsilon: float | None) -> Any:
    """Fraction of late responses over the number of UEs, one panel per class (Fig. 7), averaged over repetitions, with
    its interval where the rows have one.
    """
    classes = sorted({row["class_tps"] for row in rows})
    width = 2.7 if len(classes) > 1 else 6.0
    figure, axes = canvas(
        min(MOST_PANELS, len(classes)), -(-len(classes) // MOST_PANELS), width=width, height=2.3, sharey=True
    )
    for one, speed in zip(axes.flat, classes, strict=False):
        for system, style in styles_of([row["system"] for row in rows]).items():
            mine: dict[float, list[float]] = {}
            own = [row for row in rows if row["system"] == system and row["class_tps"] == speed]
            for row in own:
                mine.setdefault(row["ues"], []).append(row["violation"])
            places = sorted(mine)
            means = [float(np.mean(mine[at])) for at in places]
            one.plot(places, means, **style.line, label=system)
            one.vlines(*_spans(own, "ues", "violation"), color=style.colour, linewidth=1)
        if epsilon is not None:
            one.axhline(epsilon, color="black", linestyle=":", linewidth=1, label=f"ε = {epsilon:g}")
        one.set_title(f"{speed:g} tokens/s", loc="left", fontsize=9)
        one.set_xlabel("UEs")
        one.xaxis.get_major_locator().set_params(integer=True)
        one.set_ylim(-0.04, 1.04)
    for one in axes[:, 0]:
        one.set_ylabel("fraction of late responses")
    for one in list(axes.flat)[len(classes) :]:
        one.set_visible(False)
    legend(figure, axes)
    return figure


def goodput(rows: Sequence[Row]) -> Any:
    """Goodput of all UEs over their number, one line per system, averaged over repetitions."""
    figure, axes = canvas(width=6.0)
    for system, style in styles_of([row["system"] for row in rows]).items():
        mine: dict[float, list[float]] = {}
        for row in rows:
            if row["system"] == system:
                mine.setdefault(row["ues"], []).append(row["goodput_tps"])
        places = sorted(mine)
        means = [float(np.mean(mine[at])) for at in places]
        axes[0, 0].plot(places, means, **style.line, label=system)
    axes[0, 0].set_xlabel("UEs")
    axes[0, 0].set_ylabel("goodput [tokens/s]")
    axes[0, 0].xaxis.get_major_locator().set_params(integer=True)
    from_zero(axes[0, 0])
    legend(figure, axes)
    return figure


def factors(rows: Sequence[Row]) -> Any:
    """Capacity ratio of the first system to each other one, by the varied assumption; the dotted line is the ratio
    without variation. One panel per other system and class.
    """
    others = {(row["system"], row["class_tps"]): None for row in rows if row["system"] != rows[0]["system"]}
    varied = [name for name in dict.fromkeys(row["varied"] for row in rows) if name != NOTHING]
    known = {(row["system"], row["class_tps"], row["varied"]): row["factor"] for row in rows}
    figure, axes = canvas(max(1, len(others)), width=2.9, height=0.8 + 0.17 * len(varied), sharey=True)
    for one, (system, speed) in zip(axes[0], others, strict=False):
        found = [known.get((system, speed, name)) or 0.0 for name in varied]
        one.barh(range(len(varied)), found, color=COLOURS[0], height=0.7)
        one.axvline(known[system, speed, NOTHING] or 0.0, color="black", linestyle=":", linewidth=1)
        one.set_title(f"{rows[0]['system']} over {system}, {speed:g} tokens/s", loc="left", fontsize=8)
        one.set_xlabel("ratio of UEs sustained")
    axes[0, 0].set_yticks(range(len(varied)), varied, fontsize=7)
    axes[0, 0].invert_yaxis()
    return figure


def plane(rows: Sequence[Row]) -> Any:
    """Rounds in the plane of queueing and verification time, late ones by cause (Fig. 8)."""
    figure, axes = canvas(width=6.0, height=3.4)
    size, shade = (4, 0.7) if len(rows) <= CROWD else (2, 0.4)
    for cause, (label, colour, marker) in CAUSES.items():
        mine = [row for row in rows if row["cause"] == cause]
        if mine:
            x, y = ([float(row[key]) for row in mine] for key in ("queue_s", "verify_s"))
            axes[0, 0].plot(x, y, marker, color=colour, markersize=size, alpha=shade, rasterized=True)
            axes[0, 0].plot([], [], marker, color=colour, markersize=6, label=f"{label}: {len(mine)}")
    axes[0, 0].set_xlabel("queueing time [s]")
    axes[0, 0].set_ylabel("verification time [s]")
    legend(figure, axes)
    return figure
