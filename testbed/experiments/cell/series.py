"""What happens in a cell over time: shares of the radio, the queue at the base station, windows and goodput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from testbed.experiments.cell.config import UeGroup
from testbed.experiments.cell.tally import UeTally


class UeWork(NamedTuple):
    """What a UE has done so far."""

    slots: dict[bool, int]
    """Slots in which it has sent, by direction; True: uplink."""
    used: dict[bool, float]
    """Sum of its shares of the bandwidth."""
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0


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
        before: what the UEs had done at the beginning, in order.
        slots: slots of a direction per step.
    """

    def __init__(
        self, step_s: float, groups: Sequence[UeGroup], before: Sequence[UeWork], slots: Mapping[bool, float]
    ) -> None:
        self._groups, self._slots = groups, slots
        self._series = CellSeries(step_s, {group.name: GroupSeries() for group in groups})
        self._before = self._counts(before)

    def step(self, works: Sequence[UeWork], queue: int) -> None:
        """Take the values of the step that ends now.

        Args:
            works: what the UEs have done, in order.
            queue: number of waiting windows.
        """
        counts = self._counts(works)
        for group, after, before in zip(self._groups, counts, self._before, strict=True):
            series = self._series.groups[group.name]
            grown = {key: after[key] - before[key] for key in after}
            series.uplink_share.append(grown["up"] / self._slots[True])
            series.downlink_share.append(grown["down"] / self._slots[False])
            decodes = group.traffic == "tokens"
            series.goodput_tps.append(grown["tokens"] / self._series.step_s if decodes else None)
            series.window.append(grown["drafted"] / grown["rounds"] if grown["rounds"] else None)
        self._series.queue.append(queue)
        self._before = counts

    def finished(self, groups: Sequence[tuple[UeGroup, Sequence[UeTally]]]) -> CellSeries:
        """The series, with the latencies of all responses."""
        self._series.latencies_s = {
            group.name: [latency for tally in tallies for latency in tally.latencies_s]
            for group, tallies in groups
            if group.traffic == "tokens"
        }
        return self._series

    def _counts(self, works: Sequence[UeWork]) -> list[dict[str, float]]:
        """Sums over the UEs of each group."""
        found, first = [], 0
        for group in self._groups:
            own = works[first : first + group.count]
            first += group.count
            found.append(
                {
                    "up": sum(work.used[True] for work in own),
                    "down": sum(work.used[False] for work in own),
                    "tokens": sum(work.tokens for work in own),
                    "rounds": sum(work.rounds for work in own),
                    "drafted": sum(work.drafted for work in own),
                }
            )
        return found
