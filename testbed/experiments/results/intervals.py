"""Bootstrap confidence intervals over prompts, paired across columns and methods.

Prompts are resampled with replacement, with all columns of a prompt together, so that ratios of sums and differences
between methods are paired (Efron and Tibshirani, An Introduction to the Bootstrap, chs. 8 and 13). Intervals are
percentiles of the resamples; the seed is fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from testbed.errors import BadInput
from testbed.experiments.results.quality import LEVEL, RESAMPLES, SEED

CHUNK = 4_000_000
"""Maximum number of draws in memory."""

Reals = NDArray[np.float64]


class Interval(NamedTuple):
    """A value with its confidence interval."""

    value: float
    low: float
    high: float


class Bootstrap:
    """Resampled sums of columns over the same prompts.

    Args:
        columns: values by name [n], one per prompt, in the same order.

    Raises:
        BadInput: no prompts, columns of different lengths, or values that are not finite.
    """

    def __init__(self, columns: Mapping[str, ArrayLike], resamples: int = RESAMPLES, seed: int = SEED) -> None:
        arrays = {name: np.asarray(values, np.float64) for name, values in columns.items()}
        sizes = {array.size for array in arrays.values()}
        if len(sizes) != 1 or 0 in sizes:
            raise BadInput(f"an interval needs columns over the same prompts, not of lengths {sorted(sizes)}")
        table = np.stack(list(arrays.values()), axis=1)
        if not np.isfinite(table).all():
            raise BadInput("an interval needs finite values")
        self._index = {name: i for i, name in enumerate(arrays)}
        self._sums: Reals = table.sum(axis=0)
        self._drawn = _resampled(table, resamples, seed)
        self.n = int(table.shape[0])

    def mean(self, name: str) -> Interval:
        """Mean of a column."""
        return _interval(self._of(name) / self.n, self._drawn_of(name) / self.n)

    def ratio(self, above: str, below: str) -> Interval:
        """Sum of one column over the sum of another: AAL, throughput, a speed-up of two latencies."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return _interval(self._of(above) / self._of(below), self._drawn_of(above) / self._drawn_of(below))

    def difference(self, first: str, second: str) -> Interval:
        """Mean of the first column minus mean of the second."""
        drawn = self._drawn_of(first) - self._drawn_of(second)
        return _interval((self._of(first) - self._of(second)) / self.n, drawn / self.n)

    def _of(self, name: str) -> np.float64:
        return self._sums[self._index[name]]  # type: ignore[no-any-return]

    def _drawn_of(self, name: str) -> Reals:
        return np.asarray(self._drawn[:, self._index[name]])


def _resampled(table: Reals, resamples: int, seed: int) -> Reals:
    """Column sums of a table [n, m] over resamples of its rows: [resamples, m]."""
    rng, n = np.random.default_rng(seed), table.shape[0]
    parts, step = [], max(1, CHUNK // n)
    for first in range(0, resamples, step):
        count = min(step, resamples - first)
        drawn = rng.integers(0, n, (count, n)) + np.arange(count)[:, None] * n
        parts.append(np.bincount(drawn.ravel(), minlength=count * n).reshape(count, n) @ table)
    return np.concatenate(parts)


def _interval(value: np.float64, drawn: Reals) -> Interval:
    known = drawn[np.isfinite(drawn)]
    if not known.size:
        return Interval(float(value), float("nan"), float("nan"))
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(value), float(low), float(high))
