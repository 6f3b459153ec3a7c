"""Power sampling of a base station, for its metrics."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from testbed.config import ServeConfig
from testbed.errors import BadInput
from testbed.power.meter import Meter
from testbed.power.sampler import Sampler
from testbed.power.sources import AUTO, BS, NONE, open_source

LOG = logging.getLogger(__name__)


@contextlib.contextmanager
def metered(config: ServeConfig) -> Iterator[Meter | None]:
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
    with contextlib.closing(source):
        meter = Meter(source, source.period_s)
        sampler = Sampler(source, meter.take)
        sampler.start()
        try:
            yield meter
        finally:
            sampler.stop()
