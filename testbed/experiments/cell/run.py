"""A cell in virtual time: groups of UEs, one radio, one base station."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from testbed.bs.scheduling.registry import SCHEDULERS, SchedulerSetting, scheduler
from testbed.bs.sessions import SessionTable
from testbed.channel.radio.mac import RadioCell
from testbed.channel.virtual import frame_bytes
from testbed.experiments.capacity.bs import OFFER, PrefixCache, TrafficRunner
from testbed.experiments.capacity.systems import CapacityConfig
from testbed.experiments.capacity.ue import LANGUAGE, VOCAB, Chance, TrafficDrafter
from testbed.experiments.cell.config import CellConfig, UeGroup, radio_ues
from testbed.experiments.cell.tally import Counted, UeTally
from testbed.experiments.cell.ue import decode_responses, dice_of, send_bytes
from testbed.experiments.deployment.load import LoadUe
from testbed.experiments.deployment.profiled import ProfilePace
from testbed.experiments.deployment.virtual import VirtualDeployment, VirtualStation
from testbed.experiments.inputs.coefficients import pass_coefficients
from testbed.experiments.inputs.payloads import sizers
from testbed.experiments.inputs.profile import Profile, load_profile
from testbed.ue.windows.fixed import FixedWindow
from testbed.virtual_time import run_virtually


@dataclass(frozen=True)
class CellRun:
    """Counters of a finished run; times cover what followed the warm-up."""

    groups: list[tuple[UeGroup, list[UeTally]]]
    uplink: float
    """Mean share of the bandwidth in use, over the slots of the direction."""
    downlink: float
    passes: int
    busy: float
    """Share of the time during which the base station was verifying."""


def run_cell(config: CellConfig) -> CellRun:
    """Run a cell in virtual time; the same configuration gives the same result.

    Raises:
        BadInput: an unknown profile, an unreadable trace, or efficiencies that do not fit the groups.
    """
    return run_virtually(_Cell(config).run())


def direction_slots(config: CellConfig, up: bool) -> int:
    """Slots of a direction after the warm-up, at least one."""
    first, last = (round(s / config.radio.slot_s) for s in (config.warmup_s, config.seconds))
    return max(1, sum(config.radio.carries(up, slot) for slot in range(first, last)))


class _Cell:
    """The parts of a run."""

    def __init__(self, config: CellConfig) -> None:
        self._config = config
        self._deployment = VirtualDeployment()
        self._profiles = {group.name: load_profile(group.profile) for group in config.ues if group.traffic == "tokens"}
        self._radio = RadioCell(
            config.radio, config.radio.air(radio_ues(config), config.seconds, config.seed), config.seed
        )
        self._bs = self._station(load_profile(config.bs.profile))

    def _station(self, profile: Profile) -> VirtualStation:
        bs = self._config.bs
        planned = SCHEDULERS.choose(bs.scheduler).needs_coefficients
        known = pass_coefficients(profile.verify) if planned else None
        setting = SchedulerSetting(bs.max_batch, 10**9, known, kv_tokens=bs.kv_tokens, cuts=True)
        cache = PrefixCache(bs.kv_tokens, tail=True)
        return self._deployment.base_station(
            TrafficRunner(profile.verify, cache, self._deployment.clock, linger=False),
            OFFER,
            scheduler=scheduler(bs.scheduler, setting),
            sessions=SessionTable(total=2 * sum(group.count for group in self._config.ues) + 64),
        )

    async def run(self) -> CellRun:
        config, clock = self._config, self._deployment.clock
        from_s, to_s = clock.time() + config.warmup_s, clock.time() + config.seconds
        groups: list[tuple[UeGroup, list[UeTally]]] = []
        ues = []
        for group in config.ues:
            tallies = [UeTally(clock, from_s, to_s) for _ in range(group.count)]
            first = sum(len(others) for _, others in groups)
            groups.append((group, tallies))
            live = self._send if group.traffic == "bytes" else self._decode
            ues += [live(group, first + number, tally) for number, tally in enumerate(tallies)]
        snapshots: list[tuple[float, float, dict[str, Any]]] = []

        async def watch() -> None:
            for until_s in (from_s, to_s):
                await clock.sleep(until_s - clock.time())
                used = self._radio.counters
                snapshots.append((used[True].used, used[False].used, self._bs.metrics()))

        await self._deployment.run(watch(), *ues)
        (up, down, before), (up_end, down_end, after) = snapshots
        seconds = config.seconds - config.warmup_s
        return CellRun(
            groups=groups,
            uplink=(up_end - up) / direction_slots(config, True),
            downlink=(down_end - down) / direction_slots(config, False),
            passes=after["passes"] - before["passes"],
            busy=min(1.0, (after["busy_s"] - before["busy_s"]) / seconds),  # a pass counts when it ends
        )

    def _ways(self, group: UeGroup, number: int, tally: UeTally) -> tuple[Counted, Counted]:
        clock = self._deployment.clock
        up, down = (Counted(self._radio.port(number, up, group.weight), tally, up, clock) for up in (True, False))
        return up, down

    async def _send(self, group: UeGroup, number: int, tally: UeTally) -> None:
        """Life of a UE that sends bytes."""
        up, _ = self._ways(group, number, tally)
        await send_bytes(group, up, self._deployment.clock, dice_of(self._config.seed, number))

    async def _decode(self, group: UeGroup, number: int, tally: UeTally) -> None:
        """Life of a UE that decodes responses."""
        config, clock, profile = self._config, self._deployment.clock, self._profiles[group.name]
        dice = dice_of(config.seed, number)
        sizes = profile.sizes
        counted = (frame_bytes, frame_bytes) if sizes is None else sizers(sizes, profile.overheads)
        client = self._bs.connect(self._ways(group, number, tally), counted)
        drafter = TrafficDrafter(Chance(CapacityConfig(acceptance=group.alpha), dice.getrandbits(64)))
        pace = ProfilePace(profile, clock)
        policy = FixedWindow(group.window)
        ue = LoadUe(client, drafter, policy, pace, speed_tps=group.class_tps, protocol=group.protocol)
        await clock.sleep(dice.uniform(0, min(1.0, config.warmup_s)))
        await client.connect("", VOCAB)
        try:
            await decode_responses(group, ue, tally, clock, dice, lambda length: LANGUAGE[:length].tolist())
        finally:
            await client.close()
