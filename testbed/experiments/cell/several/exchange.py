"""What groups of base stations exchange from one window of time to the next."""

from __future__ import annotations

from typing import NamedTuple

from testbed.channel.radio.network import Used
from testbed.channel.trace import Array
from testbed.experiments.cell.parts.counting import Snapshot
from testbed.experiments.cell.several.roaming import Due


class Division(NamedTuple):
    """Which base stations a group has."""

    stations: tuple[tuple[int, ...], ...]
    """Numbers of the base stations of all groups."""
    number: int = 0
    """The group."""


class Transit(NamedTuple):
    """A UE on its way to a cell of another group."""

    ue: int
    due: Due
    measured: tuple[Array, Array]
    """See `Roaming.release`."""
    told: list[bytes]
    """See `Record`."""
    known: dict[int, int]
    left_s: float
    arrivals: int
    sessions: dict[int, tuple[int, bool]]
    """Its sessions in progress: see `Moved`."""
    aired: dict[bool, tuple[int, float]]
    """What its ports have counted, by direction."""


class Inbox(NamedTuple):
    """What a group is given by the others, from window to window."""

    used: tuple[Used, ...] = ()
    ues: tuple[Transit, ...] = ()


class Outbox(NamedTuple):
    """What a group gives to the others."""

    used: Used | None
    """What its cells used in the window that has ended; None: none has, or cells do not interfere."""
    ues: dict[int, list[Transit]]
    """UEs by the group to which they go."""
    snapshot: Snapshot | None


class Stop(NamedTuple):
    """A time at which groups exchange what they have, or are looked at."""

    at_s: float
    window: int | None = None
    """The window of time that has ended; None: none."""
    look: bool = False
    """Whether a snapshot is wanted."""
    whole: bool = False
    """Whether it is one with the cells."""
