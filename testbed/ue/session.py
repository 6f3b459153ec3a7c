"""One decoding request of a UE: steps 1, 2, 3 and 8 of every round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.channel.csi import Csi
from testbed.errors import AdmissionError, LinkTimeout, ProtocolError
from testbed.protocols.base import Drafted, RoundProtocol
from testbed.protocols.codec import AnyArray, Packet, unpack_positions
from testbed.protocols.messages import Busy, Close, Draft, Fault, Hidden, NeedHidden, Open, Opened, Resync, Verdict
from testbed.protocols.quantise import FULL_BITS
from testbed.protocols.sampling import GREEDY, Sampling
from testbed.ue.client import RESEND_S, Client
from testbed.ue.drafting import Drafter, DraftSequence, DraftToken
from testbed.ue.pace import Pace, RealTime
from testbed.ue.records import RequestRecord, RoundRecord
from testbed.ue.sampler import DraftSampler
from testbed.ue.window import WindowPolicy

Progress = Callable[[RoundRecord], None]
REAL_TIME = RealTime()
SLOWEST_BPS = 1e6
"""Uplink rate that a message is given time for, before it is sent again."""


class Exchange(NamedTuple):
    """What came of sending a window."""

    verdict: Verdict
    arrays: dict[str, AnyArray]
    """The verdict's."""
    seconds: float
    """From sending the window to the verdict."""
    reveal_s: float
    """The UE's own part of that: answering for hidden states."""
    uplink_bytes: int
    downlink_bytes: int


class Session:
    """Decodes one prompt with a drafter here and a target there.

    Args:
        csi: called at every round; the channel state that rides with it, or None where it is not known.
        pace: how long drafting takes.
        choice: why the protocol was chosen, for the record.
        sampling: how protocols that sample draw tokens, of drafter and target alike.
        seed: of the request's random numbers.
        hidden_bits: bits of an element at which hidden states go up.
        speed_tps: tokens a second that the BS is to promise; None: no promise.
        accept_slower: whether to take what it can promise where it cannot promise that.
    """

    def __init__(
        self,
        client: Client,
        drafter: Drafter,
        protocol: RoundProtocol,
        policy: WindowPolicy,
        threshold: float = 0.0,
        csi: Callable[[], Csi | None] = lambda: None,
        pace: Pace = REAL_TIME,
        choice: str = "",
        sampling: Sampling = GREEDY,
        seed: int = 0,
        hidden_bits: int = FULL_BITS,
        speed_tps: float | None = None,
        accept_slower: bool = False,
    ) -> None:
        self._client, self._drafter, self._protocol, self._policy = client, drafter, protocol, policy
        self._threshold, self._csi, self._pace, self._clock = threshold, csi, pace, client.clock
        self._choice = choice
        self._sampling, self._seed, self._hidden_bits = sampling, seed, hidden_bits
        self._sampler = DraftSampler(sampling, seed) if protocol.sampled else None
        self._replaced: int | None = None
        self._speed_tps, self._accept_slower = speed_tps, accept_slower
        self._network_s = 0.0
        self._number = client.new_session()
        self._opened_bytes = [0, 0]

    @property
    def committed(self) -> list[int]:
        """Ids of the prompt and of the output so far."""
        ids: list[int] = self._committed.tolist()
        return ids

    async def decode(
        self, prompt: Sequence[int], max_tokens: int, end_ids: Sequence[int], progress: Progress | None = None
    ) -> RequestRecord:
        """Decode until an end id or `max_tokens`.

        Raises:
            BadInput: the drafter refuses the prompt.
            AdmissionError: the BS cannot promise the speed.
            LinkError: the BS cannot be reached.
            ProtocolError: the BS refuses.
        """
        start_s = self._clock.time()
        self._committed = np.asarray(prompt, np.int32)
        self._ends = frozenset(end_ids)
        sequence = self._sequence = self._begin(prompt)
        rounds: list[RoundRecord] = []
        reason = "length"
        begun_s = start_s
        try:
            await self._pace.opened(len(prompt))
            await self._open()
            while reason != "stop" and (room := max_tokens - (len(self._committed) - len(prompt))) > 0:
                record, reason = await self._round(len(rounds), room, begun_s)
                rounds.append(record)
                begun_s = self._clock.time()
                if progress:
                    progress(record)
        finally:
            sequence.close()
            await self._close()
        return RequestRecord(
            prompt_len=len(prompt),
            token_ids=self._committed[len(prompt) :].tolist(),
            finish_reason=reason,
            latency_s=begun_s - start_s,
            uplink_bytes=self._opened_bytes[0] + sum(r.uplink_bytes for r in rounds),
            downlink_bytes=self._opened_bytes[1] + sum(r.downlink_bytes for r in rounds),
            rounds=rounds,
        )

    def _begin(self, prompt: Sequence[int]) -> DraftSequence:
        if self._sampler is None:
            return self._drafter.open(prompt)
        return self._drafter.open(prompt, choose=self._sampler)

    async def _round(self, number: int, room: int, begun_s: float) -> tuple[RoundRecord, str]:
        """One round; `begun_s` is when the one before ended."""
        csi, start_s = self._csi(), self._clock.time()
        drafted = self._draft(number, room)  # 1 draft
        await self._pace.drafted(len(drafted.ids), len(self._committed))
        drafted_s = self._clock.time()
        arrays = self._protocol.uplink(drafted)  # 2 encode
        draft = Draft(
            session=self._number, round=number, base_len=len(self._committed), csi=csi,
            draft_s=drafted_s - begun_s, network_s=self._network_s,
        )  # fmt: skip
        exchange = await self._exchange(draft, arrays, drafted)  # 3 send, and wait for the verdict
        committed, reason = self._commit(drafted, exchange, room)  # 8 commit
        record = self._record(draft, exchange, len(drafted.ids), committed, begun_s, drafted_s - start_s)
        self._network_s = record.link_s
        return record, reason

    def _record(
        self, draft: Draft, exchange: Exchange, drafted: int, committed: int, begun_s: float, drafting_s: float
    ) -> RoundRecord:
        """A round that has just ended; `drafting_s` is what its tokens took."""
        verdict = exchange.verdict
        parts_s = {
            "draft_s": draft.draft_s,
            "link_s": max(0.0, exchange.seconds - exchange.reveal_s - verdict.bs_s),
            "queue_s": verdict.queue_s,
            "verify_s": verdict.verify_s,
            "judge_s": verdict.judge_s,
        }
        return RoundRecord(
            round=draft.round,
            protocol=self._protocol.kind,
            base_len=draft.base_len,
            drafted=drafted,
            accepted=verdict.accepted,
            committed=committed,
            candidates=verdict.candidates,
            queried=verdict.queried,
            batch_size=verdict.batch_size,
            overhead_s=max(0.0, self._clock.time() - begun_s - sum(parts_s.values())),
            uplink_bytes=exchange.uplink_bytes,
            downlink_bytes=exchange.downlink_bytes,
            gap=verdict.gap,
            csi=draft.csi,
            choice=self._choice,
            wasted_s=drafting_s * (1 - verdict.accepted / drafted),
            **parts_s,
        )

    def _draft(self, number: int, room: int) -> Drafted:
        """Draft a window: until the policy says so, an end id, or the room left for the output."""
        if self._sampler:
            self._sampler.begin(number)
        tokens = self._draft_tokens(room)
        ids, hidden = np.array([t.id for t in tokens], np.int32), np.stack([t.hidden for t in tokens])
        q = self._sampler.window() if self._sampler else None
        return Drafted(ids, hidden, q, self._replaced, self._hidden_bits)

    def _draft_tokens(self, room: int) -> list[DraftToken]:
        limit = min(self._policy.max_window, room)
        tokens = [self._sequence.draft_one()]
        while len(tokens) < limit and tokens[-1].id not in self._ends and self._policy.keep_drafting(tokens):
            tokens.append(self._sequence.draft_one())
        return tokens

    async def _exchange(self, draft: Draft, arrays: dict[str, AnyArray], drafted: Drafted) -> Exchange:
        """Send the window and see it through to its verdict, whatever is asked in between."""
        start_s, reveal_s, up, down = self._clock.time(), 0.0, 0, 0
        answer: tuple[Draft | Hidden, dict[str, AnyArray]] = (draft, arrays)
        wait_s, send, unknown, drafts = RESEND_S, True, 0, 0
        while True:
            if send:
                sent = await self._client.send(*answer)
                drafts += answer[0] is draft
                up += sent
                wait_s = max(wait_s, 8 * sent / SLOWEST_BPS)
            left_s = self._client.timeout_s - (self._clock.time() - start_s)
            try:
                packet = await self._client.receive(self._number, min(wait_s, max(left_s, 0.0)))
            except LinkTimeout:
                if left_s <= wait_s:
                    raise
                answer, send, wait_s = (draft, arrays), True, 2 * wait_s
                continue
            message, send = packet.message, False
            if isinstance(message, Opened):
                self._opened_bytes[1] += packet.size_bytes
                continue
            down += packet.size_bytes
            if isinstance(message, Verdict) and message.round == draft.round:
                return Exchange(message, packet.arrays, self._clock.time() - start_s, reveal_s, up, down)
            if isinstance(message, NeedHidden) and message.round == draft.round:
                asked_s = self._clock.time()
                answer, send = self._reveal(message, packet, drafted), True
                reveal_s += self._clock.time() - asked_s
            elif isinstance(message, Resync) and unknown:
                unknown -= 1
            elif isinstance(message, Resync | Busy):
                unknown = drafts - isinstance(message, Resync)  # every other draft brings a Resync, too
                if isinstance(message, Busy):
                    await self._refused(message)
                await self._open()
                answer, send, drafts = (draft, arrays), True, 0
            elif isinstance(message, Fault):
                raise ProtocolError(f"the BS refuses: {message.reason}")

    async def _refused(self, busy: Busy) -> None:
        """Wait until the BS may have room, or ask for less."""
        if busy.speed_tps is None:
            await self._clock.sleep(busy.retry_s)
        elif self._accept_slower and busy.speed_tps > 0:
            self._speed_tps = busy.speed_tps
        else:
            raise AdmissionError(f"the BS refuses: {busy.reason}")

    def _reveal(
        self, ask: NeedHidden, packet: Packet[NeedHidden], drafted: Drafted
    ) -> tuple[Hidden, dict[str, AnyArray]]:
        packed = packet.arrays.get("positions")
        if packed is None:
            raise ProtocolError("NeedHidden without positions")
        positions = unpack_positions(packed, ask.count, len(drafted.ids))
        return Hidden(session=self._number, round=ask.round), self._protocol.reveal(drafted, positions)

    def _commit(self, drafted: Drafted, exchange: Exchange, room: int) -> tuple[int, str]:
        """Append what was committed and roll the drafter back to it; returns tokens added and why to stop, if so."""
        verdict = exchange.verdict
        if not 0 <= verdict.accepted <= len(drafted.ids):
            raise ProtocolError(f"verdict accepts {verdict.accepted} of {len(drafted.ids)} tokens")
        token, self._replaced = verdict.token, None
        if exchange.arrays and self._sampler:
            token = self._protocol.replace(drafted, verdict.accepted, exchange.arrays, self._sampler.draws)
            self._replaced = token
        if not 0 <= token < self._drafter.vocab_size:
            raise ProtocolError(f"verdict adds token {token}, outside the vocabulary")
        added: NDArray[np.int32] = np.append(drafted.ids[: verdict.accepted], np.int32(token))[:room]
        ends = [i for i, token in enumerate(added.tolist()) if token in self._ends]
        if ends:
            added = added[: ends[0] + 1]
        self._committed = np.concatenate([self._committed, added])
        if not ends and len(added) < room:
            self._sequence.commit(verdict.accepted, token)
        return len(added), "stop" if ends else "length"

    async def _open(self) -> None:
        message = Open(
            session=self._number,
            protocol=self._protocol.kind,
            threshold=self._threshold,
            hidden_size=self._drafter.hidden_size,
            temperature=self._sampling.temperature if self._sampler else 0.0,
            top_k=self._sampling.top_k,
            top_p=self._sampling.top_p,
            seed=self._seed,
            drafter=self._drafter.fingerprint,
            hidden_bits=self._hidden_bits,
            speed_tps=self._speed_tps,
        )
        self._opened_bytes[0] += await self._client.send(message, {"ids": self._committed})

    async def _close(self) -> None:
        self._client.end_session(self._number)
        await asyncio.shield(self._client.send(Close(session=self._number)))
