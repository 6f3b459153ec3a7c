"""Sampling of a power source at a fixed period, in a separate thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from testbed.errors import SensorError
from testbed.power.reading import PowerSource, Reading

STOP_S = 10.0
"""Timeout for the thread to end; longer than any source blocks."""
LAST_S = 2.0
"""Time after `stop` until which readings may begin."""
LAST_STEP_S = 0.02
"""Time between them."""


class Sampler:
    """Samples a source until stopped, without storing readings.

    Args:
        take: called in the sampler's thread with each reading; an exception ends the sampling.
        period_s: sampling period; None: that of the source. Ignored for sources that block until a new reading.

    Attributes:
        samples: number of readings passed on.
        missed: number of failed readings that began before `stop`.
        why: error of the last failed reading; empty if none failed.
        failure: exception that ended the sampling.
    """

    def __init__(self, source: PowerSource, take: Callable[[Reading], None], period_s: float | None = None) -> None:
        self._source, self._take = source, take
        own = period_s is None or not source.period_s  # blocking sources set their own period
        self._period_s = source.period_s if own else period_s or 0.0
        self._over, self._stopped_s = threading.Event(), 0.0
        self._thread = threading.Thread(target=self._run, name="power", daemon=True)
        self.samples = self.missed = 0
        self.why = ""
        self.failure: Exception | None = None

    def start(self) -> None:
        """Start sampling."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling after one more reading, so that power is known up to this call. Returns when a reading that
        began within `LAST_S` has ended, after `STOP_S` at most. A second call has no effect. The source stays open.
        """
        if not self._over.is_set():
            self._stopped_s = time.perf_counter()
            self._over.set()
            self._thread.join(STOP_S)

    def _run(self) -> None:
        due_s = time.perf_counter()
        last_s: float | None = None
        while not self._finished(last_s):
            begun_s = time.perf_counter()
            try:
                reading = self._source.read()
                if last_s is None or reading.time_s > last_s:
                    last_s = reading.time_s
                    self._take(reading)
                    self.samples += 1
            except SensorError as exc:
                if not self._over.is_set() or begun_s < self._stopped_s:
                    self.missed, self.why = self.missed + 1, str(exc)
                self._pause(min(1.0, max(self._period_s, 0.01)))
            except Exception as exc:
                self.failure = exc
                return
            now_s = time.perf_counter()
            due_s = max(due_s + self._period_s, now_s - self._period_s)  # no catching up on missed periods
            self._pause(due_s - now_s)

    def _finished(self, last_s: float | None) -> bool:
        """Whether `stop` was called and a reading of later came, or none in time."""
        if not self._over.is_set():
            return False
        return (last_s is not None and last_s >= self._stopped_s) or time.perf_counter() >= self._stopped_s + LAST_S

    def _pause(self, seconds: float) -> None:
        """Wait, until `stop` is called at most; afterwards for `LAST_STEP_S`."""
        if self._over.is_set():
            time.sleep(LAST_STEP_S)
        else:
            self._over.wait(max(0.0, seconds))
