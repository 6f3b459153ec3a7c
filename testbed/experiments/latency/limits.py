"""Range of validity of the latency model: errors of mean, p95 and p99 over the distance from saturation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput
from testbed.experiments.results.latency import column_of, has_values, read_points
from testbed.optim.serving.fit import ServingFit, fit
from testbed.optim.serving.model import Array
from testbed.optim.serving.points import Points

STATISTICS = ("latency_s", "latency_p95_s", "latency_p99_s")
"""Columns; percentiles are left out if a load has too few requests for them."""
EDGES = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, np.inf)
"""Bin edges of x = RPS·C2, with C2 of the mean's fit."""
HOLDS = 0.1
"""The model holds where its median relative error is at most this."""


class ModelLimits(NamedTuple):
    """Range in which the model holds."""

    fits: dict[str, ServingFit]
    """Fit of each statistic to the loads that are not saturated."""
    errors: list[dict[str, Any]]
    """A row for each bin of x: its loads, how many are saturated, and the median |error| of each statistic's fit;
    None if the fit has no steady state."""
    holds_to: dict[str, float | None]
    """Largest x up to which the model holds in every bin with loads; None: not even in the first."""


def limits(path: Path, experts: tuple[int, int] | None = None, windows: Sequence[int] | None = None) -> ModelLimits:
    """Fit mean, p95 and p99 below saturation, and compare the fits with all loads of a table of `latency measure`:
    `pooled.csv`, or `all.csv` for the mean alone.

    Args:
        windows: draft windows to include; None: all.

    Raises:
        BadInput: an unreadable file, a missing column, or points that cannot be fitted.
    """
    points, _ = read_points(path, windows=windows, piled_up=True)
    piled = column_of(path, "saturated") > 0
    if windows is not None:
        piled = piled[np.isin(column_of(path, "k"), windows)]
    measured = {
        name: read_points(path, name, windows, piled_up=True)[1] for name in STATISTICS if has_values(path, name)
    }
    if piled.all():
        raise BadInput(f"{path.name} has no load below saturation")
    fits = {name: fit(points.take(~piled), seen[~piled], experts) for name, seen in measured.items()}
    x = fits[STATISTICS[0]].unbounded(points)[1]
    away = {name: _away(fits[name], points, seen) for name, seen in measured.items()}
    errors = []
    for low, high in pairwise(EDGES):
        rows = (x >= low) & (x < high)
        if rows.any():
            medians = {name: _median(values[rows]) for name, values in away.items()}
            errors.append({"from_x": low, "to_x": high if np.isfinite(high) else None, "loads": int(rows.sum()),
                           "piled_up": int(piled[rows].sum()), **medians})  # fmt: skip
    return ModelLimits(fits, errors, {name: _holds_to(errors, name) for name in fits})


def _away(found: ServingFit, points: Points, measured: Array) -> Array:
    """[n] |model − measured| / measured; inf where the model has no steady state."""
    away: Array = np.abs(found.unbounded(points)[0] - measured) / measured
    return away


def _median(values: NDArray[np.float64]) -> float | None:
    middle = float(np.median(values))
    return middle if np.isfinite(middle) else None


def _holds_to(errors: list[dict[str, Any]], name: str) -> float | None:
    reached = None
    for row in errors:
        if row[name] is None or row[name] > HOLDS:
            break
        reached = row["to_x"]
    return reached
