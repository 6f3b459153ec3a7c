"""What a run counts between the end of the warm-up and its end: radio, base stations, UEs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from testbed.channel.radio.mac import RadioCell
from testbed.clock import Clock
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.series import CellSeries, Ports, SeriesRecorder
from testbed.experiments.cell.tally import UeTally
from testbed.experiments.deployment.virtual import VirtualStation

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


class CellCounter:
    """Counts a run.

    Args:
        ports: of all UEs, in order.
    """

    def __init__(self, config: CellConfig, clock: Clock, sites: Sequence[Site], ports: Sequence[Ports]) -> None:
        self._config, self._clock, self._sites, self._ports = config, clock, sites, ports

    async def count(self, groups: Groups, from_s: float, to_s: float, clear: Clear) -> CellRun:
        """The counters of the time from `from_s` to `to_s`, or until it is `clear`."""
        config, clock = self._config, self._clock
        steps = max(1, int((to_s - from_s) / config.step_s + 1e-9))
        slots = {up: direction_slots(config, up) for up in (True, False)}
        await clock.sleep(from_s - clock.time())
        before = [self._work(site) for site in self._sites]
        aired = [{way: (port.slots, port.used) for way, port in ports.items()} for ports in self._ports]
        each = {way: count * config.step_s / (to_s - from_s) for way, count in slots.items()}
        recorder = SeriesRecorder(config.step_s, groups, self._ports, self._waiting, each)
        for step in range(1, steps + 1):
            await clock.sleep(from_s + step * config.step_s - clock.time())
            recorder.step()
            if clear(step * config.step_s):
                to_s = from_s + step * config.step_s
                break
        await clock.sleep(max(0.0, to_s - clock.time()))
        everyone = [tally for _, tallies in groups for tally in tallies]
        for tally, ports, first in zip(everyone, self._ports, aired, strict=True):
            for way, port in ports.items():
                tally.air_s[way] = (port.slots - first[way][0]) * config.radio.slot_s
                tally.band_s[way] = (port.used - first[way][1]) * config.radio.slot_s
        sites = [self._run(*pair, to_s - from_s) for pair in zip(self._sites, before, strict=True)]
        engines = list({id(site.station): run for site, run in zip(self._sites, sites, strict=True)}.values())
        return CellRun(
            groups=groups,
            uplink=sum(site.uplink for site in sites) / len(sites),
            downlink=sum(site.downlink for site in sites) / len(sites),
            passes=sum(engine.passes for engine in engines),
            busy=sum(engine.busy for engine in engines) / len(engines),
            seconds=to_s - from_s,
            series=recorder.finished(),
            sites=sites,
        )

    def _waiting(self) -> int:
        return sum(station.waiting for station in {id(site.station): site.station for site in self._sites}.values())

    def _work(self, site: Site) -> tuple[dict[str, Any], float, float]:
        used = site.radio.counters
        return site.station.metrics(), used[True].used, used[False].used

    def _run(self, site: Site, before: tuple[dict[str, Any], float, float], seconds: float) -> SiteRun:
        earlier, up, down = before
        later, up_now, down_now = self._work(site)
        counted = {way: direction_slots(self._config, way, seconds) for way in (True, False)}
        return SiteRun(
            uplink=(up_now - up) / counted[True],
            downlink=(down_now - down) / counted[False],
            passes=later["passes"] - earlier["passes"],
            busy=min(1.0, (later["busy_s"] - earlier["busy_s"]) / seconds),  # a pass counts when it ends
        )
