"""`testbed power read`: tests a power sensor and shows its readings."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from typing import Any

from testbed.errors import BadInput, SensorError
from testbed.power.reading import Reading, joined
from testbed.power.sampler import Sampler
from testbed.power.sources import NONE, SOURCES, open_source


def read_power(name: str, seconds: float) -> dict[str, Any]:
    """Sample a power source; returns `source`, `total`, `total_w` and `rails` (means, W), `temp_c` (maximum),
    `throttled`, `samples`, `missed` (failed readings), `missed_why` (reason of the last one), `seconds`.

    Raises:
        BadInput: no such source, no sensor on this machine, or an invalid duration.
        SensorError: the source gave no readings.
    """
    if not 0.05 <= seconds <= 3600:
        raise BadInput(f"the duration must lie in 0.05..3600 s, not {seconds:g}")
    source = None if name == NONE else open_source(name, tuple(SOURCES))
    if source is None:
        raise BadInput("no power sensor on this machine; see testbed doctor")
    readings: list[Reading] = []
    with contextlib.closing(source):
        sampler = Sampler(source, readings.append)
        begin_s = time.perf_counter()
        sampler.start()
        time.sleep(seconds)
        took_s = time.perf_counter() - begin_s
        sampler.stop()
    if sampler.failure is not None or not readings:
        why = sampler.failure or sampler.why or "try a longer --for"
        raise SensorError(f"{source.name} gave no readings in {seconds:g} s: {why}")
    temps = [reading.temp_c for reading in readings if reading.temp_c is not None]
    throttled = [reading.throttled for reading in readings if reading.throttled is not None]
    rails = {name: [r.rails[name] for r in readings if name in r.rails] for name in readings[0].rails}
    return {
        "source": source.name,
        "total": source.total,
        "total_w": math.fsum(r.total_w for r in readings) / len(readings),
        "rails": {name: statistics.fmean(values) for name, values in rails.items()},
        "temp_c": max(temps, default=None),
        "throttled": joined(part for reason in throttled for part in reason.split("+")) if throttled else None,
        "samples": len(readings),
        "missed": sampler.missed,
        "missed_why": sampler.why or None,
        "seconds": took_s,
    }
