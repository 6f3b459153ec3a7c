"""UEs in the process of the radio: ports of their connections, and how they go from one cell to the next."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from multiprocessing.connection import Connection

from testbed.channel.link_model import Carrier
from testbed.channel.proxy import Proxy
from testbed.channel.radio.mac import RadioCell
from testbed.channel.radio.ports import RadioPort
from testbed.experiments.cell.several.tally import RoamingTally
from testbed.experiments.cell.several.ue import RoamingPorts
from testbed.experiments.cell.stations import Migration


class Ways:
    """Ports of one UE's connections, in the cell in which it is."""

    def __init__(self, number: int, weight: float, cell: RadioCell | None = None) -> None:
        self._cell, self._number, self._weight = cell, number, weight
        self._made: list[tuple[RadioPort, RadioPort]] = []
        self._first_here = 0
        """The first of them in this cell."""

    def enter(self, cell: RadioCell) -> None:
        """Make the ports of further connections in this cell."""
        self._cell, self._first_here = cell, len(self._made)

    def leave(self) -> None:
        """Leave the cell: what has not arrived is lost."""
        if self._cell is not None:
            for port in (port for ports in self._made[self._first_here :] for port in ports):
                self._cell.detach(port)
        self._cell = None

    def make(self, connection: int) -> tuple[Carrier, Carrier]:
        """Ports of a connection (a `MakePath`)."""
        assert self._cell is not None, "a UE in no cell connects to nothing"
        up, down = (self._cell.port(self._number, way, self._weight) for way in (True, False))
        self._made.append((up, down))
        return up, down

    def times(self, slot_s: float) -> tuple[float, float, float, float]:
        """Time of the slots in which it has sent and received, and the same times its shares of the bandwidth."""
        up, down = ([ports[way] for ports in self._made] for way in (0, 1))
        sent, received = (sum(port.slots for port in ports) * slot_s for ports in (up, down))
        return sent, received, sum(port.used for port in up) * slot_s, sum(port.used for port in down) * slot_s


class ProcessRoamer:
    """Implements `Roamer`: a UE among the radio cells of a run with processes, where keys and values do not move."""

    def __init__(self, radios: Sequence[RadioCell]) -> None:
        self._radios = radios
        self.station: int | None = None

    def move(self, migration: Migration) -> float:
        """See `Roamer.move`."""
        return 0.0

    def lose(self) -> None:
        """See `Roamer.lose`: base stations do so by themselves."""

    def fail(self) -> None:
        """See `Roamer.fail`: none does."""


class RelayedUe(ProcessRoamer):
    """A UE that decodes in a process of its own, which is told where it is.

    Args:
        proxy: relays its connections.
        targets: host and port of the base station of each cell.
        line: to its process; takes None when it leaves a cell, and the number of the next one with whether it was
            handed over to it.
    """

    def __init__(
        self,
        radios: Sequence[RadioCell],
        ways: Ways,
        proxy: Proxy,
        targets: Sequence[tuple[str, int]],
        line: Connection,
    ) -> None:
        super().__init__(radios)
        self._ways, self._proxy, self._targets, self._line = ways, proxy, targets, line

    def leave(self) -> None:
        """See `Roamer.leave`: its connections are aborted."""
        self.station = None
        self._proxy.hand_over(None)
        self._ways.leave()
        self._tell(None)

    def arrive(self, number: int, handover: bool) -> None:
        """See `Roamer.arrive`."""
        self.station = number
        self._ways.enter(self._radios[number])
        self._proxy.hand_over(self._targets[number])
        self._tell((number, handover))

    def _tell(self, notice: tuple[int, bool] | None) -> None:
        with contextlib.suppress(OSError):  # its process has ended
            self._line.send(notice)


class SendingUe(ProcessRoamer):
    """A UE that sends bytes.

    Attributes:
        tally: counts its moves; None: nothing is counted yet.
    """

    def __init__(self, radios: Sequence[RadioCell], ports: RoamingPorts) -> None:
        super().__init__(radios)
        self.ports = ports
        self.tally: RoamingTally | None = None

    def counted(self, tally: RoamingTally) -> None:
        """Count from now on."""
        self.tally = tally
        if self.station is not None:
            tally.arrived(self.station, handover=False)

    def leave(self) -> None:
        """See `Roamer.leave`."""
        self.station = None
        for port in self.ports.values():
            port.detach()
        if self.tally is not None:
            self.tally.left(decoding=False)

    def arrive(self, number: int, handover: bool) -> None:
        """See `Roamer.arrive`."""
        self.station = number
        for port in self.ports.values():
            port.attach(self._radios[number])
        if self.tally is not None:
            self.tally.arrived(number, handover)
