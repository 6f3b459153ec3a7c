"""UEs of a cell that decode: drafter, window rule and pace of each, and its life."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, NamedTuple

from testbed.channel.virtual import Sizer
from testbed.clock import Clock
from testbed.errors import EngineError
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.csi import with_handshakes
from testbed.experiments.cell.parts.computed import ComputedPair
from testbed.experiments.cell.parts.drafts import Agreement, VirtualDrafter
from testbed.experiments.cell.parts.tasks import UeTasks
from testbed.experiments.cell.recorded import RecordedWork, recording_of, trained_policy, virtual_replay
from testbed.experiments.cell.tally import UeTally
from testbed.experiments.cell.ue import Meeting, decode_responses, dice_of, drawn_lengths, lookahead_of, streams_of
from testbed.experiments.deployment.links import message_sizes
from testbed.experiments.deployment.load import LoadUe
from testbed.experiments.deployment.profiled import ProfilePace
from testbed.experiments.deployment.traffic_ue import LANGUAGE, VOCAB, DraftChances, policy
from testbed.experiments.inputs.profile import load_profile
from testbed.intervals import independent_seed
from testbed.protocols import protocol
from testbed.protocols.sampling import GREEDY, Sampling
from testbed.ue.channel_state import ChannelState
from testbed.ue.client import Client
from testbed.ue.drafters.base import Drafter
from testbed.ue.records import RequestRecord
from testbed.ue.windows.base import WindowPolicy
from testbed.ue.windows.registry import WINDOW_RULES
from testbed.ue.windows.uploads import Uploads


def _same(prompt: Sequence[int], record: RequestRecord) -> None:
    """Compare a response with the target's own tokens."""
    end = len(prompt) + len(record.token_ids)
    if LANGUAGE[len(prompt) : end].tolist() != list(record.token_ids):
        raise EngineError("a response differs from the target's own output")


def _compared(tasks: UeTasks, prompt: Sequence[int], record: RequestRecord) -> None:
    """Compare a response with the target's own, and with the scorer."""
    tasks.seen(prompt, record)
    if tasks.lossy:
        raise EngineError("a response differs from the target's own output")


def _unseen(prompt: Sequence[int], record: RequestRecord) -> None:
    """Responses of protocols that sample, and of judges that keep tokens, differ from the target's own."""


class Requests(NamedTuple):
    """Requests of a UE, see `decode_responses`."""

    prompt: Callable[[int], Sequence[int]]
    lengths: Callable[[Random], tuple[int, int]]
    seen: Callable[[Any, RequestRecord], object]


class DecodingUes:
    """The UEs of a cell that decode.

    Args:
        pair: models that compute their tokens. Default: they are synthetic, or recorded.

    Raises:
        BadInput: an unknown profile, or unreadable recorded drafts.
    """

    def __init__(self, config: CellConfig, clock: Clock, pair: ComputedPair | None = None) -> None:
        self._config, self._clock, self._pair = config, clock, pair
        self._profiles = {group.name: load_profile(group.profile) for group in config.ues if group.traffic == "tokens"}
        self._recordings = {group.name: recording_of(group) for group in config.ues}
        self._meeting = Meeting(sum(group.count for group in config.ues if group.together))

    def sizers(self, group: UeGroup) -> tuple[Sizer, Sizer]:
        """Bytes of the messages of a group's UEs, up and down."""
        return with_handshakes(message_sizes(self._profiles[group.name]))

    async def decode(
        self,
        group: UeGroup,
        number: int,
        tally: UeTally,
        client: Client,
        known: Callable[[Client], Awaitable[ChannelState]],
    ) -> None:
        """Life of the UE of this number.

        Args:
            known: what the connected UE knows of its channel.

        Raises:
            EngineError: a response of greedy decoding under the strict judge differs from the target's own.
        """
        config, clock = self._config, self._clock
        dice = dice_of(config.seed, number)
        recording = self._recordings[group.name]
        work = None if recording is None else RecordedWork(recording, group.method.drafts)
        ue = self._ue(group, number, client, work, tally)
        await clock.sleep(group.begin_s + dice.uniform(0, min(1.0, config.warmup_s)))
        await (client.connect("", VOCAB) if self._pair is None else self._pair.greet(client))
        ue = replace(ue, state=await known(client))
        try:
            meet = self._meeting.meet if group.together else None
            await decode_responses(group, ue, tally, clock, dice, *self._requests(group, work, tally), meet)
        finally:
            await client.close()

    def _requests(self, group: UeGroup, work: RecordedWork | None, tally: UeTally) -> Requests:
        """Requests of a UE."""
        if self._pair is not None:
            tasks = self._pair.tasks
            computed = UeTasks(tasks, tally, tasks.exact(group))
            return Requests(computed.prompt, computed.next, partial(_compared, computed))
        lengths = drawn_lengths(group) if work is None else work.next
        return Requests(lambda length: LANGUAGE[:length].tolist(), lengths, _same if group.lossless else _unseen)

    def _ue(self, group: UeGroup, number: int, client: Client, work: RecordedWork | None, tally: UeTally) -> LoadUe:
        profile, seed = self._profiles[group.name], independent_seed(self._config.seed, "drafts", number)
        drafter, rule = self._drafting(group, number, seed, work)
        ue = LoadUe(
            client=client,
            drafter=drafter,
            policy=rule if group.method.drafts else None,
            pace=ProfilePace(profile, self._clock, computed=tally.computed),
            speed_tps=group.class_tps,
            protocol=group.protocol,
            uploads=Uploads(protocol(group.protocol), hinted=True) if group.protocol_hints else None,
            threshold=group.judge_keeps,
            sampling=group.method.sampling(Sampling()) if group.method.drafts else GREEDY,
            seeds=partial(Random(seed).getrandbits, 63),
            lookahead=group.lookahead,
            streams=streams_of(group),
            chooser=lookahead_of(group),
        )
        return ue if self._pair is None else self._pair.decoding(ue, group)

    def _drafting(
        self, group: UeGroup, number: int, seed: int, work: RecordedWork | None
    ) -> tuple[Drafter, WindowPolicy]:
        """Drafter and window policy of a UE."""
        if self._pair is not None:
            drafter: Drafter = self._pair.models.drafter
            return drafter, trained_policy(group, drafter.fingerprint)
        if work is not None:
            return virtual_replay(work), trained_policy(group, work.recording.drafter)
        chances = DraftChances(group.alpha)
        drafter = VirtualDrafter(chances, seed, Agreement(self._config.seed, number, group.alpha))
        return drafter, policy(chances, WINDOW_RULES[group.window_rule], group.window)
