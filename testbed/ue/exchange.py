"""The exchanges of a session (a window sent, its verdict received) and the records that they lead to."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from testbed.channel.csi import single
from testbed.errors import LinkTimeout, ProtocolError
from testbed.protocols.base import Drafted
from testbed.protocols.codec import AnyArray, Packet, asked_positions
from testbed.protocols.messages import Busy, Draft, Fault, Hidden, NeedHidden, Opened, Resync, Verdict
from testbed.ue.client import RESEND_S, Client
from testbed.ue.records import RoundRecord, remaining
from testbed.ue.waiting.patience import Patience
from testbed.ue.waiting.reported import ReportedTimes
from testbed.ue.windows.joining import JoiningWindow

NOTHING = Drafted(np.zeros(0, np.int32), np.zeros((0, 0), np.float16))
SLOWEST_BPS = 1e6
"""Lowest uplink rate expected, by which the time before a message is sent again is reckoned."""
MOST_AHEAD = 2**12
"""Verdicts of a BS that decodes alone are dropped if their round is further ahead: another BS counts on from there."""
SILENCE_S = 10.0
"""First wait for the first token of a BS that decodes alone before the session is opened again; doubled each time."""
PATIENCE = 4
"""The same wait afterwards, at least `RESEND_S`, relative to the longest time between tokens so far."""


@dataclass
class OutgoingWindow:
    """A drafted window, and what is known of its way to the BS."""

    draft: Draft
    arrays: dict[str, AnyArray]
    drafted: Drafted
    begin_s: float
    """Start of its drafting on the UE's clock, the time since the last verdict included."""
    drafting_s: float = 0.0
    """Time spent on its tokens."""
    sent_s: float | None = None
    """Time at which it was sent first; None: it was not."""
    sent_bytes: int = 0
    """Bytes of all its messages."""
    known: bool = False
    """Whether the BS has it, as far as the UE knows: it was sent and not refused, and the session was not reopened."""

    @property
    def patience_s(self) -> float:
        """Time to wait for an answer before it is sent again the first time."""
        return max(RESEND_S, 8 * self.sent_bytes / SLOWEST_BPS)


class Exchange(NamedTuple):
    """A window that was sent and its verdict, or a verdict that the BS sent while decoding alone."""

    verdict: Verdict
    arrays: dict[str, AnyArray]
    """Arrays of the verdict."""
    seconds: float
    """Time from sending the window to the verdict; when the BS decodes alone, from the previous verdict."""
    reveal_s: float
    """The part of `seconds` in which the UE answered a query for hidden states."""
    downlink_bytes: int
    sent_s: float
    """Start, on the UE's clock."""

    @property
    def link_s(self) -> float:
        """`seconds` without the times of UE and BS."""
        return max(0.0, self.seconds - self.reveal_s - max(0.0, self.verdict.bs_s))


class SessionExchanges:
    """Exchanges of one session: what is lost is sent again, and a session that is unknown to the BS opened again.

    Args:
        open_: opens the session at a round; returns the bytes sent.
        refused: called for a `Busy` that refuses the session for its token speed.
        reveal: makes the arrays of hidden states that the BS requests.
    """

    def __init__(
        self,
        client: Client,
        number: int,
        open_: Callable[[int], Awaitable[int]],
        refused: Callable[[Busy], None],
        reveal: Callable[[Drafted, Sequence[int]], dict[str, AnyArray]],
    ) -> None:
        self._client, self._clock, self._number = client, client.clock, number
        self._open_session, self._refused, self._reveal = open_, refused, reveal
        self._times, self._unanswered = ReportedTimes(self._clock.time()), 0
        """Drafts, and windows for a stream, that the BS may answer with a `Resync` each."""
        self.ahead: OutgoingWindow | None = None
        """The window that was sent ahead, after the one whose verdict is awaited."""
        self._longest_s: float | None = None
        """Longest time between tokens of a BS that decodes alone, without silence until a new opening; None: none."""
        self._opening, self._opened_s, self._confirm_s = True, 0.0, RESEND_S
        """Whether the BS has yet to confirm the last opening, when that was, and the time to wait the first time."""
        self.opened_bytes = 0
        """Bytes of these confirmations, which count in no round."""

    async def open(self, round_: int) -> None:
        """Open the session at a round."""
        self._opening, self._opened_s = True, self._clock.time()
        self._confirm_s = max(RESEND_S, 8 * await self._open_session(round_) / SLOWEST_BPS)

    async def send(self, window: OutgoingWindow) -> None:
        """Send a window, or send it again."""
        if window.sent_s is None:
            window.sent_s = self._clock.time()
        window.sent_bytes += await self._client.send(window.draft, window.arrays)
        window.known = True
        self._unanswered += 1

    async def verdict(self, window: OutgoingWindow) -> Exchange:
        """Send a window if it was not sent ahead, and answer what the BS asks until its verdict comes.

        The round before is judged, so that the window is sent again without its guess: a BS that is behind answers.

        Raises:
            LinkTimeout: no verdict, and no progress towards it, within the client's timeout.
            AdmissionError: the BS cannot guarantee the speed.
            ProtocolError: the BS refuses.
        """
        start_s, reveal_s, down, unknown, number = self._clock.time(), 0.0, 0, 0, window.draft.round
        patience, questions = self._client.patience(), 1  # one question, each time that the BS receives the window
        window.draft, places = replace(window.draft, guess=None), (None, window.draft.base_len)
        if not window.known:
            await self.send(window)
        wait_s = window.patience_s
        while True:
            packet = await self._next(patience, wait_s)
            if packet is None:
                await self.send(window)
                questions, wait_s, unknown = questions + 1, 2 * wait_s, 0
                continue
            message, down = packet.message, down + packet.size_bytes
            if isinstance(message, Verdict) and message.round == number and message.base_len in places:
                self._unanswered = int(self.ahead is not None and self.ahead.known)
                sent_s = start_s if window.sent_s is None else window.sent_s
                took_s = self._clock.time() - sent_s
                return Exchange(self._times.of_window(message, took_s), packet.arrays, took_s, reveal_s, down, sent_s)
            if isinstance(message, NeedHidden) and message.round == number and questions:
                questions -= 1
                with contextlib.suppress(ProtocolError):  # an invalid question is dropped, as if lost
                    took_s, sent = await self._upload(window, asked_positions(packet, len(window.drafted.ids)))
                    reveal_s, wait_s = reveal_s + took_s, max(wait_s, 8 * sent / SLOWEST_BPS)
            elif isinstance(message, Resync) and unknown and self._opening:
                unknown -= 1
            elif isinstance(message, Busy) and message.round not in (None, number):
                if self.ahead is not None and message.round == self.ahead.draft.round:
                    self.ahead.known = False
            elif isinstance(message, Resync | Busy):
                # Until the opening is confirmed, each other draft may bring a Resync, too; none comes after a silence.
                unknown = self._unanswered - isinstance(message, Resync)
                await self._send_again(message, window, patience)
                questions, wait_s = 1, window.patience_s  # the BS answers: what is lost now need not wait for long

    async def _send_again(self, message: Resync | Busy, window: OutgoingWindow, patience: Patience) -> None:
        """Open the session again and send the window; one that was sent ahead is unknown to the BS now."""
        await self._reopen(message, window.draft.round, patience)
        self._unanswered = 0
        if self.ahead is not None:
            self.ahead.known = False
        await self.send(window)

    async def _upload(self, window: OutgoingWindow, positions: Sequence[int]) -> tuple[float, int]:
        """Send the hidden states at `positions`; seconds in which they were made, and bytes."""
        start_s = self._clock.time()
        revealed = self._reveal(window.drafted, positions)
        took_s = self._clock.time() - start_s
        sent = await self._client.send(Hidden(session=self._number, round=window.draft.round), revealed)
        window.sent_bytes += sent
        return took_s, sent

    async def join(
        self, windows: Iterable[JoiningWindow], waits: bool, draft_s: float = 0.0, network_s: float = 0.0
    ) -> int:
        """Send windows that may join a stream, once; returns their bytes.

        Args:
            waits: whether the target waits for more windows after them.
            draft_s, network_s: drafting time since the last call, and `Draft.network_s`.
        """
        sent_bytes, network_s = 0, single(network_s)
        for one in windows:
            self._unanswered += 1
            draft = Draft(
                session=self._number, round=one.number, base_len=one.base_len, guess=one.before, waits=waits,
                draft_s=single(draft_s), network_s=network_s,
            )  # fmt: skip
            sent_bytes += await self._client.send(draft, {"ids": one.ids})
            draft_s = 0.0
        return sent_bytes

    async def listen(self, draft: Draft, stream: bool = False) -> Exchange:
        """Wait for the next round of a BS that decodes alone; open the session again if it was lost, or after silence.

        Args:
            draft: number of the round, and length of the prefix that it continues.
            stream: whether windows may have joined it.

        Raises:
            LinkTimeout, AdmissionError, ProtocolError: see `verdict`.
        """
        patience, start_s, down, unknown, longest_s = self._client.patience(), self._clock.time(), 0, 0, self._longest_s
        wait_s, times = SILENCE_S if longest_s is None else min(SILENCE_S, max(RESEND_S, PATIENCE * longest_s)), 1
        while True:
            packet = await self._next(patience, times * (self._confirm_s if self._opening else wait_s))
            if packet is None:
                times, unknown = 2 * times, 0
                await self.open(draft.round)
                continue
            message, down = packet.message, down + packet.size_bytes
            if isinstance(message, Verdict) and message.round <= draft.round + MOST_AHEAD:
                behind = message.round - draft.round if message.base_len is None else message.base_len - draft.base_len
                if behind == 0 and (stream or not message.accepted):
                    now_s, self._unanswered = self._clock.time(), 0
                    since_s = start_s if self._opening else max(start_s, self._opened_s)
                    self._longest_s = 0.0 if longest_s is None else max(longest_s, now_s - since_s)
                    message = self._times.alone(message, now_s)
                    return Exchange(message, packet.arrays, now_s - start_s, 0.0, down, start_s)
                if behind == 0 or (behind > 0 and not self._opening):  # of a dropped window; verdicts come in order
                    await patience.pause()
                    await self.open(draft.round)
            if isinstance(message, Resync) and unknown and self._opening:
                unknown -= 1
            elif isinstance(message, Resync) or (isinstance(message, Busy) and message.round is None):
                unknown, self._unanswered, times = max(0, self._unanswered - 1), 0, 1
                await self._reopen(message, draft.round, patience)

    async def _next(self, patience: Patience, wait_s: float) -> Packet[Any] | None:
        """The session's next message; None after `wait_s` of silence.

        Raises:
            LinkTimeout: nothing is left.
            ProtocolError: the BS refuses.
        """
        left_s = patience.left_s
        try:
            packet = await self._client.receive(self._number, min(wait_s, left_s))
        except LinkTimeout as exc:
            if left_s <= wait_s:
                raise patience.over(exc) from exc
            return None
        patience.heard()
        if isinstance(packet.message, Fault):
            raise ProtocolError(f"the BS refuses: {packet.message.reason}")
        if isinstance(packet.message, Opened):
            patience.admitted()
            self.opened_bytes, self._opening = self.opened_bytes + packet.size_bytes, False
            return Packet(packet.message, {}, 0)
        return packet

    async def _reopen(self, message: Resync | Busy, round_: int, patience: Patience) -> None:
        """Open the session again after the BS has lost or refused it; after a refused draft, only wait."""
        if isinstance(message, Busy) and message.speed_tps is not None:
            self._refused(message)
        await patience.rest(message)
        if isinstance(message, Resync) or message.round is None:
            await self.open(round_)


def record_of(
    kind: str, window: OutgoingWindow, exchange: Exchange, committed: int, span_s: tuple[float, float]
) -> RoundRecord:
    """The record of a finished round.

    Args:
        kind: kind of the protocol.
        window: the window that was sent, or an empty substitute if the BS decoded alone.
        committed: number of tokens added to the output.
        span_s: begin and end of the round.
    """
    verdict, draft, drafted, (begin_s, end_s) = exchange.verdict, window.draft, window.drafted, span_s
    count, hidden_s = len(drafted.ids), max(0.0, begin_s - window.begin_s)
    paid = count + drafted.left_out
    half_s = exchange.link_s / 2
    draft_s, up_s, queue_s, verify_s, judge_s, down_s = remaining(
        hidden_s, draft.draft_s, half_s, verdict.queue_s, verdict.verify_s, verdict.judge_s, half_s
    )
    return RoundRecord(
        round=draft.round, protocol=kind, base_len=draft.base_len, csi=draft.csi, drafted=count, committed=committed,
        accepted=verdict.accepted, kept=verdict.kept, candidates=verdict.candidates, queried=verdict.queried,
        batch_size=verdict.batch_size, others_drafted=verdict.others_drafted, gap=verdict.gap, hint=verdict.window,
        draft_s=draft_s, wasted_s=window.drafting_s * (1 - verdict.accepted / paid) if paid else 0.0,
        link_s=up_s + down_s, queue_s=queue_s, verify_s=verify_s, judge_s=judge_s,
        hidden_s=hidden_s,
        overhead_s=max(0.0, end_s - begin_s - (draft_s + up_s + queue_s + verify_s + judge_s + down_s)),
        uplink_bytes=window.sent_bytes, downlink_bytes=exchange.downlink_bytes,
        begin_s=begin_s, sent_s=exchange.sent_s, verdict_s=exchange.sent_s + exchange.seconds, end_s=end_s,
    )  # fmt: skip
