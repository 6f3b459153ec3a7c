"""UEs between base stations: who is served where, and when a UE changes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from testbed.channel.radio.handover import TOLERANCE_S, A3Events
from testbed.channel.radio.network import NetworkChannels
from testbed.channel.trace import Array
from testbed.clock import Clock
from testbed.experiments.cell.stations import CellsConfig, Migration
from testbed.virtual_time import LogicalProcess, Simulation

RANK = 2**31
"""Of the logical process of handovers: the last."""


class Due(NamedTuple):
    """Arrival of a UE in a cell."""

    at_s: float
    cell: int
    handover: bool
    """From another cell that had not failed."""


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


class Roaming:
    """Measures, and hands UEs over, step by step; UEs of a base station that fails choose another one. Times are those
    since the beginning.

    Args:
        ues: UEs of the cells `own`, or on their way to them; others may be on their way to other groups.
        everyone: number of UEs of all groups.
        own: numbers of the cells of a group of base stations.

    Attributes:
        log: handovers so far: time of the event, UE, and cells left and entered.
        due: UEs in no cell that know their next one.
    """

    def __init__(
        self,
        cells: CellsConfig,
        channels: NetworkChannels,
        ues: Mapping[int, Roamer],
        everyone: int,
        own: Collection[int],
    ) -> None:
        self._cells, self._config, self._channels, self._ues = cells, cells.handover, channels, ues
        self._stations = [one.station for one in cells.cells]
        self._events = A3Events(self._config, everyone, len(self._stations))
        self.due: dict[int, Due] = {}
        self._looking: dict[int, float] = {}
        """UEs in no cell that look for one: when each chooses."""
        self._down_s = [cells.stations[station].down_s for station in self._stations]
        self._failing = sorted(
            (down_s[0], number) for number, down_s in enumerate(self._down_s) if down_s and number in own
        )
        self._steps = 0
        """Measurements so far."""
        self.log: list[tuple[float, int, int, int]] = []

    def begin(self) -> None:
        """The UEs enter the cells that they receive best."""
        for number, best in zip(self._ues, self._rsrp_dbm(0.0).argmax(axis=1), strict=True):
            self._ues[number].arrive(int(best), handover=False)

    def release(self, ue: int) -> tuple[Due, Array, Array]:
        """A UE leaves for another group: its arrival, and what is known of its measurements."""
        return self.due.pop(ue), *self._events.of(ue)

    def expect(self, ue: int, due: Due, *known: Array) -> None:
        """A UE comes from another group: what `release` returned."""
        self.due[ue] = due
        self._events.restore(ue, *known)

    @property
    def next_s(self) -> float:
        """Time of the next step."""
        times_s = [*(due.at_s for due in self.due.values()), *self._looking.values(), *(at for at, _ in self._failing)]
        return min([self._steps * self._config.measure_s, *times_s])

    def step(self, now_s: float) -> None:
        """Do what is due at `next_s`."""
        self._fail(now_s)
        if now_s >= self._steps * self._config.measure_s:
            self._measure(now_s)
            self._steps += 1
        self._arrive(now_s)
        self._look(now_s)

    async def run(self, clock: Clock) -> None:
        """Take the steps when they are due, on the wall clock, until cancelled."""
        start_s = clock.time()
        while True:
            next_s = self.next_s
            await clock.sleep(max(0.0, start_s + next_s - clock.time()))
            self.step(next_s)

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
                    ue.fail()
                    ue.leave()
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
            ue.leave()
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
            self._ues[number].arrive(target, handover)

    def _look(self, now_s: float) -> None:
        """Let UEs choose the cell that they receive best."""
        for number in sorted(number for number, at_s in self._looking.items() if at_s <= now_s):
            del self._looking[number]
            best = self._events.strongest(number)
            if best is None or self._down(best, now_s):
                self._looking[number] = now_s + self._config.measure_s
            else:
                self.due[number] = Due(now_s + self._config.interruption_ms / 1e3, best, False)


class RoamingProcess(LogicalProcess):
    """Takes the steps of a `Roaming` in virtual time, after what UEs and base stations do at the same time: a UE leaves
    with what has just arrived.
    """

    def __init__(self, simulation: Simulation, roaming: Roaming) -> None:
        super().__init__(simulation, RANK)
        self._roaming = roaming
        self._planned: asyncio.TimerHandle | None = None

    def plan(self) -> None:
        """Wait for the next step, which may have changed."""
        if self._planned is not None:
            self._planned.cancel()
        next_s = self._roaming.next_s
        self._planned = self.call_at(next_s, self._step, next_s)

    def _step(self, now_s: float) -> None:
        self._planned = None
        self._roaming.step(now_s)
        self.plan()
