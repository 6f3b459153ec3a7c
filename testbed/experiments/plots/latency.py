"""Plots of the serving latency model: measured points and the fitted curve, and the collapse onto y = 1/(1 − x)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from testbed.experiments.plots.style import Figure, canvas, legend, looks, save_figure
from testbed.optim.serving_fit import Fit
from testbed.optim.serving_model import Array, Costs, CycleCosts, collapse, collapsed
from testbed.optim.serving_points import SETTING, Points

LARGEST_X = 0.98
"""Where curves end."""
MOST_LABELS = 12
"""More curves than that get no legend."""
STEPS = 200
SHORT = {"alpha": "α", "k": "K"}


def figures(fit: Fit, points: Points, latency_s: Array) -> list[Figure]:
    """Latency under load, and `collapse` where the form has one C1 and C2 for every point (not with experts)."""
    groups = _groups(fit, points)
    found = [
        Figure("latency", "Mean latency under load, measured and fitted.",
               lambda: _latency(fit, points, latency_s, groups))
    ]  # fmt: skip
    if fit.experts is None:
        caption = "The same loads and latencies, scaled by each setting's C1 and C2: they fall onto 1/(1 − x)."
        found.append(Figure("collapse", caption, lambda: _collapse(fit, points, latency_s, groups)))
    return found


def write_plots(fit: Fit, points: Points, latency_s: Array, directory: Path) -> list[Path]:
    """Write the figures as PNG.

    Raises:
        BadInput: no plotting library, or a directory that cannot be written to.
    """
    return [save_figure(one.draw, directory / f"{one.name}.png") for one in figures(fit, points, latency_s)]


def _groups(fit: Fit, points: Points) -> list[tuple[str, Any]]:
    """Label and rows of the points that share a curve."""
    shown = ("alpha", "k", "decode") if fit.form == "speculation" else ("k",) if fit.experts else ()
    keys = [(name, getattr(points, name)) for name in shown if getattr(points, name) is not None]
    if not keys:
        return [("measured", np.ones(points.rps.size, bool))]
    table = np.stack([values for _, values in keys], axis=1)
    settings = np.unique(table, axis=0)
    varying = [i for i in range(len(keys)) if np.ptp(settings[:, i]) > 0] or [0]
    labels = [", ".join(f"{SHORT.get(keys[i][0], keys[i][0])} {row[i]:g}" for i in varying) for row in settings]
    return [(label, np.all(table == row, axis=1)) for label, row in zip(labels, settings, strict=True)]


def _latency(fit: Fit, points: Points, latency_s: Array, groups: list[tuple[str, Any]]) -> Any:
    figure, axes = canvas(width=6.0, height=3.4)
    one = axes[0, 0]
    for (label, rows), look in zip(groups, looks(), strict=False):
        mine = points.take(rows)
        one.plot(mine.rps, latency_s[rows], look.marker, color=look.colour, label=label)
        loads, found = _curve(fit, mine)
        one.plot(loads, found, color=look.colour, linestyle=look.dash)
    one.set_ylim(0, 1.1 * float(latency_s.max()))
    one.set_title(f"{fit.form} form, R² = {fit.r2:.4f}", loc="left", fontsize=9)
    one.set_xlabel("load [requests/s]")
    one.set_ylabel("mean latency [s]")
    _legend(figure, axes, groups)
    return figure


def _curve(fit: Fit, points: Points) -> tuple[Array, Array]:
    """The fit from no load to the largest measured one, up to where it saturates."""
    loads = np.linspace(0, float(points.rps.max()), STEPS)
    first = {name: np.full(STEPS, values[0]) for name in SETTING if (values := getattr(points, name)) is not None}
    found, _ = fit.unbounded(Points(loads, **first))
    below = np.isfinite(found)
    return loads[below], found[below]


def _collapse(fit: Fit, points: Points, latency_s: Array, groups: list[tuple[str, Any]]) -> Any:
    figure, axes = canvas(width=6.0, height=3.4)
    one, largest = axes[0, 0], 0.0
    for (label, rows), look in zip(groups, looks(), strict=False):
        x, y = collapse(points.rps[rows], latency_s[rows], _costs_of(fit, points.take(rows)))
        one.plot(x, y, look.marker, color=look.colour, label=label)
        largest = max(largest, float(x.max()))
    curve = np.linspace(0, min(LARGEST_X, largest * 1.05), STEPS)
    one.plot(curve, collapsed(curve), color="black", label="1/(1 − x)")
    one.set_xlabel("x = RPS·C2, load over capacity")
    one.set_ylabel("y = L/C1, latency over unloaded")
    _legend(figure, axes, groups)
    return figure


def _costs_of(fit: Fit, points: Points) -> Costs:
    """Of points that share a curve."""
    if fit.form == "load" or points.alpha is None or points.k is None or points.decode is None:
        return Costs(*fit.values.tolist())
    return CycleCosts(*fit.values).effective(float(points.alpha[0]), int(points.k[0]), float(points.decode[0]))


def _legend(figure: Any, axes: Any, groups: list[tuple[str, Any]]) -> None:
    if len(groups) <= MOST_LABELS:
        legend(figure, axes)
