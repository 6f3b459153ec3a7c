"""Samples power during a run, from before its first prompt to after its last: into `power.csv` during the run, and
`power.parquet` at its end.
"""

from __future__ import annotations

import contextlib
import logging
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from testbed.clock import unix_zero_s
from testbed.config import RunConfig
from testbed.errors import BadInput, SensorError, TestbedError
from testbed.experiments.results.energy import measured
from testbed.power.accounting import mean_w
from testbed.power.files import Log, read_samples, write_parquet
from testbed.power.reading import PowerSource, Reading
from testbed.power.sampler import Sampler
from testbed.power.series import Samples
from testbed.power.sources import AUTO, NONE, UE, check_source, open_source
from testbed.ue.run import Outcome

LOG = logging.getLogger(__name__)
UNDER_WAY, SAMPLES = "power.csv", "power.parquet"
DATE_BACK = "date_back_s"
"""Field of `summary.json`: by how much the date was behind the end of an interrupted part when the run was resumed."""
TRIES = 20
FIRST_S = 0.05
"""Delay between attempts to read a sensor for the first time."""


def check_power(config: RunConfig) -> None:
    """Refuse power sources that do not exist.

    Raises:
        BadInput: an unknown power source.
    """
    if config.power is not None:
        check_source(config.power)


class PowerWatch:
    """Samples power during a run.

    Args:
        source: power source; the caller closes it.
        out: directory of the run; None: none.
        again: whether the run is resumed.

    Raises:
        BadInput: `power.csv` is not writable, or was started with other sensors.
        SensorError: the source gives no readings.
    """

    def __init__(
        self, source: PowerSource, out: Path | None, again: bool = False, period_s: float | None = None
    ) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="testbed-power-") if out is None else None
        self._out = out
        self._path = Path(self._scratch.name if self._scratch else str(out)) / UNDER_WAY
        self._zero_s, self._source = unix_zero_s(), source
        self._idle: tuple[float, float] | None = None
        try:
            rails = list(_first(source).rails)
            self._log = Log(self._path, source, rails, self._zero_s, again)
        except BaseException:
            self._clear()
            raise
        self._sampler = Sampler(source, self._log.take, period_s)
        self._sampler.start()

    def idle(self, seconds: float) -> None:
        """Sample the idle device."""
        begin_s = time.perf_counter()
        time.sleep(seconds)
        self._idle = (begin_s + self._zero_s, time.perf_counter() + self._zero_s)

    def stop(self) -> None:
        """Stop sampling; idempotent."""
        self._sampler.stop()
        self._log.close()

    def leave(self) -> None:
        """Stop without computing energy; the log stays for a resumed run."""
        self.stop()
        self._clear()

    def account(self, outcomes: Sequence[Outcome]) -> tuple[list[Outcome], dict[str, Any]]:
        """Stop and write `power.parquet`; returns the outcomes with energy, and the `power` entry of `summary.json`.

        Raises:
            BadInput: pyarrow is missing.
            TestbedError: no samples, or `power.parquet` is not writable.
        """
        self.stop()
        try:
            samples = read_samples(self._path)
        except BadInput as exc:
            why = f": {self._sampler.failure}" if self._sampler.failure else ""
            kept = "; the outputs are kept, and --resume finishes the run" if self._out is not None else ""
            raise TestbedError(f"no power was measured{why} ({exc}){kept}") from exc
        if self._out is not None:
            write_parquet(self._out / SAMPLES, samples)
        idle_w = mean_w(samples, *self._idle) if self._idle and self._idle[1] > self._idle[0] else None
        return accounted(outcomes, samples), facts(samples) | {
            "missed": self._sampler.missed,
            "missed_why": self._sampler.why or None,
            "idle_w": idle_w,
            "idle_s": self._idle[1] - self._idle[0] if self._idle else None,
            "failure": str(self._sampler.failure) if self._sampler.failure else None,
        }

    def _clear(self) -> None:
        if self._scratch is not None:
            self._scratch.cleanup()


@contextlib.contextmanager
def source_of(config: RunConfig) -> Iterator[PowerSource | None]:
    """Open the power source of a run; None: power is off, or `auto` finds no sensor.

    Raises:
        BadInput: this machine does not have the source.
    """
    source = open_source(config.power or NONE, UE)
    if source is None:
        if config.power == AUTO:
            LOG.warning("no power sensor on this machine (see testbed doctor); energy is not measured")
        yield None
        return
    with contextlib.closing(source):
        yield source


@contextlib.contextmanager
def watching(
    config: RunConfig, source: PowerSource | None, out: Path | None, again: bool
) -> Iterator[PowerWatch | None]:
    """Measure the idle device, then sample during the run; after an interruption the log stays.

    Raises:
        BadInput, SensorError: see `PowerWatch`.
    """
    if source is None:
        yield None
        return
    watch = PowerWatch(source, out, again, config.power_period_s)
    try:
        watch.idle(config.power_idle_s)
        yield watch
    finally:
        watch.leave()


def finish(out: Path) -> None:
    """Remove the temporary log of a finished run."""
    (out / UNDER_WAY).unlink(missing_ok=True)


def settled(watch: PowerWatch | None, outcomes: list[Outcome]) -> tuple[list[Outcome], dict[str, Any] | None]:
    """Outcomes of a run, with energy if power was sampled."""
    return (outcomes, None) if watch is None else watch.account(outcomes)


def accounted(outcomes: Sequence[Outcome], samples: Samples) -> list[Outcome]:
    """Outcomes with the energy of their rounds."""
    records = measured([outcome.record for outcome in outcomes], samples)
    return [replace(outcome, record=record) for outcome, record in zip(outcomes, records, strict=True)]


def facts(samples: Samples) -> dict[str, Any]:
    """Statistics of power samples for `summary.json`."""
    steps_s = np.diff(samples.time_s)
    gaps_s = steps_s[steps_s > samples.gap_s]
    temps = samples.temp_c if samples.temp_c is not None else np.zeros(0)
    known = temps[np.isfinite(temps)]
    throttled = [reason for reason in samples.throttled or () if reason is not None]
    return {
        "source": samples.source,
        "total": samples.total,
        "mean": samples.mean,
        "samples": len(samples.time_s),
        "skipped": samples.skipped,
        "period_s": float(np.median(steps_s)),
        "gaps": len(gaps_s),
        "gaps_s": math.fsum(gaps_s),
        "temp_c_max": float(known.max()) if len(known) else None,
        "throttled_samples": sum(map(bool, throttled)) if throttled else None,
    }


def _first(source: PowerSource) -> Reading:
    """First reading, retried for `TRIES` × `FIRST_S`."""
    for _ in range(TRIES - 1):
        time.sleep(FIRST_S)
        try:
            return source.read()
        except SensorError:
            continue
    return source.read()
