"""mahimahi's packet-delivery files: one line per opportunity to deliver 1500 bytes, a time in whole milliseconds.

As in mm-link, the last line is also the file's period, after which it repeats.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.channel.trace import Array
from testbed.errors import BadInput

OPPORTUNITY_BITS = 1500 * 8
MOST_BINS = 1_000_000
"""Largest number of samples, so that a wrong file with huge numbers does not fill the memory."""
MOST_LINES = 20_000_000
"""Largest number of lines, and of milliseconds, of a file."""

Times = NDArray[np.int64]


def parse(text: str, name: str) -> tuple[Times, list[str]]:
    """[n] increasing delivery times [ms] of one file, and notes on repairs.

    Raises:
        BadInput: a line that is not an integer >= 0, or a file with a period of 0.
    """
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    given = [(number, line) for number, line in lines if line]
    for number, line in given:
        if not (line.isascii() and line.isdigit() and len(line) < 13):
            raise BadInput(
                f"{name} line {number}: mahimahi has one whole number of milliseconds a line, not {line!r:.40}"
            )
    times = np.array([int(line) for _, line in given], np.int64)
    if not times.max():
        raise BadInput(f"{name}: mahimahi takes the period from the last line, which must be over 0 ms")
    notes = []
    if len(given) < len(lines):
        notes.append(f"{name}: {len(lines) - len(given)} empty lines dropped")
    early = int((times < np.maximum.accumulate(times)).sum())
    if early:
        notes.append(f"{name}: {early} lines out of order sorted")
    return np.sort(times), notes


def pair_rates(up: Times, down: Times, bin_s: float) -> tuple[Array, Array, Array, list[str]]:
    """Convert delivery times [ms] to t_s [n], uplink [n] and downlink [n] in Mbit/s, and notes.

    The bin width is adjusted to divide the period, so that mean rates are exact. The shorter of the two files is
    repeated, as in mm-link.

    Raises:
        BadInput: a bin width that is not positive, or too many bins.
    """
    if not 0.001 <= bin_s < np.inf:
        raise BadInput(f"--bin must be at least 0.001 s, not {bin_s:g}")
    period_ms = int(max(up[-1], down[-1]))
    n = max(1, round(period_ms / (1000 * bin_s)))
    if n > MOST_BINS:
        raise BadInput(f"{period_ms / 1000:g} s in bins of {bin_s:g} s are {n} samples; use a larger --bin")
    notes = []
    width_s = period_ms / n / 1000
    if not np.isclose(width_s, bin_s):
        notes.append(f"bins of {width_s:.6g} s instead of {bin_s:g} s, to fill {period_ms / 1000:g} s")
    rates = []
    for name, times in (("uplink", up), ("downlink", down)):
        if times[-1] < period_ms:
            notes.append(f"{name}: {times[-1] / 1000:g} s repeated to fill {period_ms / 1000:g} s")
        times = _repeated(times, period_ms)
        places = np.minimum(np.maximum(times - 1, 0) * n // period_ms, n - 1)
        rates.append(np.bincount(places, minlength=n) * OPPORTUNITY_BITS / width_s / 1e6)
    t_s: Array = np.arange(n, dtype=np.float64) * width_s
    return t_s, rates[0], rates[1], notes


def _repeated(times: Times, period_ms: int) -> Times:
    """Delivery times of the file repeated up to and including `period_ms`."""
    turns = -(-period_ms // int(times[-1]))
    if turns * times.size > MOST_LINES:
        raise BadInput(f"one of the files lasts {times[-1]} ms, too short to be repeated for {period_ms} ms")
    every = (np.arange(turns)[:, None] * times[-1] + times).ravel()
    kept: Times = every[every <= period_ms]
    return kept


def schedule(t_s: Array, mbps: Array, duration_s: float) -> Times:
    """[N] delivery times [ms] for rates [n] in Mbit/s that hold from t_s [n] on, until `duration_s`.

    Rounding errors are carried over, so that over the file they stay below one opportunity. The last opportunity is
    always at the end, since it defines the period; so a link without capacity gets one opportunity per period.

    Raises:
        BadInput: more than `MOST_LINES` lines or milliseconds.
    """
    end_ms = max(1, round(1000 * duration_s))
    edges_ms = 1000 * np.append(t_s, duration_s)
    carried = np.append(0.0, np.cumsum(mbps * 1e3 * np.diff(edges_ms))) / OPPORTUNITY_BITS
    total = float(carried[-1])
    count = max(1, round(total)) if total < MOST_LINES else MOST_LINES + 1
    if max(count, end_ms) > MOST_LINES:
        raise BadInput(f"{duration_s:g} s with {total:.3g} packets are too much for a mahimahi file; shorten the trace")
    by_then = np.interp(np.arange(1, end_ms + 1), edges_ms, carried)
    due = np.arange(1, count + 1) * (total / count)
    times = np.minimum(np.searchsorted(by_then, due * (1 - 1e-12)) + 1, end_ms)
    times[-1] = end_ms
    return times.astype(np.int64)
