"""Coefficients of the serving model over lengths and model size: linear fits and plots (the review's Figs. 5 and 6)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from testbed.errors import BadInput
from testbed.experiments.plots.style import canvas, legend, save_figure, series_styles
from testbed.optim.serving.fit import ServingFit
from testbed.optim.serving.lengths import Lengths, length, r_squared
from testbed.optim.serving.model import Array
from testbed.optim.serving.points import names


class CoefficientLine(NamedTuple):
    """A coefficient as a linear function of model size: intercept + slope·millions of parameters."""

    intercept: float
    slope: float
    r2: float


def by_size(fits: Mapping[float, ServingFit]) -> dict[str, CoefficientLine]:
    """Linear fits to the coefficients of several targets over millions of parameters (Fig. 5).

    Raises:
        BadInput: fewer than two sizes, or fits of different forms.
    """
    if len(fits) < 2:
        raise BadInput("a fit over model size needs at least two sizes")
    forms = {each.names for each in fits.values()}
    if len(forms) > 1:
        raise BadInput("the fits have different forms; measure all sizes with the same windows and rates")
    sizes, table = np.array(list(fits)), np.array([each.values for each in fits.values()])
    return {name: _line(sizes, table[:, i]) for i, name in enumerate(next(iter(forms)))}


def _line(x: Array, y: Array) -> CoefficientLine:
    slope, intercept = np.polyfit(x, y, 1).tolist()
    return CoefficientLine(intercept, slope, r_squared(y, intercept + slope * x))


def plot_sizes(fits: Mapping[float, ServingFit], path: Path) -> Path:
    """Plot coefficients over model size."""
    lines = by_size(fits)
    sizes = np.array(list(fits))
    rows = [(name, sizes, np.array([fit.values[i] for fit in fits.values()]), line) for i, (name, line) in
            enumerate(lines.items())]  # fmt: skip
    return save_figure(lambda: _drawn(rows, "model size [million parameters]"), path)


def plot_lengths(lengths: Lengths, path: Path) -> Path:
    """Plot coefficients over the lengths on which they are assumed to depend (Fig. 6)."""
    laws, table = lengths.laws(), lengths.table
    rows = []
    for i, name in enumerate(names("speculation", None)):
        x = np.array([length(name, *pair) for pair in lengths.pairs])
        rows.append((name, x, table[:, i], CoefficientLine(laws[name].intercept, laws[name].slope, laws[name].r2)))
    return save_figure(lambda: _drawn(rows, "prefill [tokens] for p, prefill + 0.5·decode for v and d"), path)


def _drawn(rows: list[tuple[str, Array, Array, CoefficientLine]], x: str) -> Any:
    figure, axes = canvas(width=6.0, height=3.4)
    for (name, where, values, line), style in zip(rows, series_styles(), strict=False):
        top = float(np.max(np.abs(values))) or 1.0
        label = f"{name}, R² {line.r2:.2f}"
        axes[0, 0].plot(where, values / top, style.marker, color=style.colour, label=label)
        ends = np.array([where.min(), where.max()])
        fitted = (line.intercept + line.slope * ends) / top
        axes[0, 0].plot(ends, fitted, color=style.colour, linestyle=style.dash, linewidth=1.0)
    axes[0, 0].set_xlabel(x)
    axes[0, 0].set_ylabel("coefficient / largest coefficient")
    legend(figure, axes)
    return figure


def document(lines: Mapping[str, CoefficientLine]) -> dict[str, Any]:
    """JSON document of the lines, by coefficient."""
    return {name: line._asdict() for name, line in lines.items()}
