"""UEs between base stations: who is served where, and when a UE changes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from testbed.channel.radio.adaptation import OUT_OF_RANGE, AdaptedAir
from testbed.channel.radio.air import AirState
from testbed.channel.radio.handover import TOLERANCE_S, A3Events
from testbed.channel.radio.network import NetworkChannels
from testbed.channel.trace import Array
from testbed.experiments.cell.several.roamer import RoamingSite, RoamingUe
from testbed.experiments.cell.stations import CellsConfig
from testbed.virtual_time import LogicalProcess, Simulation

RANK = 2**31
"""Of its logical process: after those of UEs and base stations, so that a UE leaves with what has just arrived."""


class Due(NamedTuple):
    """Arrival of a UE in a cell."""

    at_s: float
    cell: int
    handover: bool
    """From another cell that had not failed."""


class ServingAir:
    """Implements `IdealAir`: the channels of UEs to the cells that serve them; an outage for a UE in no cell."""

    def __init__(self, airs: Sequence[AdaptedAir], ues: Mapping[int, RoamingUe]) -> None:
        self._airs, self._ues = airs, ues

    def ideal(self, ue: int, up: bool, t_s: float) -> AirState:
        """See `Air.ideal`."""
        cell = self._ues[ue].roamer.tally.station
        return OUT_OF_RANGE if cell is None else self._airs[cell].ideal(ue, up, t_s)


class Roaming:
    """Measures, and hands UEs over; UEs of a base station that fails choose another one. Times are the simulation's,
    which begins with the run.

    Args:
        sites: cells of a group of base stations.
        ues: UEs that are there, or on their way; others may be on their way to other groups.
        everyone: number of UEs of all groups.

    Attributes:
        log: handovers so far: time of the event, UE, and cells left and entered.
        due: UEs in no cell that know their next one.
    """

    def __init__(
        self,
        cells: CellsConfig,
        channels: NetworkChannels,
        sites: Mapping[int, RoamingSite],
        ues: Mapping[int, RoamingUe],
        simulation: Simulation,
        everyone: int,
    ) -> None:
        self._cells, self._config, self._channels, self._sites = cells, cells.handover, channels, sites
        self._ues, self.process = ues, LogicalProcess(simulation, RANK)
        self._stations = [one.station for one in cells.cells]
        self._events = A3Events(self._config, everyone, len(self._stations))
        self.due: dict[int, Due] = {}
        self._looking: dict[int, float] = {}
        """UEs in no cell that look for one: when each chooses."""
        self._down_s = [cells.stations[station].down_s for station in self._stations]
        self._failing = sorted(
            (down_s[0], number) for number, down_s in enumerate(self._down_s) if down_s and number in sites
        )
        self._steps = 0
        """Measurements so far."""
        self._timer: asyncio.TimerHandle | None = None
        self.log: list[tuple[float, int, int, int]] = []

    def begin(self) -> None:
        """The UEs enter the cells that they receive best."""
        for number, best in zip(self._ues, self._rsrp_dbm(0.0).argmax(axis=1), strict=True):
            self._ues[number].arrive(int(best), self._sites[int(best)], handover=False)
        self._plan()

    def release(self, ue: int) -> tuple[Due, Array, Array]:
        """A UE leaves for another group: its arrival, and what is known of its measurements."""
        return self.due.pop(ue), *self._events.of(ue)

    def expect(self, ue: int, due: Due, *known: Array) -> None:
        """A UE comes from another group: what `release` returned."""
        self.due[ue] = due
        self._events.restore(ue, *known)
        self._plan()

    def _plan(self) -> None:
        """Wait until there is something to do."""
        if self._timer is not None:
            self._timer.cancel()
        times_s = [*(due.at_s for due in self.due.values()), *self._looking.values(), *(at for at, _ in self._failing)]
        next_s = min([self._steps * self._config.measure_s, *times_s])
        self._timer = self.process.call_at(next_s, self._step, next_s)

    def _step(self, now_s: float) -> None:
        self._timer = None
        self._fail(now_s)
        if now_s >= self._steps * self._config.measure_s:
            self._measure(now_s)
            self._steps += 1
        self._arrive(now_s)
        self._look(now_s)
        self._plan()

    def _down(self, number: int, now_s: float) -> bool:
        down_s = self._down_s[number]
        return down_s is not None and down_s[0] - TOLERANCE_S <= now_s < down_s[1]

    def _rsrp_dbm(self, now_s: float) -> Array:
        """[own ues, cells] received powers; none of base stations that have failed."""
        powers = self._channels.rsrp_dbm(now_s, list(self._ues))
        powers[:, [self._down(number, now_s) for number in range(len(self._stations))]] = -math.inf
        return powers

    def _fail(self, now_s: float) -> None:
        """Base stations fail: after T310 their UEs look for another one."""
        while self._failing and self._failing[0][0] <= now_s:
            _, failed = self._failing.pop(0)
            for number, ue in sorted(self._ues.items()):
                if ue.station == failed:
                    ue.roamer.tell("failed")
                    ue.leave(self._sites, now_s)
                    ue.lose()
                    self._looking[number] = now_s + self._config.t310_ms / 1e3

    def _measure(self, now_s: float) -> None:
        if not self._ues:
            return
        numbers = np.array(list(self._ues))
        serving = np.array([-1 if ue.station is None else ue.station for ue in self._ues.values()])
        found = self._events.measure(now_s, self._rsrp_dbm(now_s), serving, numbers)
        for number, target in sorted(found.items()):
            ue = self._ues[number]
            assert ue.station is not None
            own = ue.station
            self.log.append((now_s, number, own, target))
            ue.leave(self._sites, now_s)
            stays = self._stations[own] == self._stations[target]
            moving_s = 0.0 if stays else ue.move(self._cells.migration)
            self.due[number] = Due(now_s + max(self._config.interruption_ms / 1e3, moving_s), target, True)

    def _arrive(self, now_s: float) -> None:
        """Let UEs enter their next cells that are due; if these have failed they look for others."""
        for number in sorted(number for number, due in self.due.items() if due.at_s <= now_s):
            _, target, handover = self.due.pop(number)
            if self._down(target, now_s):
                self._ues[number].lose()
                self._looking[number] = now_s
                continue
            self._events.moved(number)
            self._ues[number].arrive(target, self._sites[target], handover)

    def _look(self, now_s: float) -> None:
        """Let UEs choose the cell that they receive best."""
        for number in sorted(number for number, at_s in self._looking.items() if at_s <= now_s):
            del self._looking[number]
            best = self._events.strongest(number)
            if best is None or self._down(best, now_s):
                self._looking[number] = now_s + self._config.measure_s
            else:
                self.due[number] = Due(now_s + self._config.interruption_ms / 1e3, best, False)
