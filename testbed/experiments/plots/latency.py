"""Plots of the serving latency model: measured points and the fitted curve, and the collapse onto y = 1/(1 − x)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from testbed.experiments.plots.style import Figure, canvas, legend, save_figure, series_styles
from testbed.optim.serving.fit import ServingFit
from testbed.optim.serving.model import Array, collapse, collapsed
from testbed.optim.serving.points import SETTING, Points

LARGEST_X = 0.98
"""Largest x of a curve."""
MOST_LABELS = 24
"""Number of curves beyond which the legend is omitted."""
STEPS = 200
SHORT = {"alpha": "α", "k": "K"}
ALIKE = {"k": 0.5, "alpha": 0.05, "decode": 4.0}
"""Smallest difference between two settings; closer values are one setting with measurement noise."""


def figures(fit: ServingFit, points: Points, latency_s: Array) -> list[Figure]:
    """Latency under load, and the collapse unless the fit has experts (then a point has no single C1 and C2)."""
    groups = _groups(fit, points)
    found = [
        Figure("latency", "Mean latency under load, measured and fitted.",
               lambda: _latency(fit, points, latency_s, groups))
    ]  # fmt: skip
    if fit.experts is None:
        caption = "The same loads and latencies scaled by each setting's C1 and C2, which collapse onto 1/(1 − x)."
        found.append(Figure("collapse", caption, lambda: _collapse(fit, points, latency_s, groups)))
    return found


def write_plots(fit: ServingFit, points: Points, latency_s: Array, directory: Path) -> list[Path]:
    """Write the figures as PNG.

    Raises:
        BadInput: matplotlib is missing, or the directory is not writable.
    """
    return [save_figure(one.draw, directory / f"{one.name}.png") for one in figures(fit, points, latency_s)]


def _groups(fit: ServingFit, points: Points) -> list[tuple[str, Any]]:
    """Label and rows of the points of each curve: equal k, and similar α and response lengths, which are measured
    separately at every load.
    """
    shown = ("k", "alpha", "decode") if fit.form == "speculation" else ("k",) if fit.experts else ()
    keys = {name: values for name in shown if (values := getattr(points, name)) is not None}
    if not keys:
        return [("measured", np.ones(points.rps.size, bool))]
    alike = np.stack([_alike(values, ALIKE[name]) for name, values in keys.items()], axis=1)
    settings = np.unique(alike, axis=0)
    varying = [i for i in range(len(keys)) if np.ptp(alike[:, i]) > 0] or [0]
    found = []
    for setting in settings:
        rows = np.all(alike == setting, axis=1)
        parts = [(SHORT.get(name, name), values[rows].mean()) for name, values in keys.items()]
        found.append((", ".join(f"{parts[i][0]} {round(parts[i][1], 2):g}" for i in varying), rows))
    return found


def _alike(values: Array, gap: float) -> Any:
    """Group index of each value [n]; groups are separated by more than `gap`."""
    order = np.argsort(values, kind="stable")
    group = np.zeros(values.size, int)
    group[order[1:]] = np.cumsum(np.diff(values[order]) > gap)
    return group


def _latency(fit: ServingFit, points: Points, latency_s: Array, groups: list[tuple[str, Any]]) -> Any:
    figure, axes = canvas(width=6.0, height=3.4)
    one = axes[0, 0]
    for (label, rows), style in zip(groups, series_styles(), strict=False):
        mine = points.take(rows)
        one.plot(mine.rps, latency_s[rows], style.marker, color=style.colour, label=label)
        loads, found = _curve(fit, mine)
        one.plot(loads, found, color=style.colour, linestyle=style.dash)
    one.set_ylim(0, 1.1 * float(latency_s.max()))
    one.set_title(f"{fit.form} form, R² = {fit.r2:.4f}", loc="left", fontsize=9)
    one.set_xlabel("load [requests/s]")
    one.set_ylabel("mean latency [s]")
    _legend(figure, axes, groups)
    return figure


def _curve(fit: ServingFit, points: Points) -> tuple[Array, Array]:
    """The fitted curve from zero to the largest measured load, up to saturation."""
    loads = np.linspace(0, float(points.rps.max()), STEPS)
    means = {name: np.full(STEPS, values.mean()) for name in SETTING if (values := getattr(points, name)) is not None}
    found, _ = fit.unbounded(Points(loads, **means))
    below = np.isfinite(found)
    return loads[below], found[below]


def _collapse(fit: ServingFit, points: Points, latency_s: Array, groups: list[tuple[str, Any]]) -> Any:
    figure, axes = canvas(width=6.0, height=3.4)
    one, largest = axes[0, 0], 0.0
    for (label, rows), style in zip(groups, series_styles(), strict=False):
        x, y = collapse(points.rps[rows], latency_s[rows], *_costs_of(fit, points.take(rows)))
        one.plot(x, y, style.marker, color=style.colour, label=label)
        largest = max(largest, float(x.max()))
    curve = np.linspace(0, min(LARGEST_X, largest * 1.05), STEPS)
    one.plot(curve, collapsed(curve), color="black", label="1/(1 − x)")
    one.set_xlabel("x = RPS·C2 (load / capacity)")
    one.set_ylabel("y = L/C1 (latency / unloaded latency)")
    _legend(figure, axes, groups)
    return figure


def _costs_of(fit: ServingFit, points: Points) -> tuple[Array, Array]:
    """C1 and C2 of each point, [n] each."""
    if fit.form == "load":
        return np.full(points.rps.size, fit.values[0]), np.full(points.rps.size, fit.values[1])
    features = points.features(fit.form)
    return features @ fit.values[:3], features @ fit.values[3:]


def _legend(figure: Any, axes: Any, groups: list[tuple[str, Any]]) -> None:
    if len(groups) <= MOST_LABELS:
        legend(figure, axes)
