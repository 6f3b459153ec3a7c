"""UEs between base stations: who is served where, and how a UE changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from testbed.channel.radio.handover import TOLERANCE_S, A3Events, Handover
from testbed.channel.radio.network import NetworkChannels
from testbed.channel.virtual import Sizer
from testbed.clock import Clock
from testbed.experiments.cell.parts.counting import Site
from testbed.experiments.cell.planning import ue_name
from testbed.experiments.cell.several.cache import Moved, RoamingCache, session_of
from testbed.experiments.cell.several.tally import RoamingTally
from testbed.experiments.cell.several.ue import RoamingClient, RoamingPorts
from testbed.experiments.cell.tally import Counted


@dataclass
class RoamingSite:
    """A base station that takes UEs over."""

    site: Site
    cache: RoamingCache


@dataclass
class RoamingUe:
    """A UE, and where it is."""

    number: int
    ports: RoamingPorts
    tally: RoamingTally
    client: RoamingClient | None = None
    """None: it sends bytes."""
    sizers: tuple[Sizer, Sizer] | None = None
    station: int | None = None
    """None: it is in no cell."""
    arrivals: int = 0
    sessions: dict[int, int] = field(default_factory=dict)
    """Sessions in progress when it left the last base station, and their tokens there."""

    @property
    def name(self) -> bytes:
        """Its identity at its base station, another one at each arrival."""
        return ue_name(self.number) + b"@%d" % self.arrivals

    def leave(self, sites: Sequence[RoamingSite]) -> None:
        """Leave the base station, which closes the UE's sessions."""
        if self.station is None:
            return
        left, self.station = sites[self.station], None
        for port in self.ports.values():
            port.detach()
        if self.client is not None:
            owners = {number: session_of(self.name, number) for number in self.client.sessions}
            self.sessions = {number: left.cache.leave(owner) for number, owner in owners.items()}
            left.site.station.release(self.name, self.client.sessions)
            self.client.leave()
        self.tally.left(decoding=bool(self.sessions))

    def arrive(self, number: int, site: RoamingSite, clock: Clock, handover: bool) -> None:
        """Be served by a base station from now on."""
        self.station, self.arrivals = number, self.arrivals + 1
        ways = {up: Counted(port.attach(site.site.radio), self.tally, up, clock) for up, port in self.ports.items()}
        self.tally.arrived(number, handover)
        if self.client is None or self.sizers is None:
            return
        for session, tokens in self.sessions.items():
            again = partial(self.tally.prefilled, number)
            site.cache.come(session_of(self.name, session), Moved(tokens, again))
        self.sessions = {}
        self.client.join(site.site.station.attach((ways[True], ways[False]), self.sizers, self.name))


class Roaming:
    """Measures, and hands UEs over.

    Attributes:
        log: handovers so far: time since the start of the event, UE, and base stations left and entered.
    """

    def __init__(
        self,
        config: Handover,
        channels: NetworkChannels,
        sites: Sequence[RoamingSite],
        ues: Sequence[RoamingUe],
        clock: Clock,
    ) -> None:
        self._config, self._channels, self._sites, self._ues, self._clock = config, channels, sites, ues, clock
        self._events = A3Events(config, len(ues), len(sites))
        self._due: dict[int, tuple[float, int]] = {}
        """UEs in no cell: when each arrives, and where."""
        self.log: list[tuple[float, int, int, int]] = []

    def begin(self) -> None:
        """Every UE enters the cell that it receives best."""
        rsrp_dbm = self._channels.rsrp_dbm(0.0)
        for ue, best in zip(self._ues, rsrp_dbm.argmax(axis=1), strict=True):
            ue.arrive(int(best), self._sites[best], self._clock, handover=False)

    async def run(self) -> None:
        """Measure and hand over until cancelled."""
        start_s, step = self._clock.time(), 0
        while True:
            now_s = self._clock.time() - start_s
            self._arrive(now_s)
            if now_s >= step * self._config.measure_s - TOLERANCE_S:
                self._measure(now_s)
                step += 1
            next_s = min([step * self._config.measure_s, *(due_s for due_s, _ in self._due.values())])
            await self._clock.sleep(max(0.0, start_s + next_s - self._clock.time()))

    def _measure(self, now_s: float) -> None:
        serving = np.array([-1 if ue.station is None else ue.station for ue in self._ues])
        found = self._events.measure(now_s, self._channels.rsrp_dbm(now_s), serving)
        for number, target in found.items():
            self.log.append((now_s, number, int(serving[number]), target))
            self._ues[number].leave(self._sites)
            self._due[number] = (now_s + self._config.interruption_ms / 1e3, target)
        self._arrive(now_s)

    def _arrive(self, now_s: float) -> None:
        """Let UEs enter their next cells that are due."""
        for number in [number for number, (due_s, _) in self._due.items() if due_s <= now_s + TOLERANCE_S]:
            _, target = self._due.pop(number)
            self._events.moved(number)
            self._ues[number].arrive(target, self._sites[target], self._clock, handover=True)
