"""Statistics of results: seeds of repeats, confidence intervals, verdicts, and how many values a percentile needs.

Every table and every check that compares goes through this module, so that one rule holds for all of them:

- Repeats are independent: each point of a curve, series and repeat draws with a seed of its own (`independent_seed`).
- Values of one unit (a prompt, a seed) are dependent. Units are resampled as a whole, with all columns together, so
  that ratios of sums and differences are paired (Efron and Tibshirani, An Introduction to the Bootstrap, chs. 8, 13).
- Few repeats or prompts are too few to resample: a percentile bootstrap of five covers 83 %, not 95 %. Below `FEW`, the
  interval is Student's t of the repeats (`repeats_interval`), or t times the bootstrap's standard error.
- Shares of units have Wilson's score interval (1927), and paired differences of shares that of Bonett and Price (2012):
  resamples of 20 values of which few differ cover 60 %, and none at all where all are the same.
- A comparison is decided only if its interval excludes equality, a class only if enough of its responses were judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from testbed.errors import BadInput

LEVEL = 0.95
"""Confidence level of intervals."""
Z = NormalDist().inv_cdf((1 + LEVEL) / 2)
"""Its quantile of the standard normal distribution."""
RESAMPLES = 10_000
SEED = 0
"""Seed of resampling."""
TAILS = 40
"""Reciprocal of the probability beyond each end of an interval."""
CHUNK = 4_000_000
"""Maximum number of draws in memory."""
FEW = 20
"""Minimum number of units for percentiles of resamples."""
LEAST_JUDGED = 60
"""Minimum number of judged responses for a verdict on a class."""
LEAST_VALUES = {95: 200, 99: 1000}
"""Minimum number of values for a percentile."""
PERCENTILES = {"latency_p95_s": 95, "latency_p99_s": 99}
"""Columns of percentiles."""

Reals = NDArray[np.float64]
Comparison = Literal["ahead", "behind", "undecided"]
ClassVerdict = Literal["kept", "violated", "undecided"]


class Interval(NamedTuple):
    """A value with its confidence interval."""

    value: float
    low: float
    """nan, like `high`, if there are too few values for an interval."""
    high: float

    @property
    def ends(self) -> tuple[float | None, float | None]:
        """Both ends for documents; None if there are too few values."""
        return (None, None) if math.isnan(self.low) else (self.low, self.high)


# ---------------------------------------------------------------- seeds and verdicts


def independent_seed(seed: int, *labels: object) -> int:
    """Seed of one repeat, point or request, in [0, 2⁶³); independent of those with other labels."""
    text = "/".join(map(str, (seed, *labels)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def compared(difference: Interval | None, equal: float = 0.0) -> Comparison:
    """Verdict on a difference, or with `equal` = 1 on a ratio, where more is better; undecided without an interval."""
    if difference is None:
        return "undecided"
    return "ahead" if difference.low > equal else "behind" if difference.high < equal else "undecided"


def class_verdict(violated: int, judged: int, epsilon: float) -> ClassVerdict:
    """Whether at most a share ε of a class's judged responses violates its SLO; undecided if too few were judged."""
    if judged < LEAST_JUDGED:
        return "undecided"
    return "kept" if violated <= epsilon * judged else "violated"


def percentile(column: str, values: ArrayLike) -> float | None:
    """Percentile of a column in `PERCENTILES`; None if there are too few values."""
    found, share = np.asarray(values, np.float64), PERCENTILES[column]
    return float(np.percentile(found, share)) if found.size >= LEAST_VALUES[share] else None


def printable(row: Mapping[str, Any], column: str, count: str = "requests") -> Any:
    """A row's value as tables print it: None for a percentile that rests on too few of the row's requests."""
    value = row.get(column)
    if column not in PERCENTILES or value is None or not isinstance(row.get(count), int):
        return value
    return value if row[count] >= LEAST_VALUES[PERCENTILES[column]] else None


# ---------------------------------------------------------------- intervals


def span(draws: ArrayLike, level: float = LEVEL) -> Reals:
    """Percentile interval of bootstrap draws [b, …] along the first axis: [2, …].

    Raises:
        BadInput: no draws, or a level outside (0, 1).
    """
    array = np.asarray(draws, np.float64)
    _check(len(array), level)
    found: Reals = np.quantile(array, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return found


def mean_interval(values: NDArray[np.float64], level: float = LEVEL) -> tuple[float, float]:
    """Bootstrap interval of the mean of independent values, efficient for few distinct ones; below `FEW` values that of
    `repeats_interval`.

    Raises:
        BadInput: no values, or a level outside (0, 1).
    """
    _check(len(values), level)
    if 1 < len(values) < FEW and level == LEVEL:
        return repeats_interval(values)[1:]
    kinds, counts = np.unique(values, return_counts=True)
    draws = np.random.default_rng(SEED).multinomial(len(values), counts / len(values), RESAMPLES)
    low, high = span(draws @ kinds / len(values), level).tolist()
    return low, high


def _check(count: int, level: float) -> None:
    if not count or not 0 < level < 1:
        raise BadInput(f"an interval needs values and a level in (0, 1), not {count} values and {level:g}")


def repeats_interval(values: ArrayLike) -> Interval:
    """Mean of independent repeats, one value per seed, with Student's t interval; nan for a single repeat.

    Raises:
        BadInput: no values.
    """
    found = np.asarray(values, np.float64)
    if not found.size:
        raise BadInput("an interval over repeats needs a value of each")
    mean = float(found.mean())
    half = student_t(found.size - 1) * float(found.std(ddof=1)) / math.sqrt(found.size) if found.size > 1 else math.nan
    return Interval(mean, mean - half, mean + half)


def paired_interval(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Mean of ours minus theirs over the same seeds, with the interval of `repeats_interval`.

    Raises:
        BadInput: different numbers of repeats, or none.
    """
    if len(ours) != len(theirs):
        raise BadInput(f"a paired comparison needs the same repeats, not {len(ours)} and {len(theirs)}")
    return repeats_interval(np.subtract(ours, theirs, dtype=np.float64))


def median_interval(values: ArrayLike) -> Interval:
    """Median with a distribution-free interval from order statistics; nan below six values."""
    ordered = np.sort(np.asarray(values, np.float64))
    n = len(ordered)
    # the k-th smallest and largest value enclose the median unless fewer than k values fall on one side of it
    k, ways, tail = 0, 1, 1  # tail: number of outcomes with at most k of n values on one side
    while TAILS * tail <= 2**n:
        ways = ways * (n - k) // (k + 1)
        k, tail = k + 1, tail + ways
    low, high = (ordered[k - 1], ordered[n - k]) if k else (math.nan, math.nan)
    return Interval(float(np.median(ordered)), float(low), float(high))


def student_t(freedom: int) -> float:
    """97.5 % point of Student's t for an integer number of degrees of freedom, from its finite series (Abramowitz and
    Stegun 26.7.3 and 26.7.4); a UE has no scipy.
    """
    low, high = 0.0, math.pi / 2  # of θ = atan(t / √ν)
    for _ in range(60):
        theta = (low + high) / 2
        cosine, odd = math.cos(theta), freedom % 2
        term = total = cosine if odd else 1.0
        for i in range(2 + odd, freedom, 2):
            term *= cosine**2 * (i - 1) / i
            total += term
        inside = math.sin(theta) * total if not odd else 2 / math.pi * (theta + math.sin(theta) * total * (freedom > 1))
        low, high = (theta, high) if inside < LEVEL else (low, theta)
    return math.sqrt(freedom) * math.tan(low)


class Bootstrap:
    """Resampled sums of columns over the same units.

    Args:
        columns: values by name [n], in the same order.
        groups: unit of each value [n], such as its seed: values of one unit are resampled together. None: each value
            is a unit.

    Raises:
        BadInput: no values, columns of different lengths, or values that are not finite.
    """

    def __init__(
        self,
        columns: Mapping[str, ArrayLike],
        resamples: int = RESAMPLES,
        seed: int = SEED,
        groups: ArrayLike | None = None,
    ) -> None:
        arrays = {name: np.asarray(values, np.float64) for name, values in columns.items()}
        sizes = {array.size for array in arrays.values()} | ({np.size(groups)} if groups is not None else set())
        if len(sizes) != 1 or 0 in sizes:
            raise BadInput(f"an interval needs columns over the same units, not of lengths {sorted(sizes)}")
        table = np.stack([*arrays.values(), np.ones(max(sizes))], axis=1)
        if not np.isfinite(table).all():
            raise BadInput("an interval needs finite values")
        self.n, self._table = int(table.shape[0]), table
        if groups is not None:
            _, unit = np.unique(np.asarray(groups), return_inverse=True)
            table = np.stack([np.bincount(unit, column) for column in table.T], axis=1)
        self._units, self._grouped = int(table.shape[0]), groups is not None
        self._index = {name: i for i, name in enumerate(arrays)}
        self._shares = {name for name, one in arrays.items() if np.isin(one, (0, 1)).all()} if groups is None else set()
        self._least = {name: 0.0 if (array >= 0).all() else -math.inf for name, array in arrays.items()}
        self._most = {name: 1.0 if np.isin(array, (0, 1)).all() else math.inf for name, array in arrays.items()}
        self._sums: Reals = table.sum(axis=0)
        self._drawn = _resampled(table, resamples, seed)

    def mean(self, name: str) -> Interval:
        """Mean of a column; of values that are not negative, the interval lies where they do. Of 0 and 1: Wilson's."""
        if name in self._shares:
            return _wilson(float(self._of(name)), self.n)
        drawn = self._drawn_of(name) / self._drawn[:, -1]
        return self._interval(self._of(name) / self.n, drawn, self._least[name], self._most[name])

    def ratio(self, above: str, below: str, most: float = math.inf) -> Interval:
        """Sum of one column over the sum of another: AAL, throughput, a speed-up of two latencies.

        Args:
            most: largest value that the ratio can have, such as 1 for a share.
        """
        least = min(self._least[above], self._least[below])
        with np.errstate(divide="ignore", invalid="ignore"):
            drawn = self._drawn_of(above) / self._drawn_of(below)
            return self._interval(self._of(above) / self._of(below), drawn, least, most)

    def difference(self, first: str, second: str) -> Interval:
        """Mean of the first column minus mean of the second; of 0 and 1, with the interval of Bonett and Price."""
        if {first, second} <= self._shares:
            return self._paired(first, second)
        drawn = (self._drawn_of(first) - self._drawn_of(second)) / self._drawn[:, -1]
        return self._interval((self._of(first) - self._of(second)) / self.n, drawn)

    def computed(self, formula: Callable[[Callable[[str], Reals]], Reals]) -> Interval:
        """A function of the columns' sums.

        Args:
            formula: takes a function that returns a column's sum, or its resampled sums, by name.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            return self._interval(np.float64(formula(lambda name: np.asarray(self._of(name)))), formula(self._drawn_of))

    def _paired(self, first: str, second: str) -> Interval:
        """Difference of two shares of the same units, with one more unit of each kind of those that differ."""
        one, other = (self._table[:, self._index[name]] for name in (first, second))
        more, less = (float(np.sum(a > b)) for a, b in ((one, other), (other, one)))
        p, q = (more + 1) / (self.n + 2), (less + 1) / (self.n + 2)
        half = Z * math.sqrt(max(0.0, p + q - (p - q) ** 2) / (self.n + 2))
        value = (more - less) / self.n
        return Interval(value, max(-1.0, min(value, p - q - half)), min(1.0, max(value, p - q + half)))

    def _of(self, name: str) -> np.float64:
        return self._sums[self._index[name]]  # type: ignore[no-any-return]

    def _drawn_of(self, name: str) -> Reals:
        return np.asarray(self._drawn[:, self._index[name]])

    def _interval(self, value: np.float64, drawn: Reals, least: float = -math.inf, most: float = math.inf) -> Interval:
        known, units = drawn[np.isfinite(drawn)], self._units
        if not known.size or (units == 1 and self._grouped):
            return Interval(float(value), math.nan, math.nan)
        if 1 < units < FEW:
            half = student_t(units - 1) * float(known.std()) * math.sqrt(units / (units - 1))
            return Interval(float(value), max(least, float(value) - half), min(most, float(value) + half))
        low, high = span(known).tolist()
        return Interval(float(value), low, high)


def _wilson(count: float, n: int) -> Interval:
    """Share of n with Wilson's score interval."""
    share, z2 = count / n, Z * Z
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return Interval(share, max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half)))


def _resampled(table: Reals, resamples: int, seed: int) -> Reals:
    """Column sums of a table [n, m] over resamples of its rows: [resamples, m]."""
    rng, n = np.random.default_rng(seed), table.shape[0]
    parts, step = [], max(1, CHUNK // n)
    for first in range(0, resamples, step):
        count = min(step, resamples - first)
        drawn = rng.integers(0, n, (count, n)) + np.arange(count)[:, None] * n
        parts.append(np.bincount(drawn.ravel(), minlength=count * n).reshape(count, n) @ table)
    return np.concatenate(parts)
