"""Mean latency of a server under load, with and without speculation (arXiv 2605.15051, after its review).

A request takes L = C1 + B·C2 while B are in flight; with Little's law, B = RPS·L, this is L = C1/(1 − RPS·C2). The
model describes steady-state means below saturation, RPS·C2 < 1; every function raises `BadInput` at or beyond it.

Symbols: α acceptance rate of drafted tokens, k drafted tokens per cycle, g tokens per response, E tokens committed per
cycle. k = 0 is decoding without speculation.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from testbed.errors import BadInput

Array = NDArray[np.float64]
Wins = Literal["below", "above", "always", "never"]
TOLERANCE = 1e-12
"""Relative change of L at which a fixed point has converged."""


class Costs(NamedTuple):
    """C1 and C2 of one server configuration.

    `c1_s`: seconds that a request takes alone. `c2_s`: seconds that each request in flight adds to every request.
    """

    c1_s: float
    c2_s: float

    @property
    def saturation_rps(self) -> float:
        """Saturation load 1/C2 in requests per second."""
        return 1 / self.c2_s if self.c2_s > 0 else math.inf


class CycleCosts(NamedTuple):
    """The six coefficients of eq. 3 in seconds: for a request alone (c1) and per request in flight (c2), of its prefill
    (p), each verification (v) and each drafted token (d).
    """

    c1_p: float
    c1_v: float
    c1_d: float
    c2_p: float
    c2_v: float
    c2_d: float

    def effective(self, alpha: float, k: int, decode: float) -> Costs:
        """C1,EFF and C2,EFF at (α, k) for responses of `decode` tokens (eq. 3).

        Raises:
            BadInput: α outside [0, 1], a negative k, or no tokens to decode.
        """
        row = cycle_features(np.array([alpha]), np.array([k]), np.array([decode]))[0]
        return Costs(float(row @ self[:3]), float(row @ self[3:]))


class Comparison(NamedTuple):
    """Speculation compared with dense decoding on the same server (eq. 2 and Appendix A.3)."""

    dense: Costs
    speculative: Costs
    c1_ratio: float
    """C1,R: below one, speculation is faster at zero load."""
    c2_ratio: float
    """C2,R: above one, the speedup falls with the load; below one, it rises."""
    break_even_rps: float | None
    wins: Wins
    """Loads at which speculation is faster: below or above break-even, always (perhaps equal at zero load), never."""

    @property
    def zero_load(self) -> float:
        """Speedup at zero load: 1/C1,R."""
        return 1 / self.c1_ratio

    def speedup(self, rps: ArrayLike) -> Array:
        """L_D / L_SD at each load.

        Raises:
            BadInput: a load at or beyond saturation of either configuration.
        """
        return latency(rps, *self.dense) / latency(rps, *self.speculative)


def tokens_per_cycle(alpha: ArrayLike, k: ArrayLike) -> Array:
    """[...] E = (1 − α^(k+1))/(1 − α), including the verifier's own token (Appendix A.4); k + 1 at α = 1.

    Raises:
        BadInput: α outside [0, 1], or k negative or not an integer.
    """
    a, windows = np.broadcast_arrays(np.asarray(alpha, np.float64), np.asarray(k, np.float64))
    if not np.all((a >= 0) & (a <= 1)):
        raise BadInput("alpha must lie in [0, 1]")
    if not np.all((windows >= 0) & (windows == np.floor(windows)) & np.isfinite(windows)):
        raise BadInput("k must be a whole number, 0 or more")
    rest = 1 - a
    with np.errstate(divide="ignore", invalid="ignore"):
        # expm1 and log1p keep precision where α is close to 1
        found = -np.expm1((windows + 1) * np.log1p(-rest)) / rest
    return np.where(rest > 0, found, windows + 1)


def cycle_features(alpha: ArrayLike, k: ArrayLike, decode: ArrayLike) -> Array:
    """[..., 3] factors of the coefficients of prefill, verification and drafting: 1, g/E and k·g/E (eq. 3).

    Raises:
        BadInput: as `tokens_per_cycle`, or a decode length that is not positive and finite.
    """
    g = np.asarray(decode, np.float64)
    if not np.all(np.isfinite(g) & (g > 0)):
        raise BadInput("decode must be positive: tokens of a response")
    cycles = g / tokens_per_cycle(alpha, k)
    return np.stack(np.broadcast_arrays(np.ones_like(cycles), cycles, cycles * np.asarray(k, np.float64)), axis=-1)


def latency(rps: ArrayLike, c1_s: ArrayLike, c2_s: ArrayLike) -> Array:
    """[...] L = C1/(1 − RPS·C2) in seconds (eq. 1).

    Raises:
        BadInput: a load that is negative, or at or beyond saturation; C1 not positive or C2 negative.
    """
    load, c1, c2 = (np.asarray(value, np.float64) for value in (rps, c1_s, c2_s))
    check_loads(load)
    if not (np.all(np.isfinite(c1) & (c1 > 0)) and np.all(np.isfinite(c2) & (c2 >= 0))):
        raise BadInput("C1 must be positive and C2 not negative, both finite, in seconds")
    x = load * c2
    if np.any(x >= 1):
        worst = int(np.argmax(x))
        refuse_saturation(_at(load, worst, x), float(x.max()))
    found: Array = c1 / (1 - x)
    return found


def check_loads(rps: Array) -> None:
    """Check loads in requests per second.

    Raises:
        BadInput: a load is negative or not finite.
    """
    if not np.all(np.isfinite(rps) & (rps >= 0)):
        raise BadInput("loads must be finite and not negative, in requests per second")


def refuse_saturation(rps: float, x: float | None = None) -> NoReturn:
    """Report a load without a steady state; x is RPS·C2 at that load.

    Raises:
        BadInput: always.
    """
    known = x is not None and math.isfinite(x) and x > 0
    why = f"RPS·C2 = {x:.4g} must stay below 1" if known else "no latency solves the model there"
    right = f"give less than {rps / x:.4g} requests/s" if known and x else "give a lower load"
    raise BadInput(f"{rps:g} requests/s is at or beyond saturation ({why}): {right}")


def coverage(tokens: ArrayLike, active: int, experts: int) -> Array:
    """[...] φ(T) = 1 − (1 − m/M)^T, share of experts in use by T tokens, each routed to m of M at random.

    Raises:
        BadInput: m outside 1..M.
    """
    if not 1 <= active <= experts:
        raise BadInput(f"experts must be m,M with 1 <= m <= M, not {active},{experts}")
    routed = np.asarray(tokens, np.float64)
    if active == experts:
        return np.where(routed > 0, 1.0, 0.0)
    return -np.expm1(routed * math.log1p(-active / experts))


def compare(dense: Costs, speculative: Costs) -> Comparison:
    """Break-even load: r* = (C1,R − 1)/(C1,R − C2,R), RPS* = r*/C2,D (Appendix A.3; misprinted in Section 5).

    The curves cross if one ratio is below one and the other above. Equal latency counts as no win.

    Raises:
        BadInput: C1 or the dense C2 not positive, or the speculative C2 negative.
    """
    for name, costs, least in (("dense", dense, "positive"), ("speculative", speculative, "not negative")):
        if not (all(map(math.isfinite, costs)) and costs.c1_s > 0):
            raise BadInput(f"C1 of the {name} server must be positive and finite, not {costs.c1_s:g}")
        if costs.c2_s < 0 or (costs.c2_s == 0 and name == "dense"):
            raise BadInput(f"C2 of the {name} server must be {least}, not {costs.c2_s:g}")
    first, second = speculative.c1_s / dense.c1_s, speculative.c2_s / dense.c2_s
    if (first - 1) * (second - 1) >= 0 or not (math.isfinite(first) and math.isfinite(second)):
        wins: Wins = "always" if min(first, second) < 1 else "never"
        return Comparison(dense, speculative, first, second, None, wins)
    star = (first - 1) / (first - second)
    return Comparison(dense, speculative, first, second, star / dense.c2_s, "below" if first < 1 else "above")


def collapse(rps: ArrayLike, latency_s: ArrayLike, c1_s: ArrayLike, c2_s: ArrayLike) -> tuple[Array, Array]:
    """x = RPS·C2 and y = L/C1, in which every configuration lies on the curve `collapsed` (Figure 1)."""
    x: Array = np.asarray(rps, np.float64) * np.asarray(c2_s, np.float64)
    y: Array = np.asarray(latency_s, np.float64) / np.asarray(c1_s, np.float64)
    return x, y


def collapsed(x: ArrayLike) -> Array:
    """y = 1/(1 − x), the common curve of Figure 1.

    Raises:
        BadInput: x outside [0, 1).
    """
    return latency(x, 1.0, 1.0)


def _at(values: Array, index: int, shape: Any) -> float:
    """Element at a flat index of `values` broadcast to the shape of `shape`."""
    return float(np.broadcast_to(values, np.shape(shape)).flat[index])
