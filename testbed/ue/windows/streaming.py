"""Drafting for a stream: an index proposes tokens at once, and a model drafts concurrently where that is faster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from testbed.clock import Clock
from testbed.protocols.base import RoundProtocol
from testbed.protocols.messages import Verdict
from testbed.protocols.ranges import check_accepted
from testbed.tasks import cancel
from testbed.ue.drafters.base import Choose, Drafter
from testbed.ue.drafters.hybrid import HYBRID_FLOOR, HybridDrafter
from testbed.ue.drafters.index import IndexDrafter
from testbed.ue.pace import Pace
from testbed.ue.records import RoundRecord
from testbed.ue.windows.base import Guided, WindowPolicy
from testbed.ue.windows.joining import JoiningWindow, JoiningWindows
from testbed.ue.windows.model_ahead import ModelAhead
from testbed.ue.windows.stream_choice import StreamChoice

LEAST_SHORT = 4.0
"""Least weight of tokens after short matches, to compare the index with the model."""

Join = Callable[[Sequence[JoiningWindow], bool, float, float], Awaitable[int]]
"""See `SessionExchanges.join`."""


@dataclass(frozen=True)
class StreamParts:
    """The drafters of a stream."""

    index: IndexDrafter | None
    model: Drafter | None


def stream_parts(
    drafter: Drafter, protocol: RoundProtocol, policy: WindowPolicy, stream: bool, ahead: bool
) -> StreamParts | None:
    """The drafters of a session's streams; None: the session has no streams, since its protocol samples or judges
    tokens, the BS hints its windows, or its options ask for none.

    Args:
        stream: whether an index may draft for streams, alone or beside a model.
        ahead: whether a model may draft for streams, alone or beside an index.
    """
    if protocol.sampled or protocol.judged or protocol.skips or isinstance(policy, Guided):
        return None
    if isinstance(drafter, IndexDrafter):
        return StreamParts(drafter, None) if stream else None
    if isinstance(drafter, HybridDrafter):
        return StreamParts(drafter.index, drafter.model) if stream or ahead else None
    return StreamParts(None, drafter) if ahead else None


class StreamDrafting:
    """Drafts for the stream of one request.

    The model runs in a task of its own and drafts as many tokens ahead of the verdicts as `choice` allows. It pauses
    while tokens of the index await their verdict. If the target rejects the token that the model is computing, the
    computation is completed, as on a real device, and its result discarded.
    """

    def __init__(
        self, parts: StreamParts, policy: WindowPolicy, choice: StreamChoice | None, choose: Choose | None, pace: Pace,
        clock: Clock,
    ) -> None:  # fmt: skip
        choice = choice or StreamChoice(policy.max_window, alone=True)
        self._windows = JoiningWindows(parts.index, policy.max_window)
        self._model = None if parts.model is None else ModelAhead(parts.model, choose, pace, clock, choice)
        self._policy, self._choice, self._clock = policy, choice, clock
        self._task: asyncio.Task[None] | None = None
        self._lock, self._wake = asyncio.Lock(), asyncio.Event()
        self._ends: Set[int] = frozenset()
        self._room = self._bytes = 0
        self._waiting = False
        """Whether the target was last told to wait."""
        self._new = True
        """Whether the first verdict is still awaited."""
        self._drafting_s = 0.0
        """Time from the previous verdict until the window that this round verified was sent."""
        self._sent_s: dict[int, float] = {}
        """Times at which windows were sent, by their numbers."""

    @property
    def window(self) -> int:
        """Most tokens of a pass."""
        return self._windows.window

    @property
    def chooses(self) -> bool:
        """Whether a model drafts, for which chunks are chosen."""
        return self._model is not None

    def begin(self, prompt: Sequence[int], room: int, ends: Set[int], join: Join) -> None:
        """Begin a request for an output of `room` tokens.

        Raises:
            BadInput: the index refuses the prompt.
        """
        self._windows.begin(prompt)
        self._room, self._ends, self._join = room, ends, join
        self._begun_s = self._clock.time()
        if self._model is not None:
            self._model.begin(list(prompt))

    def reopened(self) -> None:
        """Forget what the BS knew: it opens the session anew, in which the target does not wait."""
        self._windows.reopened()
        self._waiting = False

    async def propose(self) -> None:
        """Send what the index proposes now; the first call starts the model.

        Raises:
            TestbedError: the model has failed.
        """
        if self._model is not None and self._task is None:
            self._task = asyncio.create_task(self._draft_on(self._model))
        if self._task is not None and self._task.done():
            self._task.result()
        floor = self._floor if self._waiting or (self._model is not None and self._choice.drafts) else 0
        await self._send(self._windows.draft(self._room, self._ends, floor))
        self._wake.set()

    def verified(self, verdict: Verdict, seconds: float) -> NDArray[np.int32]:
        """The drafted tokens that a verdict's pass verified; its times are recorded for the choice of the setting.

        The first pass computes the prompt as well: only its time on the link is recorded.

        Args:
            seconds: time from the previous verdict to this one.

        Raises:
            ProtocolError: see `JoiningWindows.verified`, or it accepts more tokens than these.
        """
        ids = self._windows.verified(verdict)
        check_accepted(verdict, len(ids))
        bs_s = min(max(0.0, verdict.bs_s), self._clock.time() - self._begun_s)
        if self._new:
            self._choice.linked(seconds - bs_s)
        else:
            self._choice.passed(verdict.joined, bs_s, verdict.accepted + 1, verdict.others_drafted)
        sent_s = self._sent_s.get(self._windows.last_verified)
        if verdict.joined and sent_s is not None:  # it may have come during the pass before, which `bs_s` includes
            self._choice.linked(self._clock.time() - sent_s - max(0.0, verdict.verify_s))
            self._drafting_s = max(0.0, sent_s - (self._clock.time() - seconds))
        self._new = False
        return ids

    def recorded(self, record: RoundRecord) -> RoundRecord:
        """The record of a round, completed with the tokens and the drafting time since the previous round."""
        sent, self._bytes = self._bytes, 0
        drafting_s, self._drafting_s = min(self._drafting_s, record.link_s), 0.0
        drafted, void, seconds = (0, 0, 0.0) if self._model is None else self._model.counts()
        return replace(
            record, streamed=True, uplink_bytes=sent, lookahead=int(drafted > 0), drafted_ahead=drafted, void=void,
            draft_s=drafting_s, link_s=record.link_s - drafting_s, hidden_s=max(0.0, seconds - drafting_s),
        )  # fmt: skip

    def commit(self, ids: Sequence[int]) -> None:
        """Append committed tokens."""
        self._windows.commit(ids)
        self._room -= len(ids)
        self._sent_s = {number: at_s for number, at_s in self._sent_s.items() if self._windows.awaits(number)}
        if self._model is not None:
            self._model.commit(ids)
            self._wake.set()

    async def close(self) -> None:
        """End drafting, and free the sequences."""
        if self._task is not None:
            await cancel(self._task)
        self._windows.close()
        if self._model is not None:
            self._model.close()

    # ------------------------------------------------------------ the model

    async def _draft_on(self, model: ModelAhead) -> None:
        while True:
            self._wake.clear()
            await self._tell(model)
            if not self._may_draft(model):
                await self._wake.wait()
            elif await model.draft_one():
                await self._offer(model)

    @property
    def _floor(self) -> int:
        """Shortest match of the index beside a model that drafts: any, where it has been right more often than this."""
        short = self._windows.short
        return 0 if short.weight >= LEAST_SHORT and short.value > self._choice.acceptance else HYBRID_FLOOR

    def _may_draft(self, model: ModelAhead) -> bool:
        """Whether the model is to draft another token."""
        setting = self._choice.setting
        if setting is None or not self._can_draft(model):
            return False
        return model.ahead < setting.ahead and (self._choice.trial or self._windows.away <= model.ahead)

    def _can_draft(self, model: ModelAhead) -> bool:
        """Whether a further token of the model may come before the end of the output."""
        return not model.full and model.ahead + 1 < self._room and not model.ended(self._ends)

    async def _offer(self, model: ModelAhead) -> None:
        """Send drafted tokens of the model once they fill a chunk, or if no token can follow them."""
        setting, tokens = self._choice.setting, model.tokens
        if setting is None or self._choice.trial or not (new := tokens[self._windows.away :]):
            return
        whole = self._can_draft(model) and self._policy.keep_drafting(new)
        ids = [token.id for token in tokens]
        await self._send(self._windows.offer(ids, setting.chunk, self._room, self._ends, whole))

    # ------------------------------------------------------------ sending

    async def _send(self, windows: Sequence[JoiningWindow]) -> None:
        if not windows:
            return
        waits = self._waits()
        async with self._lock:
            now_s = self._clock.time()
            self._sent_s.update((one.number, now_s) for one in windows if len(one.ids))
            self._waiting = waits
            await self._join_with_times(windows, waits)

    def _waits(self) -> bool:
        """Whether the target is to wait for more windows after those sent now, since the model continues them."""
        setting = self._choice.setting
        if self._model is None or setting is None or not setting.waits:
            return False
        return self._can_draft(self._model) and self._windows.away + 1 < self._room

    async def _tell(self, model: ModelAhead) -> None:
        """Tell the target to wait, or to go on if no window would come."""
        waits = self._waits() and (self._windows.away > 0 or self._may_draft(model))
        if waits != self._waiting:
            async with self._lock:
                self._waiting = waits
                await self._join_with_times([self._windows.empty()], waits)

    async def _join_with_times(self, windows: Sequence[JoiningWindow], waits: bool) -> None:
        draft_s = 0.0 if self._model is None else self._model.unsent_s()
        self._bytes += await self._join(windows, waits, draft_s, self._choice.link_s)
