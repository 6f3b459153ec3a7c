"""Interface of power sensors, and their readings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec


class Reading(msgspec.Struct, frozen=True):
    """One reading of a power sensor."""

    time_s: float
    """Time on the reader's monotonic clock."""
    rails: dict[str, float]
    """Power by rail [W]."""
    total_w: float
    """Power of the whole device [W], as far as the sensor measures it."""
    temp_c: float | None = None
    """Temperature of the hottest zone."""
    throttled: str | None = None
    """Reasons for throttling, joined by `+`; empty: not throttled; None: unknown to the sensor."""


class PowerSource(Protocol):
    """A power sensor.

    Attributes:
        name: kind of sensor.
        period_s: recommended sampling period; 0: reads block until there is a new reading.
        mean: True if power is the mean since the previous reading (energy counters), False if it is instantaneous.
        total: description of what `total_w` covers.
    """

    name: str
    period_s: float
    mean: bool
    total: str

    def read(self) -> Reading:
        """Read once.

        Raises:
            SensorError: no valid reading this time.
        """

    def close(self) -> None:
        """Release the sensor."""


def joined(reasons: Iterable[str]) -> str:
    """Reasons for throttling in the format of `Reading.throttled`: unique and sorted."""
    return "+".join(sorted({reason for reason in reasons if reason}))
