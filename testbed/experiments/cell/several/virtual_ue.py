"""A UE that moves between base stations, as a logical process: its life, and what base stations have it do."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from testbed.channel.radio.adaptation import OUT_OF_RANGE, AdaptedAir
from testbed.channel.radio.air import AirState
from testbed.channel.virtual import Sizer, VirtualLink, VirtualServerLink
from testbed.errors import EngineError
from testbed.experiments.cell.parts.counting import Site
from testbed.experiments.cell.planning import ue_name
from testbed.experiments.cell.several.cache import Moved, RoamingCache, session_of
from testbed.experiments.cell.several.tally import RoamingTally
from testbed.experiments.cell.several.told import Record, Told
from testbed.experiments.cell.several.ue import RoamingClient, RoamingPorts
from testbed.experiments.cell.stations import Migration
from testbed.virtual_time import LogicalProcess, Simulation


@dataclass
class RoamingSite:
    """A cell that takes UEs over; cells of one base station have one cache."""

    site: Site
    cache: RoamingCache


class RoamingWay:
    """Implements `OneWay`: a port whose messages the UE counts."""

    def __init__(self, ue: VirtualUe, up: bool) -> None:
        self._ue, self._up = ue, up

    def carry(self, size_bytes: float, deliver: Callable[[], None]) -> None:
        """See `OneWay.carry`."""
        ue, up = self._ue, self._up
        sent_s = ue.tally.sends(up)

        def arrived() -> None:
            if up:
                ue.tell("sent", size_bytes, sent_s)
            deliver()

        ue.ports[up].carry(size_bytes, arrived, ue.tally.due_s)


class VirtualUe:
    """A UE.

    Args:
        client: None: it sends bytes.
        record: keeps what it is told; None: nothing needs it.
    """

    def __init__(
        self,
        number: int,
        simulation: Simulation,
        ports: RoamingPorts,
        tally: RoamingTally,
        client: RoamingClient | None,
        sizers: tuple[Sizer, Sizer] | None,
        record: Record | None,
    ) -> None:
        self.number, self.ports, self.tally, self.client = number, ports, tally, client
        self.process = LogicalProcess(simulation, number)
        self.ways = RoamingWay(self, True), RoamingWay(self, False)
        self.record = record
        self._simulation, self._sizers = simulation, sizers
        self._link: VirtualLink | None = None
        self._joined = 0

    def tell(self, name: str, *arguments: Any, **local: Any) -> None:
        """Have the UE call one of its methods now.

        Args:
            local: arguments that mean nothing in another process.
        """
        if self.record is not None:
            self.record.add(Told(self.process.runs, self._simulation.now_s, name, arguments))
        self.process.call_soon(partial(getattr(self, name), *arguments, **local))

    def follow(self, told: Iterable[Told], until_s: float, life: Coroutine[Any, Any, None] | None) -> None:
        """Go through what it was told in another process, up to a time.

        Args:
            life: its life, if it has not begun here; it begins behind the first entry.
        """
        process, simulation = self.process, self._simulation
        for one in told:
            while process.runs < one.runs:
                if process.next_s > one.at_s:
                    raise EngineError(f"UE {self.number} does not do again what it did in another process")
                self._run_next()
            simulation.now_s = one.at_s
            process.call_soon(partial(getattr(self, one.name), *one.arguments))
            if life is not None:
                process.begin(life)
                life = None
        while process.next_s < until_s:
            self._run_next()
        simulation.now_s = until_s
        if process.next_s < math.inf:
            simulation.schedule(process, process.next_s)

    def _run_next(self) -> None:
        self._simulation.now_s = self.process.next_s
        self.process.run()

    def arrived(self, cell: int, handover: bool, link: VirtualLink | None = None) -> None:
        """A cell serves it; `link`: to its base station, none where this is followed."""
        self._joined += 1
        self.tally.arrived(cell, handover)
        if self.client is not None and self._sizers is not None:
            self._link = link or VirtualServerLink().attach(b"ue", *self.ways, self._sizers, patient=True)
            self.client.join(self._link)

    def left(self, decoding: bool) -> None:
        """The cell serves it no more."""
        if self.client is not None:
            self.client.leave()
        self.tally.left(decoding)

    def sent(self, size_bytes: float, sent_s: float | None) -> None:
        """A message of it has arrived."""
        self.tally.arrives(True, size_bytes, sent_s)

    def received(self, joined: int, frames: list[bytes], size_bytes: int) -> None:
        """A message arrives, over the link to the base station that it joined as the one of this number."""
        self.tally.arrives(False, size_bytes, None)
        if self._link is not None and joined == self._joined:
            self._link.deliver(frames, size_bytes)

    def failed(self) -> None:
        """See `RoamingTally.failed`."""
        self.tally.failed()

    def moved(self, size_bytes: int) -> None:
        """See `RoamingTally.moved`."""
        self.tally.moved(size_bytes)

    def prefilled(self, cell: int, tokens: int) -> None:
        """See `RoamingTally.prefilled`."""
        self.tally.prefilled(cell, tokens)


@dataclass
class RoamingUe:
    """Implements `Roamer`: a UE of virtual time, and where it is: what base stations know of it."""

    virtual: VirtualUe
    sites: Mapping[int, RoamingSite]
    """Cells of its group of base stations."""
    sizers: tuple[Sizer, Sizer] | None = None
    station: int | None = None
    """Cell that serves it; None: it is in no cell."""
    arrivals: int = 0
    left_s: float = -math.inf
    """When it left the last cell."""
    sessions: dict[int, Moved] = field(default_factory=dict)
    """Sessions in progress when it left the last base station, and what they left there."""

    @property
    def name(self) -> bytes:
        """Its identity at its base station, another one at each arrival."""
        return ue_name(self.virtual.number) + b"@%d" % self.arrivals

    def leave(self) -> None:
        """See `Roamer.leave`."""
        if self.station is None:
            return
        left, self.station, self.left_s = self.sites[self.station], None, self.virtual.process.time()
        for port in self.virtual.ports.values():
            port.detach()
        if (client := self.virtual.client) is not None:
            owners = {number: session_of(self.name, number) for number in client.sessions}
            self.sessions = {number: left.cache.leave(owner) for number, owner in owners.items()}
            left.site.station.release(self.name, client.sessions)
        self.virtual.tell("left", bool(self.sessions))

    def move(self, migration: Migration) -> float:
        """See `Roamer.move`."""
        if migration.kind == "prefill":
            self.lose()
            return 0.0
        tokens = sum(moved.tokens for moved in self.sessions.values() if moved.here)
        self.virtual.tell("moved", tokens * migration.token_bytes)
        return migration.seconds(tokens)

    def lose(self) -> None:
        """See `Roamer.lose`."""
        self.sessions = {number: moved._replace(here=False) for number, moved in self.sessions.items()}

    def fail(self) -> None:
        """See `Roamer.fail`."""
        self.virtual.tell("failed")

    def arrive(self, number: int, handover: bool) -> None:
        """See `Roamer.arrive`."""
        site, virtual, link = self.sites[number], self.virtual, None
        self.station, self.arrivals = number, self.arrivals + 1
        for port in virtual.ports.values():
            port.attach(site.site.radio)
        if virtual.client is not None and self.sizers is not None:
            for session, moved in self.sessions.items():
                again = partial(virtual.tell, "prefilled", number)
                site.cache.come(session_of(self.name, session), moved._replace(again=again))
            self.sessions = {}
            received = partial(virtual.tell, "received", self.arrivals)
            link = site.site.station.attach(virtual.ways, self.sizers, self.name, received)
        virtual.tell("arrived", number, handover, link=link)


class ServingAir:
    """Implements `IdealAir`: the channels of UEs to the cells that serve them; an outage for a UE in no cell."""

    def __init__(self, airs: Sequence[AdaptedAir], ues: Mapping[int, RoamingUe]) -> None:
        self._airs, self._ues = airs, ues

    def ideal(self, ue: int, up: bool, t_s: float) -> AirState:
        """See `Air.ideal`."""
        cell = self._ues[ue].virtual.tally.station
        return OUT_OF_RANGE if cell is None else self._airs[cell].ideal(ue, up, t_s)
