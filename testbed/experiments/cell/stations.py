"""Configuration of several base stations, each with a radio cell and an engine of its own."""

from __future__ import annotations

import math
from typing import Annotated

from testbed.channel.radio.handover import Handover
from testbed.errors import BadInput
from testbed.options import Config, option

MOST_STATIONS = 256


class Station(Config, frozen=True):
    """A base station."""

    name: str
    at_m: tuple[float, float]
    """Place: x, y."""
    profile: Annotated[str | None, option("Pass times: a profile's name or file. Default: that of `bs`.")] = None


class CellsConfig(Config, frozen=True):
    """Base stations between which UEs move.

    Raises:
        BadInput: fewer than two, names or places that are taken, or a value out of range.
    """

    stations: tuple[Station, ...] = ()
    handover: Handover = Handover()
    interference_ms: Annotated[
        float,
        option(
            "Window of time: the bandwidth that a cell uses in one interferes with the others in the next; 0: none.",
            least=0,
            most=1e4,
            unit="ms",
        ),
    ] = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= len(self.stations) <= MOST_STATIONS:
            raise BadInput(f"cells need 2..{MOST_STATIONS} stations, not {len(self.stations)}")
        names = [station.name for station in self.stations]
        if not all(names) or len(set(names)) < len(names):
            raise BadInput(f"base stations need different names, not {', '.join(names)}")
        places = [station.at_m for station in self.stations]
        if not all(math.isfinite(metres) for place in places for metres in place) or len(set(places)) < len(places):
            raise BadInput("base stations need different places in metres")
