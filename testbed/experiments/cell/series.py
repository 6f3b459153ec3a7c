"""What happens in a cell over time: shares of the radio, the queue at the base station, windows and goodput."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from testbed.experiments.cell.config import UeGroup
from testbed.experiments.cell.tally import UeTally


class Port(Protocol):
    """What is counted of one direction of a UE."""

    @property
    def slots(self) -> int:
        """Slots in which it has sent."""

    @property
    def used(self) -> float:
        """Sum of its shares of the bandwidth."""


Ports = Mapping[bool, Port]
"""The ports of a UE by direction; True: uplink."""


class GroupSeries(msgspec.Struct):
    """Series of a group, a value per step."""

    uplink_share: list[float] = []
    """Share of the uplink's bandwidth that it used, all UEs together."""
    downlink_share: list[float] = []
    goodput_tps: list[float | None] = []
    """Committed tokens per second, all UEs together; None: they send bytes."""
    window: list[float | None] = []
    """Mean number of drafted tokens per round; None: no round ended."""


class CellSeries(msgspec.Struct):
    """Series of a cell after the warm-up, a value per step; the document of `series.json`."""

    step_s: float
    groups: dict[str, GroupSeries]
    queue: list[int] = []
    """Windows waiting for the engine at the end of the step."""
    latencies_s: dict[str, list[float]] = {}
    """Latencies of the responses of each group that decodes."""


class SeriesRecorder:
    """Takes the steps of a `CellSeries`.

    Args:
        groups: the groups with their UEs.
        ports: ports of all UEs, in order.
        queue: tells the number of waiting windows.
        slots: slots of a direction per step.
    """

    def __init__(
        self,
        step_s: float,
        groups: Sequence[tuple[UeGroup, Sequence[UeTally]]],
        ports: Sequence[Ports],
        queue: Callable[[], int],
        slots: Mapping[bool, float],
    ) -> None:
        self._groups, self._ports, self._queue, self._slots = groups, ports, queue, slots
        self.series = CellSeries(step_s, {group.name: GroupSeries() for group, _ in groups})
        self._before = self._counts()

    def step(self) -> None:
        """Take the values of the step that ends now."""
        counts = self._counts()
        for (group, _), after, before in zip(self._groups, counts, self._before, strict=True):
            series = self.series.groups[group.name]
            grown = {key: after[key] - before[key] for key in after}
            series.uplink_share.append(grown["up"] / self._slots[True])
            series.downlink_share.append(grown["down"] / self._slots[False])
            decodes = group.traffic == "tokens"
            series.goodput_tps.append(grown["tokens"] / self.series.step_s if decodes else None)
            series.window.append(grown["drafted"] / grown["rounds"] if grown["rounds"] else None)
        self.series.queue.append(self._queue())
        self._before = counts

    def finished(self) -> CellSeries:
        """The series, with the latencies of all responses."""
        self.series.latencies_s = {
            group.name: [latency for tally in tallies for latency in tally.latencies_s]
            for group, tallies in self._groups
            if group.traffic == "tokens"
        }
        return self.series

    def _counts(self) -> list[dict[str, float]]:
        """Sums over the UEs of each group."""
        found, first = [], 0
        for group, tallies in self._groups:
            ports = self._ports[first : first + group.count]
            first += group.count
            found.append(
                {
                    "up": sum(port[True].used for port in ports),
                    "down": sum(port[False].used for port in ports),
                    "tokens": sum(tally.tokens for tally in tallies),
                    "rounds": sum(tally.rounds for tally in tallies),
                    "drafted": sum(tally.drafted for tally in tallies),
                }
            )
        return found
