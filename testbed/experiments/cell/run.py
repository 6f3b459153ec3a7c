"""A cell in virtual time: groups of UEs, one radio, one base station."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from testbed.bs.scheduling.hints import WindowHints
from testbed.bs.scheduling.registry import SCHEDULERS, SchedulerSetting, scheduler
from testbed.bs.sessions import SessionTable
from testbed.errors import EngineError
from testbed.experiments.cell.config import CellConfig, UeGroup, radio_ues
from testbed.experiments.cell.control.controller import JointController
from testbed.experiments.cell.control.estimates import JointHints
from testbed.experiments.cell.csi import RadioChannel, ue_state, with_handshakes
from testbed.experiments.cell.drafts import Agreement, VirtualDrafter
from testbed.experiments.cell.judge import ChanceJudge
from testbed.experiments.cell.planning import read_plan, ue_name
from testbed.experiments.cell.recorded import RecordedWork, recorded_policy, recording_of, virtual_replay
from testbed.experiments.cell.series import CellSeries, SeriesRecorder
from testbed.experiments.cell.tally import Counted, UeTally, Watch, unwatched
from testbed.experiments.cell.ue import Meeting, decode_responses, dice_of, drawn_lengths, send_bytes
from testbed.experiments.deployment.links import VirtualRadio, message_sizes
from testbed.experiments.deployment.load import LoadUe
from testbed.experiments.deployment.profiled import ProfilePace, hinting
from testbed.experiments.deployment.traffic_bs import OFFER, PrefixCache, TrafficRunner
from testbed.experiments.deployment.traffic_ue import LANGUAGE, VOCAB, DraftChances, policy
from testbed.experiments.deployment.virtual import VirtualDeployment, VirtualStation
from testbed.experiments.inputs.coefficients import pass_coefficients
from testbed.experiments.inputs.profile import Profile, load_profile
from testbed.intervals import independent_seed
from testbed.protocols import protocol
from testbed.protocols.sampling import GREEDY, Sampling
from testbed.ue.drafters.base import Drafter
from testbed.ue.records import RequestRecord
from testbed.ue.windows.base import WindowPolicy
from testbed.ue.windows.registry import WINDOW_RULES
from testbed.ue.windows.stream_choice import StreamChoice
from testbed.ue.windows.uploads import Uploads
from testbed.virtual_time import run_virtually

Clear = Callable[[float], bool]
"""Takes the time since the warm-up; whether a run may end."""
Told = Callable[[float, float], object]
"""Takes the seconds of a run that have passed, and all of them."""


def untold(passed_s: float, seconds: float) -> None:
    """A `Told` that does nothing."""


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
    seconds: float
    """The time."""
    series: CellSeries | None = None
    """Values over time; None: not known."""


def run_cell(
    config: CellConfig,
    watches: Mapping[str, Watch] | None = None,
    clear: Clear = lambda seconds: False,
    channels_s: float | None = None,
    told: Told = untold,
) -> CellRun:
    """Run a cell in virtual time; the same configuration gives the same result.

    Args:
        watches: told of every response of a group, by the group's name.
        clear: called after every step with the time since the warm-up; the run ends early once it returns true.
        channels_s: time that computed channels cover, after which they repeat. Default: that of the run.
        told: called after every step that follows the warm-up.

    Raises:
        BadInput: an unknown profile, an unreadable trace, or efficiencies that do not fit the groups.
        EngineError: a response of greedy decoding under the strict judge differs from the target's own.
    """

    def stepped(seconds: float) -> bool:
        told(config.warmup_s + seconds, config.seconds)
        return clear(seconds)

    return run_virtually(_Cell(config, channels_s or config.seconds).run(watches or {}, stepped))


def direction_slots(config: CellConfig, up: bool, seconds: float | None = None) -> int:
    """Slots of a direction in the first `seconds` after the warm-up, by default to the end; at least one."""
    end_s = config.seconds if seconds is None else config.warmup_s + seconds
    first, last = (round(s / config.radio.slot_s) for s in (config.warmup_s, end_s))
    return max(1, sum(config.radio.carries(up, slot) for slot in range(first, last)))


def _same(prompt: Sequence[int], record: RequestRecord) -> None:
    """Compare a response with the target's own tokens."""
    end = len(prompt) + len(record.token_ids)
    if LANGUAGE[len(prompt) : end].tolist() != list(record.token_ids):
        raise EngineError("a response differs from the target's own output")


def _unseen(prompt: Sequence[int], record: RequestRecord) -> None:
    """Responses of protocols that sample, and of judges that keep tokens, differ from the target's own."""


class _Cell:
    """The parts of a run."""

    def __init__(self, config: CellConfig, channels_s: float) -> None:
        self._plan = plan = None if config.bs.plan is None else read_plan(config)
        config = self._config = config if plan is None else plan.applied(config)
        self._deployment = VirtualDeployment()
        self._profiles = {group.name: load_profile(group.profile) for group in config.ues if group.traffic == "tokens"}
        self._recordings = {group.name: recording_of(group) for group in config.ues}
        self._hints = JointHints()
        self._bs = self._station(load_profile(config.bs.profile))
        self._meeting = Meeting(sum(group.count for group in config.ues if group.together))
        self._members = [group for group in config.ues for _ in range(group.count)]
        weights = [group.weight for group in self._members] if plan is None else plan.weights(config)
        self._radio = VirtualRadio(config.radio, radio_ues(config), channels_s, config.seed, weights)

    def _station(self, profile: Profile) -> VirtualStation:
        bs, groups = self._config.bs, self._config.ues
        planned = SCHEDULERS.choose(bs.scheduler).needs_coefficients
        known = pass_coefficients(profile.verify) if planned else None
        setting = SchedulerSetting(
            bs.max_batch, 10**9, known, kv_tokens=bs.kv_tokens, cuts=True, worths=self._hints.worths
        )
        cache = PrefixCache(bs.kv_tokens, tail=True)
        lenient = any(group.judge_keeps for group in groups)
        return self._deployment.base_station(
            TrafficRunner(profile.verify, cache, self._deployment.clock, linger=False, lenient=lenient),
            OFFER,
            scheduler=scheduler(bs.scheduler, setting) if self._plan is None else self._plan.scheduler(self._config),
            judge=ChanceJudge(self._config.seed),
            sessions=SessionTable(total=2 * sum(group.count for group in groups) + 64),
            windows=self._windows(profile),
        )

    def _windows(self, profile: Profile) -> WindowHints | None:
        """Hints of the controller of the cell; without one, of the base station's own if UEs follow any."""
        if self._config.control.decides:
            return self._hints
        hinted = any(WINDOW_RULES[group.window_rule].hinted for group in self._config.ues)
        return hinting(profile, max_requests=self._config.bs.max_batch) if hinted else None

    async def run(self, watches: Mapping[str, Watch], clear: Clear) -> CellRun:
        config, clock = self._config, self._deployment.clock
        from_s, to_s = clock.time() + config.warmup_s, clock.time() + config.seconds
        tallies = [UeTally(clock, from_s, to_s, watches.get(group.name, unwatched)) for group in self._members]
        lives = [
            (self._send if group.traffic == "bytes" else self._decode)(group, number, tallies[number])
            for number, group in enumerate(self._members)
        ]
        groups, first = [], 0
        for group in config.ues:
            groups.append((group, tallies[first : first + group.count]))
            first += group.count
        if config.control.decides:
            lives.append(self._controller().run(tallies))
        return await self._deployment.run(self._count(groups, from_s, to_s, clear), *lives)

    def _controller(self) -> JointController:
        return JointController(
            self._config, self._members, self._radio, self._hints, self._bs.metrics, self._deployment.clock
        )

    async def _count(
        self, groups: list[tuple[UeGroup, list[UeTally]]], from_s: float, to_s: float, clear: Clear
    ) -> CellRun:
        """The counters of the time from `from_s` to `to_s`, or until it is `clear`."""
        config, clock, used = self._config, self._deployment.clock, self._radio.cell.counters
        steps = max(1, int((to_s - from_s) / config.step_s + 1e-9))
        slots = {up: direction_slots(config, up) for up in (True, False)}
        await clock.sleep(from_s - clock.time())
        before, up, down = self._bs.metrics(), used[True].used, used[False].used
        aired = [{way: (port.slots, port.used) for way, port in ports.items()} for ports in self._radio.ports]
        each = {way: count * config.step_s / (to_s - from_s) for way, count in slots.items()}
        recorder = SeriesRecorder(config.step_s, groups, self._radio.ports, lambda: self._bs.waiting, each)
        for step in range(1, steps + 1):
            await clock.sleep(from_s + step * config.step_s - clock.time())
            recorder.step()
            if clear(step * config.step_s):
                to_s = from_s + step * config.step_s
                break
        await clock.sleep(max(0.0, to_s - clock.time()))
        after, seconds = self._bs.metrics(), to_s - from_s
        counted = {up: direction_slots(config, up, seconds) for up in slots}
        everyone = [tally for _, tallies in groups for tally in tallies]
        for tally, ports, first in zip(everyone, self._radio.ports, aired, strict=True):
            for way, port in ports.items():
                tally.air_s[way] = (port.slots - first[way][0]) * config.radio.slot_s
                tally.band_s[way] = (port.used - first[way][1]) * config.radio.slot_s
        return CellRun(
            groups=groups,
            uplink=(used[True].used - up) / counted[True],
            downlink=(used[False].used - down) / counted[False],
            passes=after["passes"] - before["passes"],
            busy=min(1.0, (after["busy_s"] - before["busy_s"]) / seconds),  # a pass counts when it ends
            seconds=seconds,
            series=recorder.finished(),
        )

    def _ways(self, number: int, tally: UeTally) -> tuple[Counted, Counted]:
        up, down = (Counted(self._radio.ports[number][up], tally, up, self._deployment.clock) for up in (True, False))
        return up, down

    async def _send(self, group: UeGroup, number: int, tally: UeTally) -> None:
        """Life of a UE that sends bytes."""
        up, _ = self._ways(number, tally)
        await send_bytes(group, up, self._deployment.clock, dice_of(self._config.seed, number))

    async def _decode(self, group: UeGroup, number: int, tally: UeTally) -> None:
        """Life of a UE that decodes responses."""
        config, clock = self._config, self._deployment.clock
        dice = dice_of(config.seed, number)
        recording = self._recordings[group.name]
        work = None if recording is None else RecordedWork(recording, group.method.drafts)
        ue = self._ue(group, number, tally, work)
        await clock.sleep(dice.uniform(0, min(1.0, config.warmup_s)))
        await ue.client.connect("", VOCAB)
        truth = RadioChannel(config.radio, self._radio.air, number, self._radio.cell.begin(), clock)
        ue = replace(ue, state=await ue_state(group, truth, ue.client, clock, tally, (config.seed, number)))
        try:
            meet = self._meeting.meet if group.together else None
            lengths = drawn_lengths(group) if work is None else work.next
            await decode_responses(
                group, ue, tally, clock, dice, lambda length: LANGUAGE[:length].tolist(), lengths,
                _same if group.lossless else _unseen, meet,
            )  # fmt: skip
        finally:
            await ue.client.close()

    def _ue(self, group: UeGroup, number: int, tally: UeTally, work: RecordedWork | None) -> LoadUe:
        profile, seed = self._profiles[group.name], independent_seed(self._config.seed, "drafts", number)
        drafter, rule = self._drafting(group, number, seed, work)
        return LoadUe(
            client=self._bs.connect(
                self._ways(number, tally), with_handshakes(message_sizes(profile)), ue_name(number)
            ),
            drafter=drafter,
            policy=rule if group.method.drafts else None,
            pace=ProfilePace(profile, self._deployment.clock),
            speed_tps=group.class_tps,
            protocol=group.protocol,
            uploads=Uploads(protocol(group.protocol), hinted=True) if group.protocol_hints else None,
            threshold=group.judge_keeps,
            sampling=group.method.sampling(Sampling()) if group.method.drafts else GREEDY,
            seeds=partial(Random(seed).getrandbits, 63),
            lookahead=group.lookahead,
            streams=StreamChoice(group.window, alone=False) if group.lookahead == "stream" else None,
        )

    def _drafting(
        self, group: UeGroup, number: int, seed: int, work: RecordedWork | None
    ) -> tuple[Drafter, WindowPolicy]:
        """Drafter and window policy of a UE."""
        if work is not None:
            return virtual_replay(work), recorded_policy(group, work.recording)
        chances = DraftChances(group.alpha)
        drafter = VirtualDrafter(chances, seed, Agreement(self._config.seed, number, group.alpha))
        return drafter, policy(chances, WINDOW_RULES[group.window_rule], group.window)
