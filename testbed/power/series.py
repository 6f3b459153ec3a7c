"""Arrays of power samples, from the testbed's sampler or an external meter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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


def gather(readings: Sequence[Reading], mean: bool, source: str, total: str, skipped: int = 0) -> Samples:
    """Convert readings to samples; those out of order or not finite are skipped and counted.

    Raises:
        BadInput: fewer than two remain.
    """
    kept: list[Reading] = []
    for reading in readings:
        fits = math.isfinite(reading.total_w) and math.isfinite(reading.time_s)
        if fits and (not kept or reading.time_s > kept[-1].time_s):
            kept.append(reading)
    names = list(dict.fromkeys(name for reading in kept for name in reading.rails))
    return Samples(
        time_s=np.array([r.time_s for r in kept], np.float64),
        total_w=np.array([r.total_w for r in kept], np.float64),
        rails={name: np.array([r.rails.get(name, math.nan) for r in kept], np.float64) for name in names},
        temp_c=np.array([math.nan if r.temp_c is None else r.temp_c for r in kept], np.float64),
        throttled=tuple(r.throttled for r in kept),
        mean=mean,
        source=source,
        total=total,
        skipped=skipped + len(readings) - len(kept),
    )
