"""NVIDIA Jetson: INA3221 power monitors, over-current events and thermal zones, read from sysfs.

INA3221 (kernel, Documentation/hwmon/ina3221.rst): `in[123]_label`, `in[123]_input` [mV], `curr[123]_input` [mA].
Over-current (Jetson Linux Developer Guide, "Platform Power and Performance"): `soctherm_oc` counts under-voltage (oc1),
average (oc2) and instantaneous over-current (oc3), at which the hardware throttles.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from testbed.errors import SensorError
from testbed.power.reading import Reading, joined
from testbed.power.sensors.rails import total_w, whole
from testbed.power.sensors.sysfs import need, numbered, text_of, whole_of
from testbed.power.sensors.thermal import Thermal

EVENTS = {"oc1": "under-voltage", "oc2": "over-current", "oc3": "over-current"}
UNUSED = ("", "NC", "sum of shunt voltages")
"""Labels of unused channels."""


class Channel(NamedTuple):
    """One rail of an INA3221."""

    rail: str
    voltage: Path
    """[mV]"""
    current: Path
    """[mA]"""


def channels(root: Path = Path("/")) -> list[Channel]:
    """Rails measured by the machine's INA3221 sensors; empty without such sensors."""
    found = []
    for chip in numbered(root / "sys/class/hwmon", "hwmon*"):
        if text_of(chip / "name") != "ina3221":
            continue
        for number in "123":
            label = text_of(chip / f"in{number}_label") or ""
            if label not in UNUSED and whole_of(chip / f"in{number}_enable") != 0:
                found.append(Channel(label, chip / f"in{number}_input", chip / f"curr{number}_input"))
    return found


class Jetson:
    """Power source that reads all rails in sequence, about 0.5 ms each over I²C.

    Raises:
        SensorError: no INA3221 found.
    """

    name = "jetson"
    period_s = 0.05
    mean = False

    def __init__(self, root: Path = Path("/")) -> None:
        self._channels = channels(root)
        if not self._channels:
            raise SensorError("no INA3221 under /sys/class/hwmon: this is no Jetson, or the driver is not loaded")
        self._whole = whole([channel.rail for channel in self._channels])
        self.total = " + ".join(self._whole)
        self._thermal, self._events = Thermal(root), _Events(root)

    def read(self) -> Reading:
        """See `PowerSource`; the time is the midpoint of the reading."""
        begin_s = time.perf_counter()
        rails = {c.rail: need(c.voltage) * need(c.current) / 1e6 for c in self._channels}
        middle_s = (begin_s + time.perf_counter()) / 2
        temp_c, hot = self._thermal.read()
        events = self._events.new()
        known = None if hot is None and events is None else joined([hot or "", *(events or [])])
        return Reading(middle_s, rails, total_w(rails, self._whole), temp_c, known)

    def close(self) -> None:
        """Nothing to release."""


class _Events:
    """Counters of over-current events."""

    def __init__(self, root: Path) -> None:
        chips = [c for c in numbered(root / "sys/class/hwmon", "hwmon*") if text_of(c / "name") == "soctherm_oc"]
        self._counters = {
            chip / f"{name}_event_cnt": reason
            for chip in chips
            for name, reason in EVENTS.items()
            if whole_of(chip / f"{name}_throt_en") == 1
        }
        self._counts = {path: whole_of(path) or 0 for path in self._counters}

    def new(self) -> list[str] | None:
        """Reasons of the events since the last call; None: no counters on this machine."""
        now = {path: whole_of(path) or 0 for path in self._counters}
        happened = [self._counters[path] for path, count in now.items() if count > self._counts[path]]
        self._counts = now
        return happened if self._counters else None
