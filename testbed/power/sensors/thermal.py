"""Temperatures and thermal throttling on Linux: /sys/class/thermal, and the throttling counters of x86.

Kernel, Documentation/ABI/testing/sysfs-class-thermal: temperatures are in millidegrees Celsius; from a `passive` trip
point on, the kernel slows devices down.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from testbed.power.sensors.sysfs import numbered, text_of, whole_of

SLOWING = re.compile(r"cpufreq|devfreq|processor|throttle-alert", re.IGNORECASE)
"""Types of cooling devices that slow down a processor; others are fans, for example."""
HOT = "thermal"


class Zone(NamedTuple):
    """A thermal zone."""

    temp: Path
    passive_c: float | None
    """Temperature of the passive trip point; None: unknown."""


class Thermal:
    """Reads all thermal zones of a machine.

    Args:
        root: root of the file system.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        folder = root / "sys/class/thermal"
        zones = numbered(folder, "thermal_zone*")
        self._zones = [Zone(zone / "temp", _passive_c(zone)) for zone in zones]
        devices = numbered(folder, "cooling_device*")
        self._slowing = [d / "cur_state" for d in devices if SLOWING.search(text_of(d / "type") or "")]
        self._counters = numbered(root / "sys/devices/system/cpu", "cpu[0-9]*/thermal_throttle/package_throttle_count")
        self._count = self._counted()

    def read(self) -> tuple[float | None, str | None]:
        """Temperature of the hottest zone [°C] and reason for throttling, as in `Reading`."""
        seen = [(whole_of(zone.temp), zone.passive_c) for zone in self._zones]
        known = [(temp / 1e3, passive_c) for temp, passive_c in seen if temp is not None]
        hot = any(passive_c is not None and temp_c >= passive_c for temp_c, passive_c in known)
        slowed = any((whole_of(state) or 0) > 0 for state in self._slowing)
        count, before = self._counted(), self._count
        self._count = count
        can_tell = self._slowing or self._counters or any(passive_c is not None for _, passive_c in known)
        reason = HOT if hot or slowed or count > before else ""
        return max((temp_c for temp_c, _ in known), default=None), reason if can_tell else None

    def _counted(self) -> int:
        return sum(whole_of(counter) or 0 for counter in self._counters)


def _passive_c(zone: Path) -> float | None:
    trips = [path for path in numbered(zone, "trip_point_*_type") if text_of(path) == "passive"]
    temps = [whole_of(path.with_name(path.name.removesuffix("type") + "temp")) for path in trips]
    return min((temp / 1e3 for temp in temps if temp is not None and temp > 0), default=None)
