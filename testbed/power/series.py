"""Arrays of power samples, from the testbed's sampler or an external meter."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput
from testbed.power.reading import Reading

Reals = NDArray[np.float64]
GAP_STEPS = 5.5
"""A step is a gap, with unknown power, if it is longer than five usual ones, plus half a one for jitter."""
LEAST_GAP_S = 0.05


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples in order of time.

    Raises:
        BadInput: fewer than two samples, times that do not increase, or values that are not finite.
    """

    time_s: Reals
    """[n], strictly increasing; Unix time in files written by the testbed."""
    total_w: Reals
    """[n] power of the whole device."""
    rails: Mapping[str, Reals] = field(default_factory=dict)
    """[n] power of each rail [W]; nan if missing from a sample."""
    temp_c: Reals | None = None
    """[n], nan if unknown."""
    throttled: tuple[str | None, ...] | None = None
    """[n], as in `Reading`."""
    mean: bool = False
    """Whether power is the mean since the previous sample."""
    source: str = "file"
    total: str = ""
    """Description of what `total_w` covers."""
    skipped: int = 0
    """Number of lines that were not samples."""

    def __post_init__(self) -> None:
        if len(self.time_s) < 2:
            raise BadInput(f"power needs at least two samples, not {len(self.time_s)}")
        if not (np.isfinite(self.time_s).all() and np.isfinite(self.total_w).all()):
            raise BadInput("times and power must be finite numbers")
        if (np.diff(self.time_s) <= 0).any():
            raise BadInput("times of power samples must increase")

    @cached_property
    def gap_s(self) -> float:
        """Longest step that is not a gap: `GAP_STEPS` times the median step, at least 50 ms."""
        return max(LEAST_GAP_S, GAP_STEPS * float(np.median(np.diff(self.time_s))))

    def shifted(self, by_s: float) -> Samples:
        """Copy with all times shifted."""
        return replace(self, time_s=self.time_s + by_s)


def gather(readings: Iterable[Reading | None], mean: bool, source: str, total: str) -> Samples:
    """Convert readings to samples; None, and those out of order or not finite, are skipped and counted.

    Raises:
        BadInput: fewer than two remain.
    """
    time_s, total_w, temp_c, rails = array("d"), array("d"), array("d"), dict[str, "array[float]"]()
    throttled, reasons, skipped = list[str | None](), dict[str | None, str | None](), 0
    for reading in readings:
        fits = reading is not None and math.isfinite(reading.total_w) and math.isfinite(reading.time_s)
        if reading is None or not fits or (time_s and reading.time_s <= time_s[-1]):
            skipped += 1
            continue
        for name in reading.rails:
            if name not in rails:
                rails[name] = array("d", [math.nan]) * len(time_s)
        for name, values in rails.items():
            values.append(reading.rails.get(name, math.nan))
        time_s.append(reading.time_s)
        total_w.append(reading.total_w)
        temp_c.append(math.nan if reading.temp_c is None else reading.temp_c)
        throttled.append(reasons.setdefault(reading.throttled, reading.throttled))  # one copy of each
    return Samples(
        time_s=np.array(time_s),
        total_w=np.array(total_w),
        rails={name: np.array(values) for name, values in rails.items()},
        temp_c=np.array(temp_c),
        throttled=tuple(throttled),
        mean=mean,
        source=source,
        total=total,
        skipped=skipped,
    )
