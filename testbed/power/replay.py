"""Power source that replays recorded samples in real time."""

from __future__ import annotations

import time

import numpy as np

from testbed.errors import SensorError
from testbed.power.reading import Reading
from testbed.power.series import Samples

FASTEST_S = 0.005


class Replay:
    """Replays samples, from the first at construction; `read` raises `SensorError` after the last."""

    name = "file"

    def __init__(self, samples: Samples) -> None:
        self._samples, self._begin_s = samples, time.perf_counter()
        self.mean, self.total = samples.mean, samples.total
        self.period_s = max(FASTEST_S, float(np.median(np.diff(samples.time_s))) / 2)

    def read(self) -> Reading:
        """See `PowerSource`; returns the latest sample, at its own time relative to the start of the replay."""
        samples = self._samples
        past_s = time.perf_counter() - self._begin_s
        times_s = samples.time_s - samples.time_s[0]
        at = int(np.searchsorted(times_s, past_s, side="right")) - 1
        if at == len(times_s) - 1 and past_s > times_s[-1] + samples.gap_s:
            raise SensorError("end of the recorded samples")
        rails = {name: float(values[at]) for name, values in samples.rails.items() if not np.isnan(values[at])}
        temp_c = float(samples.temp_c[at]) if samples.temp_c is not None else np.nan
        return Reading(
            self._begin_s + float(times_s[at]),
            rails,
            float(samples.total_w[at]),
            None if np.isnan(temp_c) else temp_c,
            samples.throttled[at] if samples.throttled is not None else None,
        )

    def close(self) -> None:
        """Nothing to release."""
