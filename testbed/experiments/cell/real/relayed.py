"""The radio between the connections of processes: ports of one UE's connections as one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from testbed.channel.link_model import Carrier
from testbed.channel.radio.air import Air, AirState
from testbed.channel.radio.mac import RadioCell
from testbed.channel.radio.ports import RadioPort
from testbed.experiments.cell.control.radio import WeightedPort


class StartedAir:
    """Implements `Air`: channels that begin with the run, seconds after the first slot; until then, they stay as they
    are at their beginning.

    Attributes:
        start_s: time of the start since the first slot, once it is known.
    """

    def __init__(self, air: Air) -> None:
        self._air, self.start_s = air, math.inf

    def _since(self, t_s: float) -> float:
        return max(0.0, t_s - self.start_s)

    def efficiency(self, ue: int, up: bool, t_s: float) -> float:
        """See `Air.efficiency`."""
        return self._air.efficiency(ue, up, self._since(t_s))

    def state(self, ue: int, up: bool, t_s: float) -> AirState:
        """See `Air.state`."""
        return self._air.state(ue, up, self._since(t_s))

    def ideal(self, ue: int, up: bool, t_s: float) -> AirState:
        """See `Air.ideal`."""
        return self._air.ideal(ue, up, self._since(t_s))

    def learn(self, ue: int, up: bool, lost: bool) -> None:
        """See `Air.learn`."""
        self._air.learn(ue, up, lost)


class RelayedCell(NamedTuple):
    """Implements `ControlledRadio`: one cell behind relays."""

    cell: RadioCell
    air: Air
    ports: Sequence[Mapping[bool, WeightedPort]]


class RelayedPorts:
    """Implements `WeightedPort`: one direction of all connections of a UE, past ones included, in whatever cell it is.

    Args:
        cell: the cell in which it begins; None: it is in none.
    """

    def __init__(self, ue: int, up: bool, weight: float, cell: RadioCell | None = None) -> None:
        self._ue, self._up, self._weight, self._cell = ue, up, weight, cell
        self._made: list[RadioPort] = []
        self._first_here = 0
        """The first of them in this cell."""

    def enter(self, cell: RadioCell) -> None:
        """Make the ports of further connections in this cell."""
        self._cell, self._first_here = cell, len(self._made)

    def leave(self) -> None:
        """Leave the cell: what has not arrived is lost."""
        if self._cell is not None:
            for port in self._made[self._first_here :]:
                self._cell.detach(port)
        self._cell = None

    def make(self) -> RadioPort:
        """The port of a new connection."""
        assert self._cell is not None, "a UE in no cell connects to nothing"
        self._made.append(self._cell.port(self._ue, self._up, self._weight))
        return self._made[-1]

    @property
    def weight(self) -> float:
        """See `RadioPort`."""
        return self._weight

    @weight.setter
    def weight(self, weight: float) -> None:
        self._weight = weight
        for port in self._made:
            port.weight = weight

    @property
    def slots(self) -> int:
        """See `RadioPort`."""
        return sum(port.slots for port in self._made)

    @property
    def backlogged(self) -> int:
        """See `RadioPort`."""
        return sum(port.backlogged for port in self._made)

    @property
    def used(self) -> float:
        """See `RadioPort`."""
        return sum(port.used for port in self._made)


class RelayedWays:
    """Both directions of a UE's connections; arguments as in `RelayedPorts`."""

    def __init__(self, ue: int, weight: float, cell: RadioCell | None = None) -> None:
        self.up, self.down = (RelayedPorts(ue, way, weight, cell) for way in (True, False))

    def enter(self, cell: RadioCell) -> None:
        """See `RelayedPorts.enter`."""
        self.up.enter(cell)
        self.down.enter(cell)

    def leave(self) -> None:
        """See `RelayedPorts.leave`."""
        self.up.leave()
        self.down.leave()

    def make(self, connection: int) -> tuple[Carrier, Carrier]:
        """Ports of a connection (a `MakePath`)."""
        return self.up.make(), self.down.make()

    def times(self, slot_s: float) -> tuple[float, float, float, float]:
        """Time of the slots in which it has sent and received, and the same times its shares of the bandwidth."""
        up, down = self.up, self.down
        return up.slots * slot_s, down.slots * slot_s, up.used * slot_s, down.used * slot_s
