"""The model's coefficients against lengths and model size: the review's Figs. 5 and 6, as lines and plots."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from testbed.errors import BadInput
from testbed.experiments.latency_plots import axes_of
from testbed.optim.serving_fit import Fit
from testbed.optim.serving_lengths import Lengths, length, r_squared
from testbed.optim.serving_model import Array
from testbed.optim.serving_points import names


class Line(NamedTuple):
    """A coefficient as a line over the size of a model: intercept + slope·millions."""

    intercept: float
    slope: float
    r2: float


def by_size(fits: Mapping[float, Fit]) -> dict[str, Line]:
    """Lines through the coefficients of several targets, by millions of parameters (Fig. 5).

    Raises:
        BadInput: fewer than two sizes, or fits of different forms.
    """
    if len(fits) < 2:
        raise BadInput("a line over model size needs two sizes or more")
    forms = {each.names for each in fits.values()}
    if len(forms) > 1:
        raise BadInput("the fits have different forms; measure all sizes at the same windows and rates")
    sizes, table = np.array(list(fits)), np.array([each.values for each in fits.values()])
    return {name: _line(sizes, table[:, i]) for i, name in enumerate(next(iter(forms)))}


def _line(x: Array, y: Array) -> Line:
    slope, intercept = np.polyfit(x, y, 1).tolist()
    return Line(intercept, slope, r_squared(y, intercept + slope * x))


def plot_sizes(fits: Mapping[float, Fit], path: Path) -> Path:
    """Coefficients against model size."""
    lines = by_size(fits)
    sizes = np.array(list(fits))
    rows = [(name, sizes, np.array([fit.values[i] for fit in fits.values()]), line) for i, (name, line) in
            enumerate(lines.items())]  # fmt: skip
    return _plot(rows, "model size [million parameters]", path)


def plot_lengths(lengths: Lengths, path: Path) -> Path:
    """Coefficients against the lengths that they are taken to grow with (Fig. 6)."""
    laws, table = lengths.laws(), lengths.table
    rows = []
    for i, name in enumerate(names("speculation", None)):
        x = np.array([length(name, *pair) for pair in lengths.pairs])
        rows.append((name, x, table[:, i], Line(laws[name].intercept, laws[name].slope, laws[name].r2)))
    return _plot(rows, "prefill [tokens] for p, prefill + 0.5·decode for v and d", path)


def _plot(rows: list[tuple[str, Array, Array, Line]], x: str, path: Path) -> Path:
    figure, axes = axes_of(x, "coefficient, as a share of its largest")
    for i, (name, where, values, line) in enumerate(rows):
        top = float(np.max(np.abs(values))) or 1.0
        axes.plot(where, values / top, "o", color=f"C{i}", markersize=4, label=f"{name}, R² {line.r2:.2f}")
        ends = np.array([where.min(), where.max()])
        axes.plot(ends, (line.intercept + line.slope * ends) / top, color=f"C{i}", linewidth=1.0)
    axes.legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    return path


def document(lines: Mapping[str, Line]) -> dict[str, Any]:
    """By coefficient, JSON's types alone."""
    return {name: line._asdict() for name, line in lines.items()}
