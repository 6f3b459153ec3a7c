"""Samples of power: what a sampler wrote, or an external meter, as arrays."""

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
"""A step of more than five usual ones is a gap, what lies between is not known; half a one is for jitter."""
LEAST_GAP_S = 0.05


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples in the order of their times.

    Raises:
        BadInput: fewer than two, times that do not grow, or power that is no finite number.
    """

    time_s: Reals
    """[n], strictly increasing. Unix time in what the testbed writes."""
    total_w: Reals
    """[n], of the whole device."""
    rails: Mapping[str, Reals] = field(default_factory=dict)
    """[n] each, in W; nan where a sample lacks it."""
    temp_c: Reals | None = None
    """[n], nan where it is not known."""
    throttled: tuple[str | None, ...] | None = None
    """[n], as `Reading` has it."""
    mean: bool = False
    """True: power is the mean since the sample before."""
    source: str = "file"
    total: str = ""
    """What the whole device is made of, in words."""
    skipped: int = 0
    """Lines that were no samples."""

    def __post_init__(self) -> None:
        if len(self.time_s) < 2:
            raise BadInput(f"power needs two samples at least, not {len(self.time_s)}")
        if not (np.isfinite(self.time_s).all() and np.isfinite(self.total_w).all()):
            raise BadInput("times and power must be finite numbers")
        if (np.diff(self.time_s) <= 0).any():
            raise BadInput("times of power samples must grow")

    @cached_property
    def gap_s(self) -> float:
        """Longer steps are gaps: more than five times the usual one, and 50 ms at least."""
        return max(LEAST_GAP_S, GAP_STEPS * float(np.median(np.diff(self.time_s))))

    def shifted(self, by_s: float) -> Samples:
        """The same at other times."""
        return replace(self, time_s=self.time_s + by_s)


def gather(readings: Sequence[Reading], mean: bool, source: str, total: str, skipped: int = 0) -> Samples:
    """Readings as samples; those that do not come after the one before, or whose power is not finite, are skipped and
    counted.

    Raises:
        BadInput: fewer than two are left.
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
