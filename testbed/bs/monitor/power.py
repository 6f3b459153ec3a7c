"""Power sampling of a base station, for its metrics."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from testbed.config import ServeConfig
from testbed.errors import BadInput
from testbed.power.meter import Meter
from testbed.power.reading import PowerSource
from testbed.power.sampler import Sampler
from testbed.power.sources import AUTO, BS, NONE, open_source

LOG = logging.getLogger(__name__)
WATCH_S = 1.0
"""Time between checks that sampling goes on."""


class BsMeter:
    """Samples a power source into running totals until it is closed."""

    def __init__(self, source: PowerSource) -> None:
        self._source, self._meter = source, Meter(source, source.period_s)
        self._sampler = self._start()

    def snapshot(self) -> dict[str, Any]:
        """Totals so far and the last reading, as a JSON document."""
        return self._meter.snapshot()

    async def watch(self) -> None:
        """Wait until sampling fails, and start it again.

        Raises:
            Exception: what ended the sampling.
        """
        while (failure := self._sampler.failure) is None:
            await asyncio.sleep(WATCH_S)
        self._sampler = self._start()
        raise failure

    def close(self) -> None:
        """Stop sampling."""
        self._sampler.stop()

    def _start(self) -> Sampler:
        sampler = Sampler(self._source, self._meter.take)
        sampler.start()
        return sampler


@contextlib.contextmanager
def metered(config: ServeConfig) -> Iterator[BsMeter | None]:
    """Sample the machine's power within the block; None: power is off, or `auto` finds no sensor.

    Raises:
        BadInput: this machine lacks the source, or there is no metrics file to write to.
    """
    if config.power in (None, NONE):
        yield None
        return
    if config.metrics is None:
        raise BadInput("power is counted in the metrics: give --metrics FILE with --power")
    source = open_source(str(config.power), BS, every=True)
    if source is None:
        if config.power == AUTO:
            LOG.warning("no power sensor on this machine (testbed doctor lists them): energy is not counted")
        yield None
        return
    with contextlib.closing(source), contextlib.closing(BsMeter(source)) as meter:
        yield meter
