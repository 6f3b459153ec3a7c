"""Reads a source at a steady pace, in a thread of its own, and passes on what it says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from testbed.errors import SensorError
from testbed.power.reading import PowerSource, Reading

STOP_S = 10.0
"""How long a thread may take to end: longer than any source waits."""


class Sampler:
    """Samples until it is stopped; keeps nothing but two counts.

    Args:
        take: called in the sampler's thread with each reading. What it raises ends the sampling.
        period_s: None: the source's own; what blocks until there is something new keeps its own, 0.

    Attributes:
        samples: readings passed on.
        missed: times the source had nothing to say.
        why: what it was the last time; empty where nothing was missed.
        failure: what ended the sampling.
    """

    def __init__(self, source: PowerSource, take: Callable[[Reading], None], period_s: float | None = None) -> None:
        self._source, self._take = source, take
        own = period_s is None or not source.period_s  # a program that prints sets the pace
        self._period_s = source.period_s if own else period_s or 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="power", daemon=True)
        self.samples = self.missed = 0
        self.why = ""
        self.failure: Exception | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; a second time does nothing. The source is whose it was."""
        if not self._over.is_set():
            self._over.set()
            self._thread.join(STOP_S)

    def _run(self) -> None:
        due_s = time.perf_counter()
        last_s = None
        while not self._over.is_set():
            try:
                reading = self._source.read()
                if last_s is None or reading.time_s > last_s:
                    last_s = reading.time_s
                    self._take(reading)
                    self.samples += 1
            except SensorError as exc:
                self.missed, self.why = self.missed + 1, str(exc)
                self._over.wait(min(1.0, max(self._period_s, 0.01)))
            except Exception as exc:
                self.failure = exc
                return
            now_s = time.perf_counter()
            due_s = max(due_s + self._period_s, now_s - self._period_s)  # what was missed is not made up for
            self._over.wait(max(0.0, due_s - now_s))
