"""Estimates with confidence intervals of quantities measured on a link, and of the RTT from handshakes."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

import msgspec

from testbed.errors import BadInput
from testbed.intervals import Interval, median_interval, repeats_interval


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
    return _estimate(median_interval(_finite(samples)), len(samples))


def mean_estimate(samples: Sequence[float]) -> Estimate:
    """Mean with a confidence interval from Student's t (None for one sample).

    Raises:
        BadInput: no samples, or some that are not finite.
    """
    return _estimate(repeats_interval(_finite(samples)), len(samples))


def _estimate(found: Interval, n: int) -> Estimate:
    return Estimate(found.value, *found.ends, n)


def rtt_estimate(times_s: Sequence[float]) -> RTT:
    """RTT from the times of successive handshakes; raises BadInput as `median_estimate`."""
    times_ms = [1e3 * t for t in _finite(times_s)]
    steps = [abs(after - before) for before, after in itertools.pairwise(times_ms)]
    return RTT(median_estimate(times_ms), statistics.fmean(steps) if steps else None, min(times_ms))


def _finite(samples: Sequence[float]) -> Sequence[float]:
    if not samples or not all(map(math.isfinite, samples)):
        raise BadInput(f"an estimate needs samples that are finite numbers, not {list(samples)[:8]}")
    return samples
