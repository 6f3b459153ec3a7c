"""Configuration of several base stations, each with a radio cell and an engine of its own."""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple

from testbed.channel.radio.handover import Handover
from testbed.channel.radio.network import FARTHEST_M
from testbed.errors import BadInput
from testbed.options import Config, option

MOST_STATIONS, MOST_SECTORS = 256, 12
MOST_NAME = 100
"""Characters of a name, of a base station or of a group of UEs."""


def check_name(what: str, name: str) -> None:
    """Refuse a name that is too long for messages and tables.

    Raises:
        BadInput: more than `MOST_NAME` characters.
    """
    if len(name) > MOST_NAME:
        raise BadInput(f"the name of {what} has {len(name)} characters; at most {MOST_NAME}")


class Station(Config, frozen=True):
    """A base station."""

    name: str
    at_m: tuple[float, float]
    """Place: x, y."""
    azimuths_deg: tuple[float, ...] = ()
    """Boresights of its sectors, each a cell, counterclockwise from x. Default: one cell, omnidirectional."""
    profile: Annotated[str | None, option("Pass times: a profile's name or file. Default: that of `bs`.")] = None
    down_s: tuple[float, float] | None = None
    """Times of the run at which it fails and is back, without the keys and values that it had. Default: never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("a base station", self.name)
        if len(self.azimuths_deg) > MOST_SECTORS:
            raise BadInput(f"base station {self.name} has {len(self.azimuths_deg)} sectors; at most {MOST_SECTORS}")
        known = {azimuth % 360 for azimuth in self.azimuths_deg if math.isfinite(azimuth)}
        if len(known) < len(self.azimuths_deg):
            raise BadInput(f"sectors of base station {self.name} need different azimuths in degrees")
        if self.down_s is not None and not 0 < self.down_s[0] < self.down_s[1]:
            raise BadInput(f"base station {self.name}: down_s needs two times [from, to] after 0 s, in order")


class Migration(Config, frozen=True):
    """What becomes of the keys and values of sessions whose UE is handed over."""

    kind: Annotated[
        Literal["prefill", "move"], option("They are computed anew, or moved before the UE is served again.")
    ] = "prefill"
    token_bytes: Annotated[
        int, option("Keys and values of a token; default: Qwen3-32B in 16 bits.", least=1, most=2**30, unit="bytes")
    ] = 262144
    backhaul_bps: Annotated[
        float, option("Rate between two base stations, for each UE.", above=0, most=1e13, unit="bit/s")
    ] = 10e9

    def seconds(self, tokens: int) -> float:
        """Time in which keys and values are moved."""
        return 8 * tokens * self.token_bytes / self.backhaul_bps


class NamedCell(NamedTuple):
    """A cell of a base station."""

    name: str
    station: int
    """Number of its base station."""
    at_m: tuple[float, float]
    azimuth_deg: float | None


class CellsConfig(Config, frozen=True):
    """Base stations between which UEs move.

    Raises:
        BadInput: fewer than two, names or places that are taken, or a value out of range.
    """

    stations: tuple[Station, ...] = ()
    handover: Handover = Handover()
    migration: Migration = Migration()
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
        if not all(abs(metres) <= FARTHEST_M for place in places for metres in place) or len(set(places)) < len(places):
            raise BadInput(f"base stations need different places within {FARTHEST_M:g} m")

    @property
    def cells(self) -> list[NamedCell]:
        """The cells of all base stations, in order; those of a base station with sectors are NAME/1, NAME/2."""
        found = []
        for number, station in enumerate(self.stations):
            for sector, azimuth_deg in enumerate(station.azimuths_deg, 1):
                found.append(NamedCell(f"{station.name}/{sector}", number, station.at_m, azimuth_deg))
            if not station.azimuths_deg:
                found.append(NamedCell(station.name, number, station.at_m, None))
        return found
