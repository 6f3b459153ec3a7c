"""x86: RAPL energy counters from the kernel's powercap framework, with the same names for Intel and AMD.

Documentation/power/powercap/powercap.rst: `intel-rapl:i/energy_uj` wraps around at `max_energy_range_uj`. Zones
`intel-rapl:i:j` are parts of their package and not counted again, except `dram`, which is not part of the package.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from testbed.errors import SensorError
from testbed.power.reading import Reading
from testbed.power.sensors.sysfs import need, numbered, text_of, whole_of
from testbed.power.sensors.thermal import Thermal

PLATFORM = "psys"
"""Domain of the whole platform, present on some laptops; includes packages and memory."""
LEAST_S = 1e-3
"""Shortest time between readings; RAPL counters are updated every millisecond."""


class Domain(NamedTuple):
    """An energy counter."""

    rail: str
    energy: Path
    """[µJ]"""
    range_uj: int
    """Value at which the counter wraps around."""


def domains(root: Path = Path("/")) -> list[Domain]:
    """Energy counters of a machine, including parts of packages; empty without RAPL."""
    found: list[Domain] = []
    powercap = root / "sys/class/powercap"
    for zone in numbered(powercap, "intel-rapl:*"):
        name, range_uj = text_of(zone / "name"), whole_of(zone / "max_energy_range_uj")
        if not name or not range_uj or not (zone / "energy_uj").exists():
            continue
        if zone.name.count(":") == 2:
            parent = text_of(powercap / zone.name.rpartition(":")[0] / "name") or zone.name
            name = f"{parent}/{name}"
        found.append(Domain(name, zone / "energy_uj", range_uj))
    return found


def joules(before_uj: int, after_uj: int, range_uj: int) -> float:
    """Energy [J] between two values of a counter, which may wrap around once."""
    return (after_uj - before_uj + (range_uj + 1 if after_uj < before_uj else 0)) / 1e6


class Rapl:
    """Power source that reads all counters; power is the mean since the previous reading.

    Raises:
        SensorError: no RAPL on this machine, or it is readable for root only.
    """

    name = "rapl"
    period_s = 0.05
    mean = True

    def __init__(self, root: Path = Path("/")) -> None:
        self._domains = domains(root)
        if not self._domains:
            raise SensorError(
                "no RAPL under /sys/class/powercap: a virtual machine, or the module intel_rapl_msr is off"
            )
        rails = [domain.rail for domain in self._domains]
        platform = [rail for rail in rails if rail.startswith(PLATFORM)]
        separate = [rail for rail in rails if "/" not in rail or rail.endswith("/dram")]
        self._whole = platform or separate
        self.total = " + ".join(self._whole)
        self._thermal = Thermal(root)
        self._before = self._counted()

    def read(self) -> Reading:
        """See `PowerSource`."""
        (then_s, old), (now_s, new) = self._before, self._counted()
        if now_s - then_s < LEAST_S:
            raise SensorError(f"RAPL was read {now_s - then_s:g} s ago: its counters need {LEAST_S:g} s")
        self._before = (now_s, new)
        rails = {
            d.rail: joules(a, b, d.range_uj) / (now_s - then_s) for d, a, b in zip(self._domains, old, new, strict=True)
        }
        return Reading(now_s, rails, sum(rails[name] for name in self._whole), *self._thermal.read())

    def close(self) -> None:
        """Nothing to release."""

    def _counted(self) -> tuple[float, list[int]]:
        begin_s = time.perf_counter()
        counts = [need(domain.energy) for domain in self._domains]
        return (begin_s + time.perf_counter()) / 2, counts
