"""Plots of the serving latency model: measured points and the fitted curve, and the collapse onto y = 1/(1 − x)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from testbed.errors import BadInput
from testbed.optim.serving_fit import Fit
from testbed.optim.serving_model import Array, Costs, CycleCosts, collapse, collapsed
from testbed.optim.serving_points import SETTING, Points

LARGEST_X = 0.98
"""Where curves end."""
MOST_LABELS = 12
"""More curves than that get no legend."""
STEPS = 200


def write_plots(fit: Fit, points: Points, latency_s: Array, directory: Path) -> list[Path]:
    """Write `latency.png`, and `collapse.png` where the form has one C1 and C2 for every point (not with experts).

    Raises:
        BadInput: no plotting library, or a directory that cannot be written to.
    """
    groups = _groups(fit, points)
    figures = {"latency": _latency(fit, points, latency_s, groups)}
    if fit.experts is None:
        figures["collapse"] = _collapse(fit, points, latency_s, groups)
    paths = [directory / f"{name}.png" for name in figures]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, figure in zip(paths, figures.values(), strict=True):
            figure.savefig(path, dpi=120, bbox_inches="tight")
    except OSError as exc:
        raise BadInput(f"cannot write plots into {directory}: {exc.strerror or exc}") from exc
    return paths


def _groups(fit: Fit, points: Points) -> list[tuple[str, Any]]:
    """Label and rows of the points that share a curve."""
    shown = ("alpha", "k", "decode") if fit.form == "speculation" else ("k",) if fit.experts else ()
    keys = [(name, getattr(points, name)) for name in shown if getattr(points, name) is not None]
    if not keys:
        return [("measured", np.ones(points.rps.size, bool))]
    table = np.stack([values for _, values in keys], axis=1)
    settings = np.unique(table, axis=0)
    varying = [i for i in range(len(keys)) if np.ptp(settings[:, i]) > 0] or [0]
    labels = [", ".join(f"{keys[i][0]} {row[i]:g}" for i in varying) for row in settings]
    return [(label, np.all(table == row, axis=1)) for label, row in zip(labels, settings, strict=True)]


def _latency(fit: Fit, points: Points, latency_s: Array, groups: list[tuple[str, Any]]) -> Any:
    figure, axes = axes_of("load [requests/s]", "mean latency [s]")
    for i, (label, rows) in enumerate(groups):
        mine = points.take(rows)
        axes.plot(mine.rps, latency_s[rows], "o", color=f"C{i}", label=label, markersize=4)
        loads, found = _curve(fit, mine)
        axes.plot(loads, found, color=f"C{i}")
    axes.set_ylim(0, 1.1 * float(latency_s.max()))
    axes.set_title(f"{fit.form} form, R² = {fit.r2:.4f}", loc="left")
    _legend(axes, len(groups))
    return figure


def _curve(fit: Fit, points: Points) -> tuple[Array, Array]:
    """The fit from no load to the largest measured one, up to where it saturates."""
    loads = np.linspace(0, float(points.rps.max()), STEPS)
    first = {name: np.full(STEPS, values[0]) for name in SETTING if (values := getattr(points, name)) is not None}
    found, _ = fit.unbounded(Points(loads, **first))
    below = np.isfinite(found)
    return loads[below], found[below]


def _collapse(fit: Fit, points: Points, latency_s: Array, groups: list[tuple[str, Any]]) -> Any:
    figure, axes = axes_of("x = RPS·C2", "y = L/C1")
    largest = 0.0
    for i, (label, rows) in enumerate(groups):
        x, y = collapse(points.rps[rows], latency_s[rows], costs_of(fit, points.take(rows)))
        axes.plot(x, y, "o", color=f"C{i}", label=label, markersize=4)
        largest = max(largest, float(x.max()))
    curve = np.linspace(0, min(LARGEST_X, largest * 1.05), STEPS)
    axes.plot(curve, collapsed(curve), color="black", label="1/(1 − x)")
    _legend(axes, len(groups))
    return figure


def costs_of(fit: Fit, points: Points) -> Costs:
    """Of points that share a curve."""
    if fit.form == "load" or points.alpha is None or points.k is None or points.decode is None:
        return Costs(*fit.values.tolist())
    return CycleCosts(*fit.values).effective(float(points.alpha[0]), int(points.k[0]), float(points.decode[0]))


def axes_of(x: str, y: str) -> tuple[Any, Any]:
    """A figure and its axes, named.

    Raises:
        BadInput: no plotting library.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise BadInput("plots need matplotlib: install the extra `lab`") from exc
    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes


def _legend(axes: Any, groups: int) -> None:
    if groups <= MOST_LABELS:
        axes.legend(frameon=False, fontsize=8)
