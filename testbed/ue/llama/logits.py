"""Statistics of one row of logits, in a few passes over preallocated memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class LogitStats:
    """Statistics of one row of logits; see `testbed.ue.drafters.base.DraftToken` for the fields."""

    argmax: int
    top1: float
    entropy: float
    margin: float
    std: float


class LogitReader:
    """Computes statistics of rows of `size` logits; every call overwrites the memory of the previous one."""

    def __init__(self, size: int) -> None:
        self._shifted = np.empty(size, np.float32)
        self._weights = np.empty(size, np.float32)
        self._product = np.empty(size, np.float32)
        self._total = 1.0

    def stats(self, logits: NDArray[np.float32]) -> LogitStats:
        """Statistics of finite `logits` [size].

        With x the logits less their maximum, w = exp(x) and Z = sum w: top1 = 1/Z, entropy = ln Z - sum(w x)/Z.

        Raises:
            ValueError: a logit is NaN, or the largest one is infinite.
        """
        shifted, weights, product = self._shifted, self._weights, self._product
        best = int(logits.argmax())
        top = float(logits[best])
        if not math.isfinite(top):
            raise ValueError("logits are not numbers")
        np.subtract(logits, logits[best], out=shifted)
        np.exp(shifted, out=weights)
        total = self._total = float(np.add.reduce(weights))
        np.multiply(weights, shifted, out=product)
        entropy = math.log(total) - float(np.add.reduce(product)) / total
        weights[best] = 0.0
        margin = (1.0 - float(np.maximum.reduce(weights))) / total
        weights[best] = 1.0
        shifted -= np.add.reduce(shifted) / len(shifted)
        np.multiply(shifted, shifted, out=product)
        std = math.sqrt(float(np.add.reduce(product)) / len(product))
        return LogitStats(best, 1.0 / total, entropy, margin, std)

    def probs(self) -> NDArray[np.float32]:
        """Softmax [size] of the row last given to `stats`; a new array."""
        probs: NDArray[np.float32] = self._weights / np.float32(self._total)
        return probs
