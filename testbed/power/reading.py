"""What a power sensor says, and the one seam behind which all of them stand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec


class Reading(msgspec.Struct, frozen=True):
    """What a sensor said once."""

    time_s: float
    """On the reader's monotonic clock."""
    rails: dict[str, float]
    """Power by rail [W]."""
    total_w: float
    """Of the whole device, as far as its sensor sees it."""
    temp_c: float | None = None
    """Of the hottest zone."""
    throttled: str | None = None
    """Why it runs slower than it could, reasons joined by `+`; empty: it does not; None: the sensor cannot tell."""


class PowerSource(Protocol):
    """Somewhere to read power from.

    Attributes:
        name: of the kind of sensor.
        period_s: how often it is worth reading.
        mean: True where power is the mean since the reading before (energy counters), False where it is that of the
            moment.
        total: what `total_w` is made of, in words.
    """

    name: str
    period_s: float
    mean: bool
    total: str

    def read(self) -> Reading:
        """Read once.

        Raises:
            SensorError: nothing sensible came this time.
        """

    def close(self) -> None:
        """Let go of what it holds."""


def joined(reasons: Iterable[str]) -> str:
    """Reasons for throttling as a `Reading` has them, each once and in order."""
    return "+".join(sorted({reason for reason in reasons if reason}))
