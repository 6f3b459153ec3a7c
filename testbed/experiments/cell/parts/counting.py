"""What a run counts between the end of the warm-up and its end: radio, base stations, UEs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from testbed.channel.radio.mac import RadioCell
from testbed.clock import Clock
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.series import CellSeries, SeriesRecorder, UeWork
from testbed.experiments.cell.tally import UeTally
from testbed.experiments.deployment.virtual import VirtualStation
from testbed.optim.pass_time import PassOverhead

Clear = Callable[[float], bool]
"""Takes the time since the warm-up; whether a run may end."""
Groups = list[tuple[UeGroup, list[UeTally]]]


class Site(NamedTuple):
    """A radio cell and its base station, which may have others."""

    radio: RadioCell
    station: VirtualStation


@dataclass(frozen=True)
class SiteRun:
    """Counters of one cell and its base station; times cover what followed the warm-up."""

    uplink: float
    """Mean share of the bandwidth in use, over the slots of the direction."""
    downlink: float
    passes: int
    busy: float
    """Share of the time during which the base station was verifying."""


@dataclass(frozen=True)
class CellRun:
    """Counters of a finished run; times cover what followed the warm-up."""

    groups: Groups
    uplink: float
    """Mean share of the bandwidth in use, over the slots of the direction; of several cells, their mean."""
    downlink: float
    passes: int
    """Of all base stations."""
    busy: float
    """Share of the time during which a base station was verifying; of several, their mean."""
    seconds: float
    """The time."""
    series: CellSeries | None = None
    """Values over time; None: not known."""
    sites: list[SiteRun] = field(default_factory=list)
    """Each cell by itself; empty: not known."""
    between: PassOverhead | None = None
    """Time between passes that follow each other, as measured by one real base station; None: not known."""


def direction_slots(config: CellConfig, up: bool, seconds: float | None = None) -> int:
    """Slots of a direction in the first `seconds` after the warm-up, by default to the end; at least one."""
    end_s = config.seconds if seconds is None else config.warmup_s + seconds
    first, last = (round(s / config.radio.slot_s) for s in (config.warmup_s, end_s))
    return max(1, sum(config.radio.carries(up, slot) for slot in range(first, last)))


def grouped(config: CellConfig, tallies: Sequence[UeTally]) -> Groups:
    """The groups with the tallies of their UEs."""
    groups, first = [], 0
    for group in config.ues:
        groups.append((group, list(tallies[first : first + group.count])))
        first += group.count
    return groups


class SiteWork(NamedTuple):
    """What a cell and its base station have done so far."""

    station: int
    """Number of the base station."""
    passes: int
    busy_s: float
    used: dict[bool, float]
    """Sum of the shares of the bandwidth in use, by direction; True: uplink."""


def site_work(number: int, site: Site) -> SiteWork:
    """What a cell of the base station of this number has done so far."""
    known = site.station.metrics()
    return SiteWork(
        number, known["passes"], known["busy_s"], {way: one.used for way, one in site.radio.counters.items()}
    )


class Port(Protocol):
    """What is counted of one direction of a UE."""

    @property
    def slots(self) -> int:
        """Slots in which it has sent."""

    @property
    def used(self) -> float:
        """Sum of its shares of the bandwidth."""


def ue_work(ports: Mapping[bool, Port], tally: UeTally) -> UeWork:
    """What a UE has done so far."""
    return UeWork(
        {way: port.slots for way, port in ports.items()}, {way: port.used for way, port in ports.items()},
        tally.tokens, tally.rounds, tally.drafted,
    )  # fmt: skip


@dataclass(frozen=True)
class Snapshot:
    """Counters at one time, of everything or of a part of it."""

    ues: dict[int, UeWork]
    """By number of the UE."""
    waiting: int
    """Windows that wait for engines."""
    sites: dict[int, SiteWork] = field(default_factory=dict)
    """By number of the cell; empty between the beginning and the end."""

    def with_others(self, others: Iterable[Snapshot]) -> Snapshot:
        """Together with those of the other parts."""
        parts = [self, *others]
        ues, sites = {}, {}
        for part in parts:
            ues.update(part.ues)
            sites.update(part.sites)
        return Snapshot(dict(sorted(ues.items())), sum(part.waiting for part in parts), dict(sorted(sites.items())))


class CellCounter:
    """Counts a run from snapshots.

    Args:
        before: at the end of the warm-up.
    """

    def __init__(self, config: CellConfig, before: Snapshot) -> None:
        self._config, self._before = config, before
        seconds = config.seconds - config.warmup_s
        slots = {way: direction_slots(config, way) * config.step_s / seconds for way in (True, False)}
        self._recorder = SeriesRecorder(config.step_s, config.ues, list(before.ues.values()), slots)

    def step(self, now: Snapshot) -> None:
        """Take the end of a step of the series."""
        self._recorder.step(list(now.ues.values()), now.waiting)

    def end(self, now: Snapshot, groups: Groups, seconds: float) -> CellRun:
        """The counters at the end, `seconds` after the warm-up."""
        slot_s = self._config.radio.slot_s
        everyone = [tally for _, tallies in groups for tally in tallies]
        for tally, after, before in zip(everyone, now.ues.values(), self._before.ues.values(), strict=True):
            for way in (True, False):
                tally.air_s[way] = (after.slots[way] - before.slots[way]) * slot_s
                tally.band_s[way] = (after.used[way] - before.used[way]) * slot_s
        counted = {way: direction_slots(self._config, way, seconds) for way in (True, False)}
        sites = [
            _site_run(now.sites[number], before, counted, seconds) for number, before in self._before.sites.items()
        ]
        stations = [work.station for work in now.sites.values()]
        engines = list(dict(zip(stations, sites, strict=True)).values())
        return CellRun(
            groups=groups,
            uplink=sum(site.uplink for site in sites) / len(sites),
            downlink=sum(site.downlink for site in sites) / len(sites),
            passes=sum(engine.passes for engine in engines),
            busy=sum(engine.busy for engine in engines) / len(engines),
            seconds=seconds,
            series=self._recorder.finished(groups),
            sites=sites,
        )


def _site_run(now: SiteWork, before: SiteWork, counted: dict[bool, int], seconds: float) -> SiteRun:
    return SiteRun(
        uplink=min(1.0, (now.used[True] - before.used[True]) / counted[True]),  # a slot counts when it begins
        downlink=min(1.0, (now.used[False] - before.used[False]) / counted[False]),
        passes=now.passes - before.passes,
        busy=min(1.0, (now.busy_s - before.busy_s) / seconds),  # a pass counts when it ends
    )


def steps_of(config: CellConfig) -> int:
    """Steps of the series."""
    return int((config.seconds - config.warmup_s) / config.step_s + 1e-9)


async def counted(
    config: CellConfig, clock: Clock, look: Callable[[bool], Snapshot], groups: Groups, clear: Clear
) -> CellRun:
    """The counters of a run that begins now, from the warm-up to its end, or until it is `clear`.

    Args:
        look: takes a snapshot, with or without the sites.
    """
    start_s = clock.time()
    from_s, to_s = start_s + config.warmup_s, start_s + config.seconds
    await clock.sleep(from_s - clock.time())
    counter = CellCounter(config, look(True))
    for step in range(1, steps_of(config) + 1):
        await clock.sleep(from_s + step * config.step_s - clock.time())
        counter.step(look(False))
        if clear(step * config.step_s):
            to_s = from_s + step * config.step_s
            break
    await clock.sleep(max(0.0, to_s - clock.time()))
    return counter.end(look(True), groups, to_s - from_s)
