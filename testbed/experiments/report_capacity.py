"""Figures of studies of load: capacity by class, violations over the number of UEs, the queue-compute plane (WISP
Figs. 7, 8), and latency under load with its collapse onto one curve (the serving latency model's Figs. 1, 2).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from testbed.errors import BadInput
from testbed.experiments.latency_data import read_points
from testbed.experiments.report_data import Row, Shown
from testbed.experiments.report_style import Figure, canvas, legend, look_of
from testbed.optim.serving_fit import Fit, fit
from testbed.optim.serving_model import collapse, collapsed
from testbed.optim.serving_points import Points

POINTS_FILE, PLANE_FILE, VIOLATIONS_FILE = "points.csv", "fig8.csv", "fig7.csv"
CAUSES = {"": ("in time", "#999999", "."), "queue": ("late by queueing", "#e69f00", "x"),
          "compute": ("late by verification", "#0072b2", "^")}  # fmt: skip


def figures(shown: Shown) -> list[Figure]:
    """What a directory of `capacity --out` or of a measured load allows."""
    rows, found = shown.rows, []
    if rows and all("capacity" in row and "class_tps" in row for row in rows) and not any("varied" in r for r in rows):
        caption = "UEs that a BS sustains, by token speed; crosses: what WISP's Table 2 prints."
        found.append(Figure("capacity", caption, lambda: _capacity(rows)))
    over = _violations_of(shown)
    if over:
        caption = "Share of responses slower than their class, over the number of UEs (WISP Fig. 7)."
        epsilon = shown.document["config"].get("epsilon")
        found.append(Figure("violations", caption, lambda: _violations(over, epsilon)))
    plane = _table(shown.path / PLANE_FILE)
    if plane:
        caption = "Rounds by their time in the queue and under verification, late ones by cause (WISP Fig. 8)."
        found.append(Figure("plane", caption, lambda: _plane(plane)))
    if (shown.path / POINTS_FILE).exists() and not shown.speculates:
        found += _load(shown.path / POINTS_FILE)
    return found


def _table(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file; none where it is not there."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, csv.Error) as exc:
        raise BadInput(f"cannot read {path}: {exc}") from exc


def _capacity(rows: Sequence[Row]) -> Any:
    figure, axes = canvas(width=6.0)
    for system, look in look_of([row["system"] for row in rows]).items():
        mine = sorted((row for row in rows if row["system"] == system), key=lambda row: float(row["class_tps"]))
        speeds = [row["class_tps"] for row in mine]
        axes[0, 0].plot(
            speeds, [row["capacity"] for row in mine], color=look.colour, marker=look.marker, linestyle=look.dash,
            label=system,
        )  # fmt: skip
        printed = [(row["class_tps"], row["paper"]) for row in mine if row.get("paper") is not None]
        if printed:
            axes[0, 0].plot(*zip(*printed, strict=True), "x", color=look.colour, markersize=8, markeredgewidth=2)
    axes[0, 0].set_xlabel("token speed of the class [tokens/s]")
    axes[0, 0].set_ylabel("UEs sustained")
    axes[0, 0].set_xticks(sorted({row["class_tps"] for row in rows}))
    axes[0, 0].set_ylim(bottom=0)
    legend(figure, axes)
    return figure


def _violations_of(shown: Shown) -> list[dict[str, Any]]:
    """System, UEs, class and share violated."""
    found = [
        {"system": row["system"], "ues": float(row["ues"]), "class_tps": float(speed), "violation": float(share)}
        for row in shown.rows
        if isinstance(row.get("violations"), dict) and "ues" in row and "system" in row
        for speed, share in row["violations"].items()
    ] or [
        {**row, **{key: float(row[key]) for key in ("ues", "class_tps", "violation")}}
        for row in _table(shown.path / VIOLATIONS_FILE)
    ]
    return found if len({row["ues"] for row in found}) > 1 else []


def _violations(rows: Sequence[Row], epsilon: float | None) -> Any:
    classes = sorted({row["class_tps"] for row in rows})
    figure, axes = canvas(min(4, len(classes)), -(-len(classes) // 4), width=2.7, height=2.3, sharey=True)
    for one, speed in zip(axes.flat, classes, strict=False):
        for system, look in look_of([row["system"] for row in rows]).items():
            mine: dict[float, list[float]] = {}
            for row in rows:
                if row["system"] == system and row["class_tps"] == speed:
                    mine.setdefault(row["ues"], []).append(row["violation"])
            places = sorted(mine)
            means = [float(np.mean(mine[at])) for at in places]
            one.plot(places, means, color=look.colour, marker=look.marker, linestyle=look.dash, label=system)
        if epsilon is not None:
            one.axhline(epsilon, color="black", linestyle=":", linewidth=1, label=f"ε = {epsilon:g}")
        one.set_title(f"{speed:g} tokens/s", loc="left", fontsize=9)
        one.set_xlabel("UEs")
    for one in axes[:, 0]:
        one.set_ylabel("share of responses late")
    for one in list(axes.flat)[len(classes) :]:
        one.set_visible(False)
    legend(figure, axes)
    return figure


def _plane(rows: Sequence[Row]) -> Any:
    figure, axes = canvas(width=6.0, height=3.4)
    for cause, (label, colour, marker) in CAUSES.items():
        mine = [row for row in rows if row.get("cause") == cause]
        if mine:
            x, y = ([float(row[key]) for row in mine] for key in ("queue_s", "verify_s"))
            axes[0, 0].plot(
                x, y, marker, color=colour, markersize=3, alpha=0.6, label=f"{label}: {len(mine)}", rasterized=True
            )
    axes[0, 0].set_xlabel("time in the queue [s]")
    axes[0, 0].set_ylabel("time under verification [s]")
    legend(figure, axes)
    return figure


# ---------------------------------------------------------------- latency under load


def _load(path: Path) -> list[Figure]:
    points, latency_s = read_points(path)
    try:
        found = fit(points, latency_s)
    except BadInput:
        return []
    groups = _groups(points)
    caption = "Mean latency under load, measured and fitted."
    drawn: list[tuple[str, str, Callable[[], Any]]] = [
        ("load", caption, lambda: _under_load(found, points, latency_s, groups)),
        ("collapse", "The same loads and latencies, scaled by each setting's C1 and C2: they fall onto 1/(1 − x).",
         lambda: _collapse(found, points, latency_s, groups)),
    ]  # fmt: skip
    return [Figure(*one) for one in drawn]


def _groups(points: Points) -> dict[str, Any]:
    """Rows of the points of one setting, by its name."""
    keys = [(name, values) for name in ("alpha", "k") if (values := getattr(points, name)) is not None]
    names = [", ".join(f"{key} {values[i]:g}" for key, values in keys) or "measured" for i in range(points.rps.size)]
    return {name: np.array([one == name for one in names]) for name in dict.fromkeys(names)}


def _under_load(found: Fit, points: Points, latency_s: Any, groups: dict[str, Any]) -> Any:
    figure, axes = canvas(width=6.0)
    for (name, rows), look in zip(groups.items(), look_of(list(groups)).values(), strict=True):
        axes[0, 0].plot(points.rps[rows], latency_s[rows], look.marker, color=look.colour, label=name)
        order = np.argsort(points.rps[rows])
        fitted, _ = found.unbounded(points.take(rows))
        axes[0, 0].plot(points.rps[rows][order], fitted[order], color=look.colour, linestyle=look.dash)
    axes[0, 0].set_xlabel("load [requests/s]")
    axes[0, 0].set_ylabel("mean latency [s]")
    legend(figure, axes)
    return figure


def _collapse(found: Fit, points: Points, latency_s: Any, groups: dict[str, Any]) -> Any:
    from testbed.experiments.latency_plots import costs_of

    figure, axes = canvas(width=6.0)
    largest = 0.0
    for (name, rows), look in zip(groups.items(), look_of(list(groups)).values(), strict=True):
        x, y = collapse(points.rps[rows], latency_s[rows], costs_of(found, points.take(rows)))
        axes[0, 0].plot(x, y, look.marker, color=look.colour, label=name)
        largest = max(largest, float(np.max(x)))
    curve = np.linspace(0, min(0.98, 1.05 * largest), 200)
    axes[0, 0].plot(curve, collapsed(curve), color="black", label="1/(1 − x)")
    axes[0, 0].set_xlabel("x = RPS·C2")
    axes[0, 0].set_ylabel("y = L/C1")
    legend(figure, axes)
    return figure
