"""UEs in the process of the radio: how they go from one cell to the next."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from multiprocessing.connection import Connection

from testbed.channel.proxy import Proxy
from testbed.channel.radio.mac import RadioCell
from testbed.experiments.cell.real.relayed import RelayedWays
from testbed.experiments.cell.several.tally import RoamingTally
from testbed.experiments.cell.several.ue import RoamingPorts
from testbed.experiments.cell.stations import Migration


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
        ways: RelayedWays,
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
