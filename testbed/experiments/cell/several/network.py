"""Several cells in virtual time: base stations with radio and engine of their own, and UEs that move between them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from testbed.errors import BadInput
from testbed.experiments.cell.config import CellConfig
from testbed.experiments.cell.parts.counting import CellCounter, CellRun, Clear, Snapshot, grouped, steps_of
from testbed.experiments.cell.several.exchange import Division, Inbox, Outbox, Stop
from testbed.experiments.cell.several.group import Group
from testbed.experiments.cell.several.workers import InProcess, Workers
from testbed.experiments.cell.stations import CellsConfig
from testbed.experiments.cell.tally import Watch

WINDOW_MS = 10.0
"""Time between two exchanges of cells that do not interfere."""


def divided(cells: CellsConfig, count: int) -> tuple[tuple[int, ...], ...]:
    """Numbers of the base stations of `count` groups: neighbours from west to east, as many in each as in the others.

    Raises:
        BadInput: fewer base stations than groups.
    """
    stations = cells.stations
    if count > len(stations):
        raise BadInput(f"{len(stations)} base stations cannot be divided among {count} processes")
    order = sorted(range(len(stations)), key=lambda number: stations[number].at_m)
    ends = [len(order) * group // count for group in range(count + 1)]
    return tuple(tuple(sorted(order[first:last])) for first, last in itertools.pairwise(ends))


def check_groups(config: CellConfig, count: int) -> None:
    """Refuse what groups of base stations cannot exchange in time.

    Raises:
        BadInput: UEs that wait for each other, or interruptions within a window of interference.
    """
    cells = config.cells
    if count == 1:
        return
    if cells is None:
        raise BadInput("base stations are divided among processes: give `cells`, or one process")
    if any(group.together for group in config.ues):
        raise BadInput("UEs that send together wait for each other: they need one process")
    least_ms = _window_slots(config) * config.radio.slot_ms + config.radio.wired_ms
    if cells.handover.interruption_ms <= least_ms:
        raise BadInput(
            f"UEs move between processes during an interruption longer than a window of interference and the wired "
            f"way, {least_ms:g} ms: cells.handover.interruption_ms is {cells.handover.interruption_ms:g}"
        )


def _window_slots(config: CellConfig) -> int:
    assert config.cells is not None
    return config.radio.slots(config.cells.interference_ms or WINDOW_MS)


def stops(config: CellConfig) -> Iterator[Stop]:
    """The stops of a run, in order: windows end half a slot before their last one does, when all that is sent in it is
    known.
    """
    slot_s, window_slots, from_s = config.radio.slot_s, _window_slots(config), config.warmup_s
    looks = [Stop(from_s, look=True, whole=True)]
    looks += [Stop(from_s + step * config.step_s, look=True) for step in range(1, steps_of(config) + 1)]
    looks.append(Stop(config.seconds, look=True, whole=True))
    window = 0
    for look in looks:
        while (end_s := ((window + 1) * window_slots - 0.5) * slot_s) < look.at_s:
            yield Stop(end_s, window)
            window += 1
        yield look


class Network:
    """A run of several cells.

    Raises:
        BadInput: a configuration without `cells`, an unknown profile, or places that cannot be.
    """

    def __init__(
        self, config: CellConfig, channels_s: float, watches: Mapping[str, Watch] | None = None,
        workers: Workers | None = None,
    ) -> None:  # fmt: skip
        if config.cells is None:
            raise BadInput("several cells need `cells`")
        count = 1 if workers is None else workers.count
        check_groups(config, count)
        shares = divided(config.cells, count)
        self._config = config
        self._workers = InProcess() if workers is None else workers
        self._workers.begin([(config, channels_s, Division(shares, number), watches) for number in range(count)])

    @property
    def group(self) -> Group:
        """The only group of a run in this process."""
        assert isinstance(self._workers, InProcess)
        return self._workers.groups[0]

    def run(self, clear: Clear = lambda seconds: False) -> CellRun:
        """Run it.

        Args:
            clear: as in `run_cell`.

        Raises:
            EngineError: a response of greedy decoding under the strict judge differs from the target's own.
        """
        try:
            return self._run(clear)
        finally:
            with contextlib.suppress(Exception):  # after a failure, some may be gone
                self._workers.each("close", [()] * self._workers.count)

    def _run(self, clear: Clear) -> CellRun:
        config, counter, step = self._config, None, 0
        given = [Inbox()] * self._workers.count
        for stop in stops(config):
            sent: list[Outbox] = self._workers.each("advance", [(stop, one) for one in given])
            given = [_given(sent, number) for number in range(len(sent))]
            if not stop.look:
                continue
            now = _whole([one.snapshot for one in sent])
            if counter is None:
                counter = CellCounter(config, now)
            elif stop.whole:
                return counter.end(now, self._groups(), config.seconds - config.warmup_s)
            else:
                counter.step(now)
                step += 1
                if clear(step * config.step_s):
                    return self._end(counter, stop, step * config.step_s)
        raise AssertionError("a run has an end")

    def _end(self, counter: CellCounter, stop: Stop, seconds: float) -> CellRun:
        """End before the configured time."""
        last = stop._replace(whole=True)
        sent: list[Outbox] = self._workers.each("advance", [(last, Inbox())] * self._workers.count)
        return counter.end(_whole([one.snapshot for one in sent]), self._groups(), seconds)

    def _groups(self) -> Any:
        found: dict[int, Any] = {}
        for tallies in self._workers.each("tallies", [()] * self._workers.count):
            found |= tallies
        return grouped(self._config, [found[number] for number in sorted(found)])


def _given(sent: list[Outbox], number: int) -> Inbox:
    """What a group is given of what all have sent."""
    used = tuple(one.used for other, one in enumerate(sent) if other != number and one.used is not None)
    return Inbox(used, tuple(ue for one in sent for ue in one.ues.get(number, ())))


def _whole(parts: list[Snapshot | None]) -> Snapshot:
    first, *others = [part for part in parts if part is not None]
    return first.with_others(others)
