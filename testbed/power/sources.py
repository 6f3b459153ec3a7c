"""Power sources by name, and detection of those available on a machine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from testbed.errors import BadInput, SensorError
from testbed.power.files import read_samples
from testbed.power.reading import PowerSource, Reading, joined
from testbed.power.replay import Replay
from testbed.power.sensors.jetson import Jetson
from testbed.power.sensors.nvml import Nvml
from testbed.power.sensors.pi import RaspberryPi
from testbed.power.sensors.rapl import Rapl
from testbed.power.sensors.tegrastats import Tegrastats

SOURCES: dict[str, Callable[[], PowerSource]] = {
    "jetson": Jetson,
    "tegrastats": Tegrastats,
    "pi": RaspberryPi,
    "rapl": Rapl,
    "nvml": Nvml,
}
UE = ("jetson", "tegrastats", "pi", "rapl")
"""Sources that `auto` tries on a UE; it takes the first available."""
BS = ("nvml", "rapl")
"""Sources that `auto` tries on a BS; it takes all available."""
NONE, AUTO = "none", "auto"


def check_source(name: str) -> None:
    """Check the name of a source without opening it.

    Raises:
        BadInput: neither a known name nor an existing file.
    """
    if name in (NONE, AUTO) or Path(name).is_file():
        return
    unknown = [part for part in name.split(",") if part not in SOURCES]
    if unknown:
        known = ", ".join([AUTO, NONE, *SOURCES])
        raise BadInput(f"unknown power source {unknown[0]!r}; known: {known}, or a FILE of samples")


def open_source(name: str, candidates: Sequence[str], every: bool = False) -> PowerSource | None:
    """Open a source by name, or the sum of several, separated by commas.

    Args:
        name: one of `SOURCES`, `auto`, `none`, or a file of samples to replay.
        candidates: sources that `auto` tries; it takes the first available.
        every: `auto` takes all available sources that can be summed.

    Returns:
        None for `none`, and for `auto` if no source is available.

    Raises:
        BadInput: unknown, not available on this machine, or sources that cannot be summed.
    """
    check_source(name)
    if name == NONE:
        return None
    if name == AUTO:
        available = [one.name for one in survey(candidates, stop=not every) if one.total is not None]
        return _sum(available, strict=False) if available else None
    if name.split(",")[0] not in SOURCES:
        return Replay(read_samples(Path(name)))
    return _sum(list(dict.fromkeys(name.split(","))))


class SourceSearch(NamedTuple):
    """Whether a source is available."""

    name: str
    total: str | None
    """Description of what its power covers; None: not available."""
    why: str
    """Reason if it is not available."""


def survey(names: Sequence[str], stop: bool = False) -> list[SourceSearch]:
    """Find the available sources by opening each of them.

    Args:
        stop: stop at the first available source.
    """
    found = []
    for name in names:
        found.append(_try(name))
        if stop and found[-1].total is not None:
            break
    return found


def _try(name: str) -> SourceSearch:
    try:
        source = SOURCES[name]()
    except SensorError as exc:
        return SourceSearch(name, None, str(exc))
    source.close()
    return SourceSearch(name, source.total, "")


def _sum(names: Sequence[str], strict: bool = True) -> PowerSource:
    """Open sources and sum them; if not strict, only those that can be added to the first."""
    with contextlib.ExitStack() as unneeded:
        opened: list[PowerSource] = []
        try:
            for name in names:
                opened.append(SOURCES[name]())
                unneeded.callback(opened[-1].close)
        except SensorError as exc:
            raise BadInput(f"power source {name}: {exc}") from exc
        alike = [source for source in opened if source.mean == opened[0].mean]
        if strict and len(alike) < len(opened):
            raise BadInput(f"power of {','.join(names)} cannot be added up: only some of them count energy; give one")
        unneeded.pop_all()
        for source in opened:
            if source not in alike:
                source.close()
    return alike[0] if len(alike) == 1 else Sum(alike)


class Sum:
    """Sum of several sources, which must agree in `mean`."""

    def __init__(self, sources: Sequence[PowerSource]) -> None:
        self._sources = sources
        self.name = ",".join(source.name for source in sources)
        self.mean = sources[0].mean
        self.period_s = max(source.period_s for source in sources)
        self.total = " + ".join(f"{source.name} ({source.total})" for source in sources)

    def read(self) -> Reading:
        """See `PowerSource`."""
        readings = [source.read() for source in self._sources]
        temps = [reading.temp_c for reading in readings if reading.temp_c is not None]
        given = [reading.throttled for reading in readings if reading.throttled is not None]
        return Reading(
            max(reading.time_s for reading in readings),
            {
                f"{s.name}:{rail}": w
                for s, r in zip(self._sources, readings, strict=True)
                for rail, w in r.rails.items()
            },
            sum(reading.total_w for reading in readings),
            max(temps, default=None),
            joined(part for reason in given for part in reason.split("+")) if given else None,
        )

    def close(self) -> None:
        """Close all."""
        for source in self._sources:
            source.close()
