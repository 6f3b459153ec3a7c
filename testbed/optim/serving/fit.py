"""The latency model fitted to measured points: coefficients, how well they hold, and how sure they are.

One shape covers all forms: L = (X·c1)/(1 − RPS·X·c2), where X is one column of ones (eq. 1), the three columns of a
speculation cycle (eq. 3), or either of them once more, multiplied by expert coverage (eq. 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from testbed.errors import BadInput
from testbed.optim.serving.model import TOLERANCE, Array, coverage, refuse_saturation
from testbed.optim.serving.points import Form, Points, names, seen_coverage, spread

EDGE = 1e-3
"""While fitting, 1 − RPS·C2 below this is continued linearly, so that a step beyond saturation finds its way back."""
STEPS = 500
LEVEL = 0.95
"""Of the intervals."""
ALIKE = 1e-7
"""Singular values below this share of the largest: the points do not tell the coefficients apart."""
ROBUST_PASSES = 4
"""Each takes its scale from the residuals of the one before, which points far off have spoilt the less."""
COARSE = 1e-7
"""Tolerance of refits: far below what they scatter."""
DIGITS = 8
"""Of the draws in a document."""
RANGE = (1e-9, 1e9)
"""Of latencies in seconds and of loads per second: beyond it nothing was measured, and squares may overflow."""


@dataclass(frozen=True)
class ServingFit:
    """Coefficients in seconds, and what is known of them."""

    form: Form
    values: Array
    """[p] as in `names`."""
    draws: Array
    """[b, p] refits of the bootstrap; none: no intervals."""
    r2: float
    """Of latency in seconds, over all points."""
    points: int
    experts: tuple[int, int] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the coefficients."""
        return names(self.form, self.experts)

    @property
    def intervals(self) -> Array | None:
        """[p, 2] the middle `LEVEL` of the draws."""
        return None if not len(self.draws) else np.quantile(self.draws, _tails(), axis=0).T

    def predict(self, points: Points) -> Array:
        """[n] mean latency in seconds.

        Raises:
            BadInput: a load at or beyond saturation, or a column that this form needs is missing.
        """
        found, x = self.unbounded(points)
        if not np.all(np.isfinite(found)):
            worst = int(np.argmax(~np.isfinite(found)))
            refuse_saturation(float(points.rps[worst]), float(x[worst]))
        return found

    def interval(self, points: Points) -> Array | None:
        """[n, 2] the middle `LEVEL` of what the draws predict, inf where they saturate; None without draws."""
        if not len(self.draws):
            return None
        found = np.sort(np.array([self.unbounded(points, draw)[0] for draw in self.draws]), axis=0)
        low, high = (tail * (len(found) - 1) for tail in _tails())
        return np.stack([found[int(np.floor(low))], found[int(np.ceil(high))]], axis=1)

    def unbounded(self, points: Points, values: Array | None = None) -> tuple[Array, Array]:
        """[n] latencies, inf at or beyond saturation, and [n] RPS·C2; of other coefficients, if they are given.

        Raises:
            BadInput: a column that this form needs is missing.
        """
        values = self.values if values is None else values
        logs, x = _log_latency(values, points.features(self.form), points, self.experts)
        return np.where(x < 1, np.exp(logs), np.inf), x

    def document(self) -> dict[str, Any]:
        """What `from_document` reads back, JSON's types alone."""
        spans = self.intervals
        return {
            **dict(zip(self.names, self.values.tolist(), strict=True)),
            "r2": self.r2,
            "form": self.form,
            "experts": None if self.experts is None else list(self.experts),
            "points": self.points,
            "intervals": None if spans is None else dict(zip(self.names, spans.tolist(), strict=True)),
            "draws": [[float(f"{value:.{DIGITS}g}") for value in draw] for draw in self.draws],
        }


def from_document(document: Mapping[str, Any]) -> ServingFit:
    """A fit as `ServingFit.document` gave it; what is not needed to predict may be missing.

    Raises:
        BadInput: coefficients that are missing or no numbers, draws of another shape.
    """
    try:
        form: Form = "speculation" if document.get("form", "load") == "speculation" else "load"
        experts = document.get("experts")
        pair = None if experts is None else (int(experts[0]), int(experts[1]))
        values = np.array([float(document[name]) for name in names(form, pair)])
        draws = np.array(document.get("draws") or np.zeros((0, values.size)), np.float64)
        fit = ServingFit(form, values, draws, float(document.get("r2", "nan")), int(document.get("points", 0)), pair)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as exc:
        raise BadInput(f"this is no fit as `testbed latency fit --json` writes it ({exc!r})") from exc
    if draws.ndim != 2 or draws.shape[1] != values.size:
        raise BadInput(f"draws of a fit need {values.size} numbers each, as {', '.join(fit.names)}")
    for given in (values, draws):
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
    draws: int = 200,
    seed: int = 0,
) -> ServingFit:
    """Fit the form that the points allow, or the given one.

    Residuals are relative, since the spread of a mean latency grows with it, and robust: those beyond what the others
    scatter count linearly. Intervals come from refits to the fitted curve with its own residuals, shuffled.

    Raises:
        BadInput: too few points, points that do not tell the coefficients apart, latencies that are not positive, or
            no scipy.
    """
    if form is None and points.form == "load" and experts is None and points.k is not None and np.ptp(points.k) > 0:
        raise BadInput("k varies: the speculation-aware form needs alpha and decode too, C1 and C2 alone a single k")
    form = form or points.form
    latency_s = np.asarray(latency_s, np.float64)
    features = points.features(form)
    _check(points, latency_s, experts, form, features)
    problem = _Problem(features, points, experts)
    start = problem.linear_start(latency_s)
    found = problem.solve(start, latency_s, None)
    for _ in range(ROBUST_PASSES):
        found = problem.solve(found, latency_s, _scale(problem.residuals(found, latency_s)))
    residuals = problem.residuals(found, latency_s)
    scale, size = _scale(residuals), problem.scales
    widened = (residuals - residuals.mean()) * np.sqrt(residuals.size / (residuals.size - found.size))
    fitted = latency_s * np.exp(residuals)
    random = np.random.default_rng(seed)
    noisy = (fitted * np.exp(random.choice(widened, widened.size)) for _ in range(draws))
    refits = np.array([problem.solve(found, again, scale, COARSE) / size for again in noisy])
    spread_s2 = float(np.sum((latency_s - latency_s.mean()) ** 2))
    error_s2 = float(np.sum((fitted - latency_s) ** 2))
    r2 = 1 - error_s2 / spread_s2 if spread_s2 > 0 else float(error_s2 <= TOLERANCE * float(latency_s @ latency_s))
    return ServingFit(form, found / size, refits.reshape(-1, found.size), r2, latency_s.size, experts)


class _Problem:
    """Least squares in coefficients scaled to the order of one."""

    def __init__(self, features: Array, points: Points, experts: tuple[int, int] | None) -> None:
        self.features, self.points, self.experts = features, points, experts
        typical = np.tile(features.mean(axis=0), 1 if experts is None else 2)
        self.scales = np.concatenate([typical, typical * points.rps.max()])

    def linear_start(self, latency_s: Array) -> Array:
        """[p] scaled: L = X·c1 + RPS·L·X·c2 is linear once the measured L stands on the right."""
        from scipy.optimize import nnls

        columns = spread(self.features, seen_coverage(self.points, latency_s, self.experts))
        loaded = (self.points.rps * latency_s)[:, None] * columns
        start, _ = nnls(np.hstack([columns, loaded]) / self.scales / latency_s[:, None], np.ones_like(latency_s))
        found: Array = np.maximum(start, 1e-6 * max(start.max(), 1e-6))
        return found

    def residuals(self, scaled: Array, latency_s: Array) -> Array:
        """[n] log of modelled over measured latency."""
        logs, _ = _log_latency(scaled / self.scales, self.features, self.points, self.experts)
        away: Array = logs - np.log(latency_s)
        return away

    def slopes(self, scaled: Array, latency_s: Array) -> Array:
        """[n, p] derivatives of the residuals; with experts through φ too, by the implicit function theorem."""
        values = scaled / self.scales
        logs, _ = _log_latency(values, self.features, self.points, self.experts)
        phi = seen_coverage(self.points, np.exp(logs), self.experts)
        columns = spread(self.features, phi)
        half = columns.shape[1]
        top, rps = columns @ values[:half], self.points.rps
        below = np.maximum(1 - rps * (columns @ values[half:]), EDGE)
        direct: Array = np.hstack([columns / top[:, None], (rps / below)[:, None] * columns]) / self.scales
        if phi is None or self.experts is None:
            return direct
        rate = (1 - phi) * -np.log1p(-self.experts[0] / self.experts[1]) if self.experts[0] < self.experts[1] else 0.0
        grown: Array = rate * rps * np.exp(logs) * self.points.verified  # dφ/dlog L
        own = self.features.shape[1]
        added = self.features @ values[own:half] / top + rps / below * (self.features @ values[half + own :])
        through: Array = direct / np.maximum(1 - grown * added, EDGE)[:, None]
        return through

    def solve(self, start: Array, latency_s: Array, scale: float | None, to: float = 1e-12) -> Array:
        """[p] scaled coefficients, none negative, to a tolerance; a scale makes the loss robust."""
        from scipy.optimize import least_squares

        found = least_squares(
            self.residuals, start, self.slopes, bounds=(0, np.inf), args=(latency_s,), max_nfev=500,
            loss="linear" if scale is None else "soft_l1", f_scale=scale or 1.0, xtol=to, ftol=to, gtol=to,
        )  # fmt: skip
        answer: Array = found.x
        return answer


def _log_latency(
    values: Array, features: Array, points: Points, experts: tuple[int, int] | None
) -> tuple[Array, Array]:
    """[n] log L, continued beyond saturation, and RPS·C2; with experts the lowest fixed point."""
    phi = None if experts is None else np.zeros_like(points.rps)
    before = np.full(points.rps.shape, -np.inf)
    for _ in range(STEPS):
        columns = spread(features, phi)
        half = columns.shape[1]
        x = points.rps * (columns @ values[half:])
        logs = _soft_log(columns @ values[:half], 1e-12) - _soft_log(1 - x, EDGE)
        if phi is None or np.all(np.abs(logs - before) < TOLERANCE):
            break
        before, phi = logs, seen_coverage(points, np.exp(logs), experts)
    return logs, x


def _soft_log(values: Array, edge: float) -> Array:
    """[n] log, below the edge its tangent there, floored so that exp never overflows."""
    tangent = np.log(edge) + np.maximum(values / edge - 1, -200.0)
    return np.where(values >= edge, np.log(np.maximum(values, edge)), tangent)


def _scale(residuals: Array) -> float:
    """Where a residual begins to count linearly: 1.345 standard deviations, taken from the median."""
    return max(1.345 * 1.4826 * float(np.median(np.abs(residuals))), 1e-6)


def _tails() -> tuple[float, float]:
    return (1 - LEVEL) / 2, (1 + LEVEL) / 2


def _check(points: Points, latency_s: Array, experts: tuple[int, int] | None, form: Form, features: Array) -> None:
    """Refuse what cannot be fitted.

    Raises:
        BadInput: as `fit`.
    """
    low, high = RANGE
    if latency_s.shape != points.rps.shape or not np.all((latency_s >= low) & (latency_s <= high)):
        raise BadInput(f"latency_s needs one positive value for each point, {low:g} to {high:g} seconds")
    if not np.all((points.rps == 0) | (points.rps >= low) & (points.rps <= high)):
        raise BadInput(f"rps must be 0 or {low:g} to {high:g} requests per second")
    wanted = names(form, experts)
    if latency_s.size <= len(wanted):
        raise BadInput(f"{len(wanted)} coefficients need {len(wanted) + 1} points or more, not {latency_s.size}")
    if np.ptp(points.rps) == 0:
        raise BadInput(f"every point is at {points.rps[0]:g} requests/s: C1 and C2 need two loads or more")
    try:
        import scipy  # noqa: F401
    except ImportError as exc:
        raise BadInput("fitting needs scipy: install the extra `lab`") from exc
    columns = spread(features, seen_coverage(points, latency_s, experts))
    design = np.hstack([columns, points.rps[:, None] * columns])
    sizes = np.linalg.svd(design / np.maximum(np.abs(design).max(axis=0), 1e-300), compute_uv=False)
    if sizes[-1] <= ALIKE * sizes[0]:
        what = "loads" if form == "load" else "alpha and k (k = 0 among them is best), each at several loads"
        raise BadInput(f"these points do not tell {', '.join(wanted)} apart: measure at more {what}")
