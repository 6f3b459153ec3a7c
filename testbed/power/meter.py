"""Running energy meter in constant memory, used by the base station."""

from __future__ import annotations

import threading
from typing import Any

from testbed.power.reading import PowerSource, Reading
from testbed.power.series import GAP_STEPS, LEAST_GAP_S


class Meter:
    """Integrates readings like `accounting.Integral`. Thread-safe.

    Args:
        source: where the readings come from.
        period_s: sampling period.
    """

    def __init__(self, source: PowerSource, period_s: float) -> None:
        self._mean, self._gap_s = source.mean, max(LEAST_GAP_S, GAP_STEPS * period_s)
        self._source, self._lock = source.name, threading.Lock()
        self._last: Reading | None = None
        self._energy_j = self._known_s = self._gaps_s = 0.0
        self._throttled = self._samples = 0

    def take(self, reading: Reading) -> None:
        """Add a reading."""
        with self._lock:
            last, self._last = self._last, reading
            self._samples += 1
            self._throttled += bool(reading.throttled)
            if last is None:
                return
            step_s = reading.time_s - last.time_s
            if step_s > self._gap_s:
                self._gaps_s += step_s
                return
            power_w = reading.total_w if self._mean else (last.total_w + reading.total_w) / 2
            self._energy_j += step_s * power_w
            self._known_s += step_s

    def snapshot(self) -> dict[str, Any]:
        """Totals so far and the last reading, as a JSON document."""
        with self._lock:
            last = self._last
            return {
                "source": self._source,
                "energy_j": self._energy_j,
                "measured_s": self._known_s,
                "gaps_s": self._gaps_s,
                "samples": self._samples,
                "throttled_samples": self._throttled,
                "watts": last.total_w if last else None,
                "rails": dict(last.rails) if last else {},
                "temp_c": last.temp_c if last else None,
                "throttled": last.throttled if last else None,
            }
