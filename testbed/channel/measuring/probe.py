"""Estimates of what was measured on a link, each with its uncertainty, and round trips among them."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

import msgspec

from testbed.errors import BadInput

CONFIDENCE = 0.95
TAILS = 40
"""One in so many falls beyond each end of an interval."""


class Estimate(msgspec.Struct, frozen=True):
    """A figure with its 95 % confidence interval, by `median_estimate` or `mean_estimate`.

    Both intervals take the samples as independent. Round trips and seconds of a transfer follow each other, so that
    slow swings of the link lie outside: the interval is for the time of the measurement, not for the day.
    """

    value: float
    low: float | None
    """None, like `high`, where the samples are too few for an interval."""
    high: float | None
    n: int
    """Samples."""


class RTT(msgspec.Struct, frozen=True):
    """Round-trip time out of handshakes."""

    median_ms: Estimate
    jitter_ms: float | None
    """Mean absolute difference of successive samples: RFC 3550's jitter without its smoothing, of round trips instead
    of one-way transit times. None for one sample."""
    least_ms: float
    """Smallest sample: the path without queues."""


def median_estimate(samples: Sequence[float]) -> Estimate:
    """Median, its interval by order statistics: no distribution is assumed; fewer than six samples give none.

    Raises:
        BadInput: no samples, or some that are not finite.
    """
    ordered = sorted(_finite(samples))
    n = len(ordered)
    # the k-th smallest and largest hold the median between them unless fewer than k samples fall on one side of it
    k, ways, tail = 0, 1, 1  # tail: the ways in which at most k of n fall on one side
    while TAILS * tail <= 2**n:
        ways = ways * (n - k) // (k + 1)
        k, tail = k + 1, tail + ways
    low, high = (ordered[k - 1], ordered[n - k]) if k else (None, None)
    return Estimate(statistics.median(ordered), low, high, n)


def mean_estimate(samples: Sequence[float]) -> Estimate:
    """Mean, its interval by Student's t; one sample gives none.

    Raises:
        BadInput: no samples, or some that are not finite.
    """
    mean, n = statistics.fmean(_finite(samples)), len(samples)
    if n < 2:
        return Estimate(mean, None, None, n)
    half = student_t(n - 1) * statistics.stdev(samples) / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n)


def student_t(freedom: int) -> float:
    """The 97.5 % point of Student's t (a UE has no scipy), by its finite series for whole degrees of freedom
    (Abramowitz and Stegun 26.7.3 and 26.7.4).
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
    """Round-trip times of handshakes, in the order in which they were made; BadInput as `median_estimate`."""
    times_ms = [1e3 * t for t in _finite(times_s)]
    steps = [abs(after - before) for before, after in itertools.pairwise(times_ms)]
    return RTT(median_estimate(times_ms), statistics.fmean(steps) if steps else None, min(times_ms))


def _finite(samples: Sequence[float]) -> Sequence[float]:
    if not samples or not all(map(math.isfinite, samples)):
        raise BadInput(f"an estimate needs samples that are finite numbers, not {list(samples)[:8]}")
    return samples
