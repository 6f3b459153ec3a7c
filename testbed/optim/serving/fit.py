"""Fit of the latency model to measured points: coefficients, goodness of fit and confidence intervals.

All forms are L = (X·c1)/(1 − RPS·X·c2), where X is a column of ones (eq. 1) or the three columns of a speculation cycle
(eq. 3), with experts followed by the same columns multiplied by expert coverage (eq. 4).
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
"""While fitting, 1 − RPS·C2 is continued linearly below this, so that steps beyond saturation can return."""
STEPS = 500
"""Maximum iterations of the fixed point of eq. 4; some tens are typical."""
LEVEL = 0.95
"""Confidence level of the intervals."""
ALIKE = 1e-7
"""Ratio of the smallest to the largest singular value below which the points do not identify the coefficients."""
ROBUST_PASSES = 4
"""Robust fits, each scaled by the residuals of the one before, on which outliers have less influence."""
COARSE = 1e-7
"""Tolerance of bootstrap refits, far below their scatter."""
DIGITS = 8
"""Significant digits of the draws in a document."""
RANGE = (1e-9, 1e9)
"""Valid range of latencies in seconds and of loads in requests per second; squares may overflow beyond it."""


@dataclass(frozen=True)
class ServingFit:
    """Fitted coefficients in seconds, with R² and bootstrap draws."""

    form: Form
    values: Array
    """[p] coefficients in the order of `names`."""
    draws: Array
    """[b, p] bootstrap refits; empty: no intervals."""
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
        """[p, 2] intervals at `LEVEL`, from the draws."""
        return None if not len(self.draws) else np.quantile(self.draws, _tails(), axis=0).T

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
        """[n, 2] intervals of the mean latency at `LEVEL`, inf where draws saturate; None without draws."""
        if not len(self.draws):
            return None
        found = np.sort(np.array([self.unbounded(points, draw)[0] for draw in self.draws]), axis=0)
        low, high = (tail * (len(found) - 1) for tail in _tails())
        return np.stack([found[int(np.floor(low))], found[int(np.ceil(high))]], axis=1)

    def unbounded(self, points: Points, values: Array | None = None) -> tuple[Array, Array]:
        """[n] latencies, inf at or beyond saturation, and [n] RPS·C2.

        Args:
            values: [p] coefficients to use instead of the fitted ones.

        Raises:
            BadInput: a missing column.
        """
        values = self.values if values is None else values
        logs, x = _log_latency(values, points.features(self.form), points, self.experts)
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
            "draws": [[float(f"{value:.{DIGITS}g}") for value in draw] for draw in self.draws],
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
        draws = np.array(document.get("draws") or np.zeros((0, values.size)), np.float64)
        fit = ServingFit(form, values, draws, float(document.get("r2", "nan")), int(document.get("points", 0)), pair)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as exc:
        raise BadInput(f"this is no fit written by `testbed latency fit --json` ({exc!r})") from exc
    if draws.ndim != 2 or draws.shape[1] != values.size:
        raise BadInput(f"each draw of a fit needs {values.size} numbers: {', '.join(fit.names)}")
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
    """Fit the given form, or the one that the columns of the points allow.

    Residuals are relative, since the spread of a mean latency grows with it, and robust: outliers count linearly.
    Intervals come from a bootstrap: refits to the fitted curve with resampled residuals.

    Raises:
        BadInput: too few points, points that do not identify the coefficients, latencies that are not positive, or
            scipy is missing.
    """
    if form is None and points.form == "load" and experts is None and points.k is not None and np.ptp(points.k) > 0:
        raise BadInput("k varies: give alpha and decode for the speculation-aware form, or points of a single k")
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
    """Least-squares problem in coefficients scaled to the order of one."""

    def __init__(self, features: Array, points: Points, experts: tuple[int, int] | None) -> None:
        self.features, self.points, self.experts = features, points, experts
        typical = np.tile(features.mean(axis=0), 1 if experts is None else 2)
        self.scales = np.concatenate([typical, typical * points.rps.max()])

    def linear_start(self, latency_s: Array) -> Array:
        """[p] scaled initial values: L = X·c1 + RPS·L·X·c2 is linear with the measured L on the right."""
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
        """[n, p] derivatives of the residuals; with experts also through φ, by the implicit function theorem."""
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
        """[p] scaled coefficients, none negative, to the tolerance `to`; a `scale` makes the loss robust."""
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
    """[n] log L, continued beyond saturation, and [n] RPS·C2; with experts the lowest fixed point.

    Starting without coverage, each step raises L and coverage, so the iteration converges to the lowest solution of
    eq. 4, which a server that starts empty reaches.
    """
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
    """[n] log; below `edge` its tangent at `edge`, bounded so that exp does not overflow."""
    tangent = np.log(edge) + np.maximum(values / edge - 1, -200.0)
    return np.where(values >= edge, np.log(np.maximum(values, edge)), tangent)


def _scale(residuals: Array) -> float:
    """Residual beyond which the loss is linear: 1.345 standard deviations, estimated from the median."""
    return max(1.345 * 1.4826 * float(np.median(np.abs(residuals))), 1e-6)


def _tails() -> tuple[float, float]:
    return (1 - LEVEL) / 2, (1 + LEVEL) / 2


def _check(points: Points, latency_s: Array, experts: tuple[int, int] | None, form: Form, features: Array) -> None:
    """Check that the form can be fitted to the points.

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
    except ModuleNotFoundError as exc:
        raise BadInput("fitting needs scipy: install the extra `lab`") from exc
    columns = spread(features, seen_coverage(points, latency_s, experts))
    design = np.hstack([columns, points.rps[:, None] * columns])
    sizes = np.linalg.svd(design / np.maximum(np.abs(design).max(axis=0), 1e-300), compute_uv=False)
    if sizes[-1] <= ALIKE * sizes[0]:
        what = "loads" if form == "load" else "alpha and k (k = 0 among them is best), each at several loads"
        raise BadInput(f"these points do not tell {', '.join(wanted)} apart: measure at more {what}")
