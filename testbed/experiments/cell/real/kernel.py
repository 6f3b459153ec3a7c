"""Process of the radio of `testbed cell run --real` where the kernel carries the bytes: counts and weights."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from testbed.channel.proxy import precise_loop
from testbed.channel.radio.mac import RadioCell
from testbed.channel.tc.shape import TC_PAYLOAD
from testbed.channel.tc.shared import SharedCell, SharedRates, free_number
from testbed.clock import WallClock
from testbed.experiments.cell.config import CellConfig, radio_ues
from testbed.experiments.cell.real.radio import control_cell, tally_of
from testbed.experiments.cell.real.relayed import RelayedCell
from testbed.experiments.cell.real.reports import RadioReport, RelayedWork
from testbed.experiments.cell.tally import UeTally
from testbed.experiments.deployment.distortions import Heartbeat
from testbed.experiments.runs.forked import one_line
from testbed.process.interrupts import as_child
from testbed.tasks import beside

LOOK_S = 0.1
"""Time between two looks at the kernel's counters, after each of which weights that have changed are set."""


class KernelPort:
    """Implements `WeightedPort`: one direction of a UE.

    Attributes:
        used: what it has sent, as slots of the whole rate.
        bytes: payload of that, as if all frames were full.
    """

    def __init__(self, weight: float, slot_s: float) -> None:
        self.weight, self.used, self.bytes = weight, 0.0, 0.0
        self._slot_s, self._busy_s = slot_s, 0.0
        self._since_s: float | None = None

    def look(self, waits: bool) -> None:
        """Learn whether it has bytes to send now."""
        now_s = time.monotonic()
        if self._since_s is not None:
            self._busy_s += now_s - self._since_s
        self._since_s = now_s if waits else None

    @property
    def backlogged(self) -> int:
        """Slots in which it had bytes to send, as it was at the looks; it is taken to send in all of them."""
        busy_s = self._busy_s + (0.0 if self._since_s is None else time.monotonic() - self._since_s)
        return round(busy_s / self._slot_s)


class PortCounts(NamedTuple):
    """Counters of one direction of a UE: see `KernelPort`."""

    bytes: float
    slots: float
    used: float


class KernelRadio:
    """The shared rates of a cell: ports that show what the kernel has counted, and weights that it is told.

    Args:
        addresses: [n] of the UEs.
        weights: [n] of their uplinks, as they are.
    """

    def __init__(
        self, config: CellConfig, rates: SharedRates, addresses: Sequence[str], weights: Sequence[float]
    ) -> None:
        self._slot_s, self._rates, self._addresses, self._weights = config.radio.slot_s, rates, addresses, list(weights)
        self.ports = [{up: KernelPort(weight, self._slot_s) for up in (True, False)} for weight in weights]

    async def run(self) -> None:
        """Look at uplinks and set weights until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await asyncio.to_thread(self._look)

    def _look(self) -> None:
        waiting, ups = self._rates.waiting(), [ports[True] for ports in self.ports]
        for address, port in zip(self._addresses, ups, strict=True):
            port.look(address in waiting)
        self._count(True)
        weights = [port.weight for port in ups]
        self._rates.weigh(self._weights, weights)
        self._weights = weights

    def _count(self, up: bool) -> None:
        slot_bytes = self._rates.rates_mbps[0 if up else 1] * 1e6 / 8 * self._slot_s
        for ports, sent in zip(self.ports, self._rates.sent_bytes(up, len(self.ports)), strict=True):
            ports[up].used, ports[up].bytes = sent / slot_bytes, TC_PAYLOAD * sent

    def counters(self) -> list[dict[bool, PortCounts]]:
        """Counters of all UEs as they are now; a downlink is taken to have bytes for as long as they take alone."""
        for up in (True, False):
            self._count(up)
        return [
            {up: PortCounts(port.bytes, port.backlogged if up else port.used, port.used) for up, port in ports.items()}
            for ports in self.ports
        ]


def rates_of(config: CellConfig) -> tuple[float, float]:
    """Rates of the kernel's uplink and downlink in Mbit/s, by which payloads have the rate of the radio."""
    air = config.radio.air(radio_ues(config), config.seconds, config.seed)
    rate_mbps = air.efficiency(0, True, 0.0) * config.radio.bandwidth_hz / 1e6 / TC_PAYLOAD
    return rate_mbps, rate_mbps


def shared_cell(config: CellConfig, number: int) -> SharedCell:
    """The namespace of the UEs, not yet there.

    Args:
        number: of this run, so that several can run on a machine; the next free one if it is in use.
    """
    return SharedCell(free_number(number), rates_of(config), weights_of(config))


def weights_of(config: CellConfig) -> list[float]:
    """Weights of the UEs' uplinks at the start."""
    weighted = config.radio.scheduler != "round-robin"
    return [group.weight if weighted else 1.0 for group in config.ues for _ in range(group.count)]


def run_kernel(
    config: CellConfig,
    rates: SharedRates,
    addresses: Sequence[str],
    target: str,
    line: Connection,
    controlled: Path | None = None,
) -> None:
    """Count bytes and set weights; arguments and what is told as in `run_radio`.

    Args:
        rates: those of the cell.
        addresses: those of its UEs.
    """
    as_child()
    loop = precise_loop()
    with one_line("the radio"), contextlib.suppress(BrokenPipeError, EOFError):  # the parent has ended
        loop.run_until_complete(_serve(config, rates, addresses, target, line, controlled))


async def _serve(
    config: CellConfig, rates: SharedRates, addresses: Sequence[str], target: str, line: Connection, path: Path | None
) -> None:
    members = [group for group in config.ues for _ in range(group.count)]
    air = config.radio.air(radio_ues(config), config.seconds, config.seed)
    clock, cell = WallClock(), RadioCell(config.radio, air, config.seed)
    cell.begin()
    line.send(dict.fromkeys(range(len(members)), target))
    start_s: float = await asyncio.get_running_loop().run_in_executor(None, line.recv)
    await clock.sleep(max(0.0, start_s - clock.time()))
    from_s, to_s = start_s + config.warmup_s, start_s + config.seconds
    tallies = [tally_of(config, clock, from_s, to_s) for _ in members]
    radio, heart = KernelRadio(config, rates, addresses, weights_of(config)), Heartbeat()
    others = [heart.run(clock, from_s), radio.run()]
    if path is not None:
        others.append(control_cell(config, members, RelayedCell(cell, air, radio.ports), tallies, path, clock))
    before, after = await beside(others, _seen(radio, clock, (from_s, to_s)))
    works = {ue: _work(before[ue], after[ue], config.radio.slot_s, tally) for ue, tally in enumerate(tallies)}
    up, down = (sum(work.band_s[way] for work in works.values()) / config.radio.slot_s for way in range(2))
    line.send(RadioReport([(up, down)], works, {}, heart.still_s, heart.late_s))


async def _seen(radio: KernelRadio, clock: WallClock, times_s: Sequence[float]) -> list[list[dict[bool, PortCounts]]]:
    """Counters of each UE at each of these times."""
    found = []
    for until_s in times_s:
        await clock.sleep(until_s - clock.time())
        found.append(radio.counters())
    return found


def _work(before: dict[bool, PortCounts], after: dict[bool, PortCounts], slot_s: float, tally: UeTally) -> RelayedWork:
    """What a UE did between two times."""
    pairs = [(before[up], after[up]) for up in (True, False)]
    sent = [now.bytes - then.bytes for then, now in pairs]
    busy_s = [slot_s * (now.slots - then.slots) for then, now in pairs]
    band_s = [slot_s * (now.used - then.used) for then, now in pairs]
    return RelayedWork((sent[0], sent[1]), (busy_s[0], busy_s[1]), (band_s[0], band_s[1]), tally.switches)
