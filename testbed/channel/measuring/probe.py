"""Estimates with confidence intervals of quantities measured on a link, and of the RTT from handshakes."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

import msgspec

from testbed.errors import BadInput

CONFIDENCE = 0.95
TAILS = 40
"""Reciprocal of the probability mass beyond each end of a confidence interval."""


class Estimate(msgspec.Struct, frozen=True):
    """A value with its 95 % confidence interval, from `median_estimate` or `mean_estimate`.

    Both intervals assume independent samples. Since RTTs and seconds of a transfer are measured in succession, slow
    variations of the link are not covered: the interval holds for the time of the measurement only.
    """

    value: float
    low: float | None
    """None, like `high`, if there are too few samples for an interval."""
    high: float | None
    n: int
    """Number of samples."""


class RTT(msgspec.Struct, frozen=True):
    """Round-trip time from handshakes."""

    median_ms: Estimate
    jitter_ms: float | None
    """Mean absolute difference of successive samples: jitter as in RFC 3550, but of round trips instead of one-way
    transit times, and without smoothing. None for one sample."""
    least_ms: float
    """Smallest sample: the RTT without queues."""


def median_estimate(samples: Sequence[float]) -> Estimate:
    """Median with a distribution-free confidence interval from order statistics (None below six samples).

    Raises:
        BadInput: no samples, or some that are not finite.
    """
    ordered = sorted(_finite(samples))
    n = len(ordered)
    # the k-th smallest and largest sample enclose the median unless fewer than k samples fall on one side of it
    k, ways, tail = 0, 1, 1  # tail: number of outcomes with at most k of n samples on one side
    while TAILS * tail <= 2**n:
        ways = ways * (n - k) // (k + 1)
        k, tail = k + 1, tail + ways
    low, high = (ordered[k - 1], ordered[n - k]) if k else (None, None)
    return Estimate(statistics.median(ordered), low, high, n)


def mean_estimate(samples: Sequence[float]) -> Estimate:
    """Mean with a confidence interval from Student's t (None for one sample).

    Raises:
        BadInput: no samples, or some that are not finite.
    """
    mean, n = statistics.fmean(_finite(samples)), len(samples)
    if n < 2:
        return Estimate(mean, None, None, n)
    half = student_t(n - 1) * statistics.stdev(samples) / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n)


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
        low, high = (theta, high) if inside < CONFIDENCE else (low, theta)
    return math.sqrt(freedom) * math.tan(low)


def rtt_estimate(times_s: Sequence[float]) -> RTT:
    """RTT from the times of successive handshakes; raises BadInput as `median_estimate`."""
    times_ms = [1e3 * t for t in _finite(times_s)]
    steps = [abs(after - before) for before, after in itertools.pairwise(times_ms)]
    return RTT(median_estimate(times_ms), statistics.fmean(steps) if steps else None, min(times_ms))


def _finite(samples: Sequence[float]) -> Sequence[float]:
    if not samples or not all(map(math.isfinite, samples)):
        raise BadInput(f"an estimate needs samples that are finite numbers, not {list(samples)[:8]}")
    return samples
