"""Fit of the latency model to measured points: coefficients, goodness of fit and confidence intervals.

All forms are L = (X·c1)/(1 − RPS·X·c2), where X is a column of ones (eq. 1) or the three columns of a speculation cycle
(eq. 3), with experts followed by the same columns multiplied by expert coverage (eq. 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput
from testbed.intervals import repeats_interval
from testbed.optim.serving.model import TOLERANCE, Array, coverage, refuse_saturation
from testbed.optim.serving.points import Form, Points, names
from testbed.optim.serving.problem import FitProblem, check_points, log_latency

COARSE = 1e-7
"""Tolerance of the repeats' fits, far below their scatter."""
DIGITS = 8
"""Significant digits of the repeats' fits in a document."""


@dataclass(frozen=True)
class ServingFit:
    """Fitted coefficients in seconds, with R² and a fit of each repeat."""

    form: Form
    values: Array
    """[p] coefficients in the order of `names`."""
    repeats: Array
    """[b, p] fits of the single repeats; fewer than two: no intervals."""
    r2: float
    """R² of the latency in seconds, over all points."""
    points: int
    experts: tuple[int, int] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the coefficients."""
        return names(self.form, self.experts)

    @property
    def intervals(self) -> Array | None:
        """[p, 2] 95 % intervals by Student's t over the repeats, around the fit to all points; not negative."""
        if len(self.repeats) < 2:
            return None
        half = np.array([_half_width(column) for column in self.repeats.T])
        return np.stack([np.maximum(self.values - half, 0.0), self.values + half], axis=1)

    def predict(self, points: Points) -> Array:
        """[n] mean latency in seconds.

        Raises:
            BadInput: a load at or beyond saturation, or a missing column.
        """
        found, x = self.unbounded(points)
        if not np.all(np.isfinite(found)):
            worst = int(np.argmax(~np.isfinite(found)))
            refuse_saturation(float(points.rps[worst]), float(x[worst]))
        return found

    def interval(self, points: Points) -> Array | None:
        """[n, 2] 95 % intervals of the mean latency by Student's t over the repeats' predictions, on a logarithmic
        scale; up to inf where a repeat saturates. None with fewer than two repeats.
        """
        if len(self.repeats) < 2:
            return None
        found = np.array([self.unbounded(points, each)[0] for each in self.repeats])
        centre = self.unbounded(points)[0]
        known = np.isfinite(found).all(axis=0) & np.isfinite(centre)
        factor = np.full(centre.shape, np.inf)
        factor[known] = np.exp([_half_width(column) for column in np.log(found[:, known]).T])
        return np.stack([np.where(known, centre / factor, found.min(axis=0)), centre * factor], axis=1)

    def unbounded(self, points: Points, values: Array | None = None) -> tuple[Array, Array]:
        """[n] latencies, inf at or beyond saturation, and [n] RPS·C2.

        Args:
            values: [p] coefficients to use instead of the fitted ones.

        Raises:
            BadInput: a missing column.
        """
        values = self.values if values is None else values
        logs, x = log_latency(values, points.features(self.form), points, self.experts)
        return np.where(x < 1, np.exp(logs), np.inf), x

    def document(self) -> dict[str, Any]:
        """JSON document that `from_document` reads."""
        spans = self.intervals
        return {
            **dict(zip(self.names, self.values.tolist(), strict=True)),
            "r2": self.r2,
            "form": self.form,
            "experts": None if self.experts is None else list(self.experts),
            "points": self.points,
            "intervals": None if spans is None else dict(zip(self.names, spans.tolist(), strict=True)),
            "repeats": [[float(f"{value:.{DIGITS}g}") for value in each] for each in self.repeats],
        }


def from_document(document: Mapping[str, Any]) -> ServingFit:
    """Read a fit from its document; keys that predictions do not need may be missing.

    Raises:
        BadInput: coefficients that are missing, not numbers or out of range, or draws of a wrong shape.
    """
    try:
        form: Form = "speculation" if document.get("form", "load") == "speculation" else "load"
        experts = document.get("experts")
        pair = None if experts is None else (int(experts[0]), int(experts[1]))
        values = np.array([float(document[name]) for name in names(form, pair)])
        repeats = np.array(document.get("repeats") or np.zeros((0, values.size)), np.float64)
        fit = ServingFit(form, values, repeats, float(document.get("r2", "nan")), int(document.get("points", 0)), pair)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as exc:
        raise BadInput(f"this is no fit written by `testbed latency fit --json` ({exc!r})") from exc
    if repeats.ndim != 2 or repeats.shape[1] != values.size:
        raise BadInput(f"the fit of each repeat needs {values.size} numbers: {', '.join(fit.names)}")
    for given in (values, repeats):
        if not np.all(np.isfinite(given) & (given >= 0)):
            raise BadInput("coefficients of a fit must be finite and not negative")
    if pair is not None:
        coverage(0.0, *pair)
    return fit


def fit(
    points: Points,
    latency_s: Array,
    experts: tuple[int, int] | None = None,
    *,
    form: Form | None = None,
    repeats: NDArray[np.float64] | None = None,
) -> ServingFit:
    """Fit the given form, or the one that the columns of the points allow.

    Residuals are relative, since the spread of a mean latency grows with it, and robust: outliers count linearly.
    Intervals come from repeats alone: each is fitted by itself, and the scatter of these fits is that between seeds.
    Residuals around one curve say nothing about it, since they hide what all loads of a repeat have in common.

    Args:
        repeats: [n] number of the repeat of each point; None, or a single one: no intervals.

    Raises:
        BadInput: too few points, points that do not identify the coefficients, latencies that are not positive, or
            scipy is missing; the same of a single repeat.
    """
    if form is None and points.form == "load" and experts is None and points.k is not None and np.ptp(points.k) > 0:
        raise BadInput("k varies: give alpha and decode for the speculation-aware form, or points of a single k")
    form = form or points.form
    latency_s = np.asarray(latency_s, np.float64)
    features = points.features(form)
    check_points(points, latency_s, experts, form, features)
    problem = FitProblem(features, points, experts)
    found = problem.robust(latency_s)
    fitted = latency_s * np.exp(problem.residuals(found, latency_s))
    single = _each_repeat(points, latency_s, experts, form, repeats)
    spread_s2 = float(np.sum((latency_s - latency_s.mean()) ** 2))
    error_s2 = float(np.sum((fitted - latency_s) ** 2))
    r2 = 1 - error_s2 / spread_s2 if spread_s2 > 0 else float(error_s2 <= TOLERANCE * float(latency_s @ latency_s))
    return ServingFit(form, found / problem.scales, single.reshape(-1, found.size), r2, latency_s.size, experts)


def _each_repeat(
    points: Points, latency_s: Array, experts: tuple[int, int] | None, form: Form, repeats: Array | None
) -> Array:
    """[b, p] coefficients of each repeat's own points; none with fewer than two repeats."""
    numbers = np.unique(repeats) if repeats is not None else np.zeros(0)
    if repeats is None or numbers.size < 2:
        return np.zeros(0)
    found = []
    for number in numbers.tolist():
        rows = repeats == number
        own, seen = points.take(rows), latency_s[rows]
        try:
            check_points(own, seen, experts, form, own.features(form))
        except BadInput as exc:
            raise BadInput(f"repeat {number:g}: {exc}") from exc
        problem = FitProblem(own.features(form), own, experts)
        found.append(problem.robust(seen, COARSE) / problem.scales)
    return np.array(found)


def _half_width(repeats: Array) -> float:
    """Half-width of the interval over values of single repeats."""
    found = repeats_interval(repeats)
    return found.high - found.value
