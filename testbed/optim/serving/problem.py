"""Least-squares problem of a fit of the latency model, and the model's latencies continued beyond saturation."""

from __future__ import annotations

import numpy as np

from testbed.errors import BadInput
from testbed.optim.serving.model import TOLERANCE, Array
from testbed.optim.serving.points import Form, Points, names, seen_coverage, spread

EDGE = 1e-3
"""While fitting, 1 − RPS·C2 is continued linearly below this, so that steps beyond saturation can return."""
STEPS = 500
"""Maximum iterations of the fixed point of eq. 4; some tens are typical."""
ALIKE = 1e-7
"""Ratio of the smallest to the largest singular value below which the points do not identify the coefficients."""
ROBUST_PASSES = 4
"""Robust fits, each scaled by the residuals of the one before, on which outliers have less influence."""
RANGE = (1e-9, 1e9)
"""Valid range of latencies in seconds and of loads in requests per second; squares may overflow beyond it."""


class FitProblem:
    """Least-squares problem in coefficients scaled to the order of one."""

    def __init__(self, features: Array, points: Points, experts: tuple[int, int] | None) -> None:
        self.features, self.points, self.experts = features, points, experts
        typical = np.tile(features.mean(axis=0), 1 if experts is None else 2)
        self.scales = np.concatenate([typical, typical * points.rps.max()])

    def robust(self, latency_s: Array, to: float = 1e-12) -> Array:
        """[p] scaled coefficients of a fit on which outliers have little influence."""
        found = self.solve(self.linear_start(latency_s), latency_s, None, to)
        for _ in range(ROBUST_PASSES):
            found = self.solve(found, latency_s, _scale(self.residuals(found, latency_s)), to)
        return found

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
        logs, _ = log_latency(scaled / self.scales, self.features, self.points, self.experts)
        away: Array = logs - np.log(latency_s)
        return away

    def slopes(self, scaled: Array, latency_s: Array) -> Array:
        """[n, p] derivatives of the residuals; with experts also through φ, by the implicit function theorem."""
        values = scaled / self.scales
        logs, _ = log_latency(values, self.features, self.points, self.experts)
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


def log_latency(values: Array, features: Array, points: Points, experts: tuple[int, int] | None) -> tuple[Array, Array]:
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


def check_points(
    points: Points, latency_s: Array, experts: tuple[int, int] | None, form: Form, features: Array
) -> None:
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
    if not np.isfinite(design).all():
        raise BadInput("the features of these points are too large for a fit")
    sizes = np.linalg.svd(design / np.maximum(np.abs(design).max(axis=0), 1e-300), compute_uv=False)
    if sizes[-1] <= ALIKE * sizes[0]:
        what = "loads" if form == "load" else "alpha and k (k = 0 among them is best), each at several loads"
        raise BadInput(f"these points do not tell {', '.join(wanted)} apart: measure at more {what}")
