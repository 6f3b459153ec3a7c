"""UEs between base stations: who is served where, and how a UE changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from testbed.channel.radio.adaptation import OUT_OF_RANGE, AdaptedAir
from testbed.channel.radio.air import AirState
from testbed.channel.radio.handover import TOLERANCE_S, A3Events
from testbed.channel.radio.network import NetworkChannels
from testbed.channel.trace import Array
from testbed.channel.virtual import Sizer
from testbed.clock import Clock
from testbed.experiments.cell.parts.counting import Site
from testbed.experiments.cell.planning import ue_name
from testbed.experiments.cell.several.cache import Moved, RoamingCache, session_of
from testbed.experiments.cell.several.tally import RoamingTally
from testbed.experiments.cell.several.ue import RoamingClient, RoamingPorts
from testbed.experiments.cell.stations import CellsConfig, Migration
from testbed.experiments.cell.tally import Counted


@dataclass
class RoamingSite:
    """A cell that takes UEs over; cells of one base station have one cache."""

    site: Site
    cache: RoamingCache


class Roamer(Protocol):
    """A UE that is handed over: what `Roaming` needs of it."""

    station: int | None
    """The cell that serves it; None: it is in no cell."""

    def leave(self) -> None:
        """Leave the base station, which closes the UE's sessions."""

    def move(self, migration: Migration) -> float:
        """Begin to move the keys and values of its sessions; returns the time that it takes."""

    def lose(self) -> None:
        """Leave the keys and values of its sessions behind."""

    def fail(self) -> None:
        """Note that its base station has failed."""

    def arrive(self, number: int, handover: bool) -> None:
        """Be served by a cell from now on; `handover`: of a base station that had not failed."""


@dataclass
class RoamingUe:
    """A UE of virtual time, and where it is."""

    sites: Sequence[RoamingSite]
    clock: Clock
    number: int
    ports: RoamingPorts
    tally: RoamingTally
    client: RoamingClient | None = None
    """None: it sends bytes."""
    sizers: tuple[Sizer, Sizer] | None = None
    station: int | None = None
    """None: it is in no cell."""
    arrivals: int = 0
    sessions: dict[int, Moved] = field(default_factory=dict)
    """Sessions in progress when it left the last base station, and what they left there."""

    @property
    def name(self) -> bytes:
        """Its identity at its base station, another one at each arrival."""
        return ue_name(self.number) + b"@%d" % self.arrivals

    def leave(self) -> None:
        """See `Roamer.leave`."""
        if self.station is None:
            return
        left, self.station = self.sites[self.station], None
        for port in self.ports.values():
            port.detach()
        if self.client is not None:
            owners = {number: session_of(self.name, number) for number in self.client.sessions}
            self.sessions = {number: left.cache.leave(owner) for number, owner in owners.items()}
            left.site.station.release(self.name, self.client.sessions)
            self.client.leave()
        self.tally.left(decoding=bool(self.sessions))

    def move(self, migration: Migration) -> float:
        """See `Roamer.move`."""
        if migration.kind == "prefill":
            self.lose()
            return 0.0
        tokens = sum(moved.tokens for moved in self.sessions.values() if moved.here)
        self.tally.moved(tokens * migration.token_bytes)
        return migration.seconds(tokens)

    def lose(self) -> None:
        """See `Roamer.lose`."""
        self.sessions = {number: moved._replace(here=False) for number, moved in self.sessions.items()}

    def fail(self) -> None:
        """See `Roamer.fail`."""
        self.tally.failed()

    def arrive(self, number: int, handover: bool) -> None:
        """See `Roamer.arrive`."""
        site, self.station, self.arrivals = self.sites[number], number, self.arrivals + 1
        ways = {
            up: Counted(port.attach(site.site.radio), self.tally, up, self.clock) for up, port in self.ports.items()
        }
        self.tally.arrived(number, handover)
        if self.client is None or self.sizers is None:
            return
        for session, moved in self.sessions.items():
            again = partial(self.tally.prefilled, number)
            site.cache.come(session_of(self.name, session), moved._replace(again=again))
        self.sessions = {}
        self.client.join(site.site.station.attach((ways[True], ways[False]), self.sizers, self.name))


class ServingAir:
    """Implements `IdealAir`: the channels of UEs to the cells that serve them; an outage for a UE in no cell."""

    def __init__(self, airs: Sequence[AdaptedAir], ues: Sequence[Roamer]) -> None:
        self._airs, self._ues = airs, ues

    def ideal(self, ue: int, up: bool, t_s: float) -> AirState:
        """See `Air.ideal`."""
        cell = self._ues[ue].station
        return OUT_OF_RANGE if cell is None else self._airs[cell].ideal(ue, up, t_s)


class Roaming:
    """Measures, and hands UEs over; UEs of a base station that fails choose another one.

    Attributes:
        log: handovers so far: time since the start of the event, UE, and cells left and entered.
    """

    def __init__(
        self,
        cells: CellsConfig,
        channels: NetworkChannels,
        ues: Sequence[Roamer],
        clock: Clock,
    ) -> None:
        self._cells, self._config, self._channels = cells, cells.handover, channels
        self._ues, self._clock, self._stations = ues, clock, [one.station for one in cells.cells]
        self._events = A3Events(self._config, len(ues), len(self._stations))
        self._due: dict[int, tuple[float, int | None]] = {}
        """UEs in no cell: when each arrives, and where; None: where it receives best."""
        self._down_s = [cells.stations[station].down_s for station in self._stations]
        self._failing = sorted((down_s[0], number) for number, down_s in enumerate(self._down_s) if down_s)
        self.log: list[tuple[float, int, int, int]] = []

    def begin(self) -> None:
        """Every UE enters the cell that it receives best."""
        rsrp_dbm = self._rsrp_dbm(0.0)
        for ue, best in zip(self._ues, rsrp_dbm.argmax(axis=1), strict=True):
            ue.arrive(int(best), handover=False)

    async def run(self) -> None:
        """Measure and hand over until cancelled."""
        start_s, step = self._clock.time(), 0
        while True:
            now_s = self._clock.time() - start_s
            self._fail(now_s)
            if now_s >= step * self._config.measure_s - TOLERANCE_S:
                self._measure(now_s)
                step += 1
            self._arrive(now_s)
            next_s = min([step * self._config.measure_s, *(one[0] for one in (*self._due.values(), *self._failing))])
            await self._clock.sleep(max(0.0, start_s + next_s - self._clock.time()))

    def _down(self, number: int, now_s: float) -> bool:
        down_s = self._down_s[number]
        return down_s is not None and down_s[0] - TOLERANCE_S <= now_s < down_s[1]

    def _rsrp_dbm(self, now_s: float) -> Array:
        """[ues, cells] received powers; none of base stations that have failed."""
        powers = self._channels.rsrp_dbm(now_s)
        powers[:, [self._down(number, now_s) for number in range(len(self._stations))]] = -math.inf
        return powers

    def _fail(self, now_s: float) -> None:
        """Base stations fail: after T310 their UEs look for another one."""
        while self._failing and self._failing[0][0] <= now_s + TOLERANCE_S:
            _, failed = self._failing.pop(0)
            for number, ue in enumerate(self._ues):
                if ue.station == failed:
                    ue.fail()
                    ue.leave()
                    ue.lose()
                    self._due[number] = now_s + (self._config.t310_ms + self._config.interruption_ms) / 1e3, None

    def _measure(self, now_s: float) -> None:
        serving = np.array([-1 if ue.station is None else ue.station for ue in self._ues])
        found = self._events.measure(now_s, self._rsrp_dbm(now_s), serving)
        for number, target in found.items():
            self.log.append((now_s, number, int(serving[number]), target))
            ue, own = self._ues[number], int(serving[number])
            ue.leave()
            stays = self._stations[own] == self._stations[target]
            moving_s = 0.0 if stays else ue.move(self._cells.migration)
            self._due[number] = now_s + max(self._config.interruption_ms / 1e3, moving_s), target

    def _arrive(self, now_s: float) -> None:
        """Let UEs enter their next cells that are due, or that they receive best if these have failed."""
        for number in [number for number, (due_s, _) in self._due.items() if due_s <= now_s + TOLERANCE_S]:
            _, target = self._due.pop(number)
            ue, handover = self._ues[number], target is not None and not self._down(target, now_s)
            if not handover:
                ue.lose()
                target = self._events.strongest(number)
            if target is None or self._down(target, now_s):
                self._due[number] = now_s + self._config.measure_s, None
                continue
            self._events.moved(number)
            ue.arrive(target, handover)
