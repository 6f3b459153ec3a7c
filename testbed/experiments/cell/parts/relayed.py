"""The radio between the connections of processes: ports of one UE's connections as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from testbed.channel.link_model import Carrier
from testbed.channel.radio.mac import RadioCell
from testbed.channel.radio.ports import RadioPort
from testbed.experiments.cell.config import CellConfig, UeGroup, radio_ues
from testbed.experiments.cell.control.radio import WeightedPort


class RelayedRadio:
    """Implements `ControlledRadio`, on the running event loop's clock.

    Args:
        members: the group of each UE of the cell, by number.
    """

    def __init__(self, config: CellConfig, members: Sequence[UeGroup]) -> None:
        self.air = config.radio.air(radio_ues(config), config.seconds, config.seed)
        self.cell = RadioCell(config.radio, self.air, config.seed)
        self.ways: dict[int, RelayedWays] = {}
        """Those of UEs that decode."""
        self.senders: dict[int, RadioPort] = {}
        """Uplinks of UEs that send bytes."""
        self.ports: list[Mapping[bool, WeightedPort]] = []
        for number, group in enumerate(members):
            if group.traffic == "tokens":
                ways = self.ways[number] = RelayedWays(self.cell, number, group.weight)
                self.ports.append({True: ways.up, False: ways.down})
            else:
                port = self.senders[number] = self.cell.port(number, True, group.weight)
                self.ports.append({True: port})


class RelayedPorts:
    """Implements `WeightedPort`: one direction of all connections of a UE, past ones included."""

    def __init__(self, cell: RadioCell, ue: int, up: bool, weight: float) -> None:
        self._cell, self._ue, self._up, self._weight = cell, ue, up, weight
        self._made: list[RadioPort] = []

    def make(self) -> RadioPort:
        """The port of a new connection."""
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
    def used(self) -> float:
        """See `RadioPort`."""
        return sum(port.used for port in self._made)


class RelayedWays:
    """Both directions of a UE's connections."""

    def __init__(self, cell: RadioCell, number: int, weight: float) -> None:
        self._slot_s = cell.config.slot_s
        self.up, self.down = (RelayedPorts(cell, number, way, weight) for way in (True, False))

    def make(self, connection: int) -> tuple[Carrier, Carrier]:
        """Ports of a connection (a `MakePath`)."""
        return self.up.make(), self.down.make()

    def times(self) -> tuple[float, float, float, float]:
        """Time of the slots in which it has sent and received, and the same times its shares of the bandwidth."""
        up, down = self.up, self.down
        sent, received, up_used, down_used = (
            part * self._slot_s for part in (up.slots, down.slots, up.used, down.used)
        )
        return sent, received, up_used, down_used
