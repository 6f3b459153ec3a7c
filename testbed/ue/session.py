"""One decoding request of a UE: steps 1, 2, 3 and 8 of every round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from testbed.channel.csi import Csi, single
from testbed.errors import AdmissionError, LinkTimeout, ProtocolError
from testbed.protocols.base import Drafted, RoundProtocol
from testbed.protocols.codec import AnyArray, Packet
from testbed.protocols.messages import (
    NO_HINT,
    Busy,
    Close,
    Draft,
    Fault,
    Hidden,
    NeedHidden,
    Open,
    Opened,
    Resync,
    Verdict,
)  # fmt: skip
from testbed.protocols.quantise import FULL_BITS
from testbed.protocols.sampling import GREEDY, Sampling
from testbed.ue.client import RESEND_S, Client
from testbed.ue.drafters.after import states_of
from testbed.ue.drafters.base import Drafter
from testbed.ue.drafters.sampler import DraftSampler
from testbed.ue.exchange import Exchange, asked_positions, record_of
from testbed.ue.pace import REAL_TIME, Pace
from testbed.ue.records import RequestRecord, RoundRecord
from testbed.ue.session_drafter import WindowDrafter
from testbed.ue.windows.base import Guided, WindowPolicy

Progress = Callable[[RoundRecord], None]
NOTHING = Drafted(np.zeros(0, np.int32), np.zeros((0, 0), np.float16))
SLOWEST_BPS = 1e6
"""Lowest uplink rate expected, by which the time before a message is sent again is reckoned."""
SILENCE_S = 10.0
"""First wait for the next token of a BS that decodes alone before the session is opened again; doubled each time."""


class DecodingSession:
    """One prompt, decoded with the drafter of this UE and the target of a BS.

    Args:
        csi: called in every round for the channel state that is sent with the draft; None: not known.
        pace: how long drafting takes.
        choice: why the protocol was chosen, for the record.
        sampling: how drafter and target draw tokens, for protocols that sample.
        seed: seed of the request's random numbers.
        hidden_bits: bits per element of uploaded hidden states.
        speed_tps: tokens per second that the BS must guarantee; None: no guarantee.
        accept_slower: accept the speed that the BS offers where it cannot guarantee that one.
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
        self._client, self._drafter, self._protocol = client, drafter, protocol
        self._threshold, self._csi, self._clock = threshold, csi, client.clock
        self._choice, self._sampling, self._seed, self._hidden_bits = choice, sampling, seed, hidden_bits
        sampler = DraftSampler(sampling, seed) if protocol.sampled else None
        self._windows = WindowDrafter(drafter, policy, sampler, pace, hidden_bits)
        self._speed_tps, self._accept_slower = speed_tps, accept_slower
        self._network_s, self._risk, self._opened_bytes = 0.0, 0.0, [0, 0]
        self._hints = policy if isinstance(policy, Guided) else None
        self._alone = self._hints is not None and self._hints.off and not protocol.replaces
        self._number = client.new_session()

    @property
    def committed(self) -> list[int]:
        """Token ids of the prompt and of the output so far."""
        return [int(token) for token in self._committed]

    async def decode(
        self, prompt: Sequence[int], max_tokens: int, end_ids: Sequence[int], progress: Progress | None = None
    ) -> RequestRecord:
        """Decode until an end id or `max_tokens`.

        Raises:
            BadInput: the drafter refuses the prompt.
            AdmissionError: the BS cannot guarantee the speed.
            LinkError: the BS cannot be reached.
            ProtocolError: the BS refuses.
        """
        start_s = self._clock.time()
        self._committed = np.asarray(prompt, np.int32)
        self._ends, self._end = frozenset(end_ids), len(prompt) + max_tokens
        self._windows.begin(list(prompt))
        rounds: list[RoundRecord] = []
        reason = "length"
        begun_s = start_s
        try:
            if not self._alone:
                await self._windows.catch_up(self._committed)
            await self._open(0)
            while reason != "stop" and (room := max_tokens - (len(self._committed) - len(prompt))) > 0:
                record, reason = await self._round(len(rounds), room, begun_s)
                rounds.append(record)
                begun_s = self._clock.time()
                if progress:
                    progress(record)
        finally:
            self._windows.close()
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

    async def _round(self, number: int, room: int, begun_s: float) -> tuple[RoundRecord, str]:
        """One round; `begun_s` is when the previous one ended."""
        if self._alone:
            return await self._listened(number, room, begun_s)
        await self._windows.catch_up(self._committed)
        csi, start_s = self._csi(), self._clock.time()
        drafted = await self._windows.draft(number, room, self._ends)  # 1 draft
        drafted_s = self._clock.time()
        arrays = self._protocol.uplink(drafted)  # 2 encode
        draft = Draft(
            session=self._number, round=number, base_len=len(self._committed), csi=csi,
            draft_s=single(drafted_s - begun_s), network_s=single(self._network_s),
        )  # fmt: skip
        exchange = await self._exchange(draft, arrays, drafted)  # 3 send, and wait for the verdict
        committed, reason = self._commit(drafted, exchange, room)  # 8 commit
        span_s = (begun_s, self._clock.time())
        record = record_of(self._protocol.kind, draft, exchange, drafted, committed, span_s, drafted_s - start_s)
        self._network_s = record.link_s
        return replace(record, choice=self._choice), reason

    async def _listened(self, number: int, room: int, begun_s: float) -> tuple[RoundRecord, str]:
        """One token that the BS decodes alone, while speculation is off."""
        draft = Draft(session=self._number, round=number, base_len=len(self._committed))
        exchange = await self._listen(number)
        committed, reason = self._commit(NOTHING, exchange, room)
        record = record_of(self._protocol.kind, draft, exchange, NOTHING, committed, (begun_s, self._clock.time()), 0.0)
        return replace(record, choice=self._choice), reason

    async def _exchange(self, draft: Draft, arrays: dict[str, AnyArray], drafted: Drafted) -> Exchange:
        """Send the window, and answer what the BS asks until its verdict comes."""
        start_s, reveal_s, up, down = self._clock.time(), 0.0, 0, 0
        answer: tuple[Draft | Hidden, dict[str, AnyArray]] = (draft, arrays)
        wait_s, send, unknown, drafts = RESEND_S, True, 0, 0
        while True:
            if send:
                sent = await self._client.send(*answer)
                drafts += answer[0] is draft
                up += sent
                wait_s = max(wait_s, 8 * sent / SLOWEST_BPS)
            packet = await self._next(start_s, wait_s)
            if packet is None:
                answer, send, wait_s = (draft, arrays), True, 2 * wait_s
                continue
            message, send = packet.message, False
            down += packet.size_bytes
            if isinstance(message, Verdict) and message.round == draft.round:
                return Exchange(message, packet.arrays, self._clock.time() - start_s, reveal_s, up, down, start_s)
            if isinstance(message, NeedHidden) and message.round == draft.round:
                asked_s = self._clock.time()
                revealed = self._protocol.reveal(drafted, asked_positions(packet, len(drafted.ids)))
                answer, send = (Hidden(session=self._number, round=message.round), revealed), True
                reveal_s += self._clock.time() - asked_s
            elif isinstance(message, Resync) and unknown:
                unknown -= 1
            elif isinstance(message, Resync | Busy):
                unknown = drafts - isinstance(message, Resync)  # every other draft brings a Resync, too
                await self._reopen(message, draft.round)
                answer, send, drafts = (draft, arrays), True, 0

    async def _listen(self, number: int) -> Exchange:
        """Wait for the next token that the BS decodes alone; after a silence, open the session again."""
        start_s, wait_s, down = self._clock.time(), SILENCE_S, 0
        while True:
            packet = await self._next(start_s, wait_s)
            if packet is None:
                wait_s *= 2
                await self._open(number)
                continue
            message = packet.message
            down += packet.size_bytes
            if isinstance(message, Verdict) and message.round == number:
                return Exchange(message, packet.arrays, self._clock.time() - start_s, 0.0, 0, down, start_s)
            late = isinstance(message, Busy) and message.round is not None  # it refuses a draft of an earlier round
            if isinstance(message, Resync | Busy) and not late:
                await self._reopen(message, number)

    async def _next(self, start_s: float, wait_s: float) -> Packet[Any] | None:
        """The session's next message but `Opened`; None after `wait_s` of silence.

        Raises:
            LinkTimeout: silence until the client's timeout, counted from `start_s`.
            ProtocolError: the BS refuses.
        """
        while True:
            left_s = self._client.timeout_s - (self._clock.time() - start_s)
            try:
                packet = await self._client.receive(self._number, min(wait_s, max(left_s, 0.0)))
            except LinkTimeout:
                if left_s <= wait_s:
                    raise
                return None
            if isinstance(packet.message, Fault):
                raise ProtocolError(f"the BS refuses: {packet.message.reason}")
            if not isinstance(packet.message, Opened):
                return packet
            self._opened_bytes[1] += packet.size_bytes

    async def _reopen(self, message: Resync | Busy, round_: int) -> None:
        """Open the session again after the BS has lost or refused it; after a refused draft, only wait.

        Raises:
            AdmissionError: the BS cannot guarantee the speed.
        """
        if isinstance(message, Busy):
            if message.speed_tps is None:
                await self._clock.sleep(message.retry_s)
            elif self._accept_slower and message.speed_tps > 0:
                self._speed_tps = message.speed_tps
            else:
                raise AdmissionError(f"the BS refuses: {message.reason}")
        if isinstance(message, Resync) or message.round is None:
            await self._open(round_)

    def _commit(self, drafted: Drafted, exchange: Exchange, room: int) -> tuple[int, str]:
        """Append the committed tokens and roll the drafter back to them; returns their number and the finish reason."""
        verdict = exchange.verdict
        if not 0 <= verdict.accepted <= len(drafted.ids):
            raise ProtocolError(f"verdict accepts {verdict.accepted} of {len(drafted.ids)} tokens")
        token, draws, self._windows.replaced = verdict.token, self._windows.draws, None
        if exchange.arrays and draws:
            token = self._protocol.replace(drafted, verdict.accepted, exchange.arrays, draws)
            self._windows.replaced = token
        if not 0 <= token < self._drafter.vocab_size:
            raise ProtocolError(f"verdict adds token {token}, outside the vocabulary")
        added: NDArray[np.int32] = np.append(drafted.ids[: verdict.accepted], np.int32(token))[:room]
        ends = [i for i, token in enumerate(added.tolist()) if token in self._ends]
        if ends:
            added = added[: ends[0] + 1]
        self._committed = np.concatenate([self._committed, added])
        if not ends and len(added) < room and drafted is not NOTHING:
            self._windows.commit(verdict.accepted, token)
        self._risk = verdict.risk
        if self._hints and verdict.window != NO_HINT:
            self._hints.hinted(verdict.window)
            self._alone = verdict.window == 0
        return len(added), "stop" if ends else "length"

    async def _open(self, round_: int) -> None:
        """Open the session at the round that begins next."""
        message = Open(
            session=self._number,
            protocol=self._protocol.kind,
            threshold=self._threshold,
            hidden_size=self._drafter.hidden_size,
            temperature=self._sampling.temperature if self._protocol.sampled else 0.0,
            top_k=self._sampling.top_k,
            top_p=self._sampling.top_p,
            seed=self._seed,
            drafter=self._drafter.fingerprint,
            hidden_bits=self._hidden_bits,
            speed_tps=self._speed_tps,
            window=self._hints.limit if self._hints else 0,
            max_tokens=self._end - len(self._committed) if self._hints else 0,
            alone=self._alone,
            round=round_ if self._alone else 0,
            states=states_of(self._drafter),
            risk=self._risk,
        )
        self._opened_bytes[0] += await self._client.send(message, {"ids": self._committed})

    async def _close(self) -> None:
        self._client.end_session(self._number)
        await asyncio.shield(self._client.send(Close(session=self._number)))
