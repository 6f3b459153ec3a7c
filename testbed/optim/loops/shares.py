"""Shares of the radio for given choices: the convex part of the decision."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

from testbed.optim.loops.objectives import Objective
from testbed.optim.loops.rounds import Array

LEAST = 0.05
"""Least radio weight of a UE, relative to equal weights, so that nobody starves."""
RANGE = 24.0
"""Half-width of the bracket of the price's logarithm."""
NEAR = 1.25
"""Half-width of a bracket that is tried first."""
PRECISION = 1e-7
"""Largest error of the price's logarithm."""


def least_shares(activity: Array) -> Array:
    """[n] lower bounds of the shares: `LEAST` of those of equal weights."""
    found: Array = LEAST * activity / activity.sum()
    return found


def divide(
    objective: Objective, gain: Array, fixed_s: Array, air_s: Array, lower: Array, near: float | None = None
) -> Array:
    """[n] shares z with Σ z = 1 that maximise Σ worth(a + k/z) subject to z ≥ `lower`: the root of their sum over λ.

    Args:
        gain: [n] worth of a round, see `Objective.gain`.
        fixed_s: [n] a.
        air_s: [n] k.
        lower: [n], Σ at most 1.
        near: logarithm of a price that is probably within `NEAR` of the root; None: unknown.
    """

    def shares(log_price: float) -> Array:
        wanted = objective.share(gain, fixed_s, air_s, float(np.exp(log_price)))
        found: Array = np.minimum(np.maximum(wanted, lower), 1.0)
        return found

    @functools.cache
    def total(log_price: float) -> float:
        return float(shares(log_price).sum())

    low, high = (-RANGE, RANGE) if near is None else (near - NEAR, near + NEAR)
    if not total(low) > 1 > total(high):
        low, high = -RANGE, RANGE
    found: Array = shares(log_root(total, low, high, PRECISION))
    spare = np.maximum(found - lower, 0.0)
    left = 1 - lower.sum()
    if not spare.any():
        return np.asarray(found / found.sum())
    return np.asarray(lower + spare * left / spare.sum())


def log_root(total: Callable[[float], float], low: float, high: float, precision: float, most: int = 60) -> float:
    """Argument at which a positive sum that falls with it is 1; an end of the range where it is 1 nowhere.

    Args:
        most: evaluations; if they do not suffice, the last approximation is returned.
    """
    total = functools.cache(total)
    if total(low) <= 1:
        return low
    if total(high) >= 1:
        return high
    return float(brentq(lambda at: math.log(total(at)), low, high, xtol=precision, maxiter=most, disp=False))
