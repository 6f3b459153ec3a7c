"""Shares of the radio for given choices: the convex part of the decision."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from testbed.optim.loops.objectives import Objective
from testbed.optim.loops.rounds import Array

LEAST = 0.05
"""Least radio weight of a UE, relative to equal weights, so that nobody starves."""
RANGE = 24.0
"""Largest logarithm of a price, either way."""
LEAST_TOTAL = 1e-12
"""Least sum that counts."""
PRECISION = 1e-5
"""Largest error of the price's logarithm."""


def least_shares(activity: Array) -> Array:
    """[n] lower bounds of the shares: `LEAST` of those of equal weights."""
    found: Array = LEAST * activity / activity.sum()
    return found


def divide(objective: Objective, gain: Array, fixed_s: Array, air_s: Array, lower: Array, near: float = 0.0) -> Array:
    """[n] shares z with Σ z = 1 that maximise Σ worth(a + k/z) subject to z ≥ `lower`: the root of their sum over λ.

    Args:
        gain: [n] worth of a round, see `Objective.gain`.
        fixed_s: [n] a.
        air_s: [n] k.
        lower: [n], Σ at most 1.
        near: logarithm of a price that may be near.
    """

    def shares(log_price: float) -> Array:
        wanted = objective.share(gain, fixed_s, air_s, float(np.exp(log_price)))
        found: Array = np.minimum(np.maximum(wanted, lower), 1.0)
        return found

    def total(log_price: float) -> float:
        return float(shares(log_price).sum())

    found: Array = shares(log_root(total, near, -RANGE, RANGE, PRECISION))
    spare = np.maximum(found - lower, 0.0)
    left = 1 - lower.sum()
    if not spare.any():
        return np.asarray(found / found.sum())
    return np.asarray(lower + spare * left / spare.sum())


def log_root(
    total: Callable[[float], float], start: float, low: float, high: float, precision: float, most: int = 60
) -> float:
    """Argument at which a positive sum that falls with it is 1; an end of the range where it is 1 nowhere.

    Steps from `start` are as for a sum in inverse proportion to a price, and grow until the root is between two of
    them; then regula falsi (Illinois).

    Args:
        precision: largest error of the argument, and twice that of the sum.
        most: evaluations; if they do not suffice, the last argument is returned.
    """
    below: tuple[float, float] | None = None
    above: tuple[float, float] | None = None
    at, reach, again = start, 1.0, 0
    for _ in range(most):
        value = math.log(max(total(at), LEAST_TOTAL))
        if abs(value) <= precision / 2 or (value > 0 and at >= high) or (value < 0 and at <= low):
            break
        if value > 0:
            above = above and (above[0], above[1] / (2 if again > 0 else 1))
            below, again = (at, value), 1
        else:
            below = below and (below[0], below[1] / (2 if again < 0 else 1))
            above, again = (at, value), -1
        if below is None or above is None:
            at, reach = min(max(at + reach * value, low), high), 2 * reach
            continue
        if above[0] - below[0] <= precision:
            break
        at = below[0] + (above[0] - below[0]) * below[1] / (below[1] - above[1])
    return at
