"""Platt scaling: calibrated probabilities from a classifier's logits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

LEAST_SLOPE = 1e-3
"""Lower bound of the slope, so that scaling never reverses the order of the logits."""


def platt(logits: NDArray[Any], labels: NDArray[np.bool_]) -> tuple[float, float]:
    """Slope and intercept (a, b) that fit σ(a·z + b) to the labels [m].

    Platt's targets (n₊ + 1)/(n₊ + 2) and 1/(n₋ + 2), instead of 1 and 0, keep (a, b) finite for separable classes.
    """
    z, positives = logits.astype(np.float64), int(labels.sum())
    targets = np.where(labels, (positives + 1) / (positives + 2), 1 / (len(labels) - positives + 2))

    def loss(at: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        y = at[0] * z + at[1]
        error = expit(y) - targets
        return float(np.mean(np.logaddexp(0, y) - targets * y)), np.array([np.mean(error * z), np.mean(error)])

    found = minimize(
        loss, np.array([1.0, 0.0]), jac=True, method="L-BFGS-B", bounds=[(LEAST_SLOPE, None), (None, None)]
    )
    return float(found.x[0]), float(found.x[1])
