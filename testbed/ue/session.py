"""One decoding request of a UE: steps 1, 2, 3 and 8 of every round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from testbed.channel.csi import Csi, single
from testbed.errors import AdmissionError
from testbed.protocols.base import Drafted, RoundProtocol
from testbed.protocols.messages import NO_HINT, Busy, Close, Draft, Open, Verdict
from testbed.protocols.methods import Ahead
from testbed.protocols.quantise import FULL_BITS, pack_q
from testbed.protocols.ranges import check_accepted, check_token
from testbed.protocols.sampling import GREEDY, Sampling
from testbed.tasks import cancel
from testbed.ue.client import Client
from testbed.ue.drafters.after import states_of
from testbed.ue.drafters.base import Drafter
from testbed.ue.drafters.sampler import DraftSampler
from testbed.ue.exchange import NOTHING, Exchange, OutgoingWindow, SessionExchanges, record_of
from testbed.ue.pace import REAL_TIME, Pace
from testbed.ue.records import RequestRecord, RoundRecord
from testbed.ue.session_drafter import WindowDrafter
from testbed.ue.windows.base import Guided, WindowPolicy
from testbed.ue.windows.lookahead import Lookahead, lookahead_of
from testbed.ue.windows.stream_choice import StreamChoice
from testbed.ue.windows.streaming import StreamDrafting, stream_parts
from testbed.ue.windows.uploads import Uploads

Progress = Callable[[RoundRecord], None]


class DecodingSession:
    """One prompt, decoded with the drafter of this UE and the target of a BS.

    Args:
        csi: called in every round for the channel state that is sent with the draft; None: not known.
        pace: how long drafting takes.
        choice: why the protocol was chosen, for the record.
        sampling: how drafter and target draw tokens, for protocols that sample, or choose them by coupled sampling.
        seed: seed of the request's random numbers.
        hidden_bits: bits per element of uploaded hidden states.
        speed_tps, accept_slower: tokens/s that the BS must guarantee, None: none; whether to take the speed it offers.
        lookahead: windows sent before a verdict, 0 or 1; None: chosen. Protocols that sample never look ahead.
            "stream": drafts without rounds, where `stream_parts` has drafters; elsewhere 1.
        stream: windows join the output of a target that does not wait for them, where `stream_parts` has drafters.
        streams: chooses what a model drafts for streams, with "stream" and None; None: models have no streams.
        chooser: chooses lookahead and window of rounds over several requests, or follows hints of lookahead; None: for
            this request alone, without hints.
        uploads: protocols of the windows, kept over several requests; None: `protocol`, without hints.
    """

    def __init__(
        self, client: Client, drafter: Drafter, protocol: RoundProtocol, policy: WindowPolicy, threshold: float = 0.0,
        csi: Callable[[], Csi | None] = lambda: None, pace: Pace = REAL_TIME, choice: str = "",
        sampling: Sampling = GREEDY, seed: int = 0, hidden_bits: int = FULL_BITS, speed_tps: float | None = None,
        accept_slower: bool = False, lookahead: Ahead = 0, stream: bool = False, streams: StreamChoice | None = None,
        chooser: Lookahead | None = None, uploads: Uploads | None = None,
    ) -> None:  # fmt: skip
        self._client, self._drafter, self._protocol, self._clock = client, drafter, protocol, client.clock
        self._threshold, self._csi, self._speed_tps, self._accept_slower = threshold, csi, speed_tps, accept_slower
        self._choice, self._sampling, self._seed, self._hidden_bits = choice, sampling, seed, hidden_bits
        choose = DraftSampler(sampling, seed) if protocol.sampled else sampling.coupling(seed)
        sure = 1 - threshold if protocol.skips and threshold > 0 else None
        self._windows = WindowDrafter(drafter, policy, choose, pace, hidden_bits, sure)
        self._network_s, self._risk, self._open_bytes = 0.0, 0.0, 0
        self._uploads = uploads or Uploads(protocol)
        self._hints = policy if isinstance(policy, Guided) else None
        parts = stream_parts(drafter, protocol, policy, stream, streams is not None and lookahead in (None, "stream"))
        self._stream = StreamDrafting(parts, policy, streams, choose, pace, client.clock) if parts else None
        off = self._hints is not None and self._hints.off and not protocol.replaces
        self._alone = off or parts is not None
        self._number = client.new_session()
        self._exchanges = SessionExchanges(client, self._number, self._open, self._refused, protocol.reveal)
        self._lookahead = chooser or lookahead_of(lookahead, not protocol.sampled, policy)
        self._next = self._void_bytes = 0
        """Number of the next window, and bytes of the one that the last verdict made void."""
        self._ahead: asyncio.Task[None] | None = None
        self._hit: tuple[int, int] | None = None
        """Accepted tokens and token of the verdict that made the window ahead valid."""

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
        start_s = begun_s = self._clock.time()
        self._begin(list(prompt), max_tokens, frozenset(end_ids))
        rounds, reason = list[RoundRecord](), "length"
        try:
            if not self._alone:
                await self._windows.catch_up(self._committed)
            await self._exchanges.open(0)
            while reason != "stop" and (room := max_tokens - (len(self._committed) - len(prompt))) > 0:
                record, reason = await self._round(room, begun_s)
                rounds.append(replace(record, round=len(rounds), choice=self._choice))
                self._lookahead.observe(rounds[-1])
                begun_s = self._clock.time()
                if progress:
                    progress(rounds[-1])
        finally:
            await self._drop_ahead()
            await self._close()
        return RequestRecord(
            prompt_len=len(prompt),
            token_ids=self._committed[len(prompt) :].tolist(),
            finish_reason=reason,
            latency_s=begun_s - start_s,
            uplink_bytes=self._open_bytes + sum(r.uplink_bytes for r in rounds),
            downlink_bytes=self._exchanges.opened_bytes + sum(r.downlink_bytes for r in rounds),
            rounds=rounds,
        )

    def _begin(self, prompt: list[int], max_tokens: int, ends: frozenset[int]) -> None:
        self._committed, self._ends, self._end = np.array(prompt, np.int32), ends, len(prompt) + max_tokens
        self._windows.begin(prompt)
        if self._stream:
            self._stream.begin(prompt, max_tokens, ends, self._exchanges.join)

    async def _round(self, room: int, begun_s: float) -> tuple[RoundRecord, str]:
        """One round; `begun_s` is when the previous one ended."""
        if self._alone:
            return await self._listened(room, begun_s)
        window = await self._from_ahead() or await self._drafted(room, begun_s)  # 1 draft, 2 encode
        lookahead = self._lookahead.now(len(window.drafted.ids))
        if lookahead:
            self._ahead = asyncio.create_task(self._look_ahead(window, room - len(window.drafted.ids) - 1))
        exchange = await self._exchanges.verdict(window)  # 3 send, and wait for the verdict
        committed, reason = await self._commit(window.drafted, exchange, room)  # 8 commit
        kind = self._uploads.kind(window.arrays)
        record = record_of(kind, window, exchange, committed, (begun_s, self._clock.time()))
        if not record.hidden_s:
            self._network_s = record.link_s
        ahead = self._windows.drafted_ahead if lookahead else 0
        record = replace(record, lookahead=lookahead, drafted_ahead=ahead, void=0 if self._hit else ahead)
        return replace(record, uplink_bytes=record.uplink_bytes + self._void_bytes), reason

    async def _drafted(self, room: int, begun_s: float) -> OutgoingWindow:
        """The next window, drafted after the verdict of the one before it."""
        await self._windows.catch_up(self._committed)
        csi, start_s = self._csi(), self._clock.time()
        drafted = await self._windows.draft(self._next, self._lookahead.room(room), self._ends)
        return self._outgoing(drafted, len(self._committed), (begun_s, start_s), csi)

    def _outgoing(
        self, drafted: Drafted, base_len: int, start_s: tuple[float, float], csi: Csi | None, guess: int | None = None
    ) -> OutgoingWindow:
        """A window after a prefix of `base_len`; `start_s`: end of the round before it, and start of its drafting."""
        drafted_s = self._clock.time()
        draft = Draft(
            session=self._number, round=self._next, base_len=base_len, csi=csi,
            draft_s=single(drafted_s - start_s[0]), network_s=single(self._network_s), guess=guess,
        )  # fmt: skip
        self._next += 1
        arrays = pack_q(self._uploads.arrays(drafted), self._sampling)
        return OutgoingWindow(draft, arrays, drafted, start_s[0], drafted_s - start_s[1])

    async def _listened(self, room: int, begun_s: float) -> tuple[RoundRecord, str]:
        """A round of a BS that decodes alone: one token while speculation is off, in a stream more if one joins."""
        draft = Draft(session=self._number, round=self._next, base_len=len(self._committed))
        self._next += 1
        window = OutgoingWindow(draft, {}, NOTHING, begun_s)
        if self._stream:
            await self._stream.propose()
        exchange = await self._exchanges.listen(draft, stream=self._stream is not None)
        if self._stream:
            window.drafted = NOTHING._replace(ids=self._stream.verified(exchange.verdict, exchange.seconds))
        committed, reason = await self._commit(window.drafted, exchange, room)
        record = record_of(self._protocol.kind, window, exchange, committed, (begun_s, self._clock.time()))
        return self._stream.recorded(record) if self._stream else record, reason

    # ------------------------------------------------------------ ahead of the verdict

    async def _look_ahead(self, away: OutgoingWindow, room: int) -> None:
        """Draft the window after one that is away, for an output of `room` further tokens, and send it."""
        start_s = self._clock.time()
        drafted = await self._windows.draft_ahead(away.drafted, self._lookahead.room(room), self._ends)
        if drafted is not None:
            base_len = away.draft.base_len + len(away.drafted.ids) + 1
            times_s = (start_s, start_s)
            window = self._outgoing(drafted, base_len, times_s, self._csi(), self._windows.guess)
            self._exchanges.ahead = window
            await self._exchanges.send(window)

    async def _from_ahead(self) -> OutgoingWindow | None:
        """The window that was drafted ahead, once it is complete; None: there is none."""
        if self._ahead is None or self._hit is None:
            return None
        await self._ahead
        accepted, token = self._hit
        window, self._exchanges.ahead, self._ahead, self._hit = self._exchanges.ahead, None, None, None
        if window is None:
            self._windows.commit(accepted, token)
        else:
            self._windows.advance(accepted)
        return window

    async def _drop_ahead(self) -> None:
        """Drop the window that was drafted ahead, if there is one."""
        if self._ahead is not None:
            await cancel(self._ahead)
        self._void_bytes = 0 if self._exchanges.ahead is None else self._exchanges.ahead.sent_bytes
        self._ahead = self._exchanges.ahead = None

    # ------------------------------------------------------------ 8 commit

    async def _commit(self, drafted: Drafted, exchange: Exchange, room: int) -> tuple[int, str]:
        """Append the committed tokens and roll the drafter back to them; returns their number and the finish reason."""
        verdict = exchange.verdict
        check_accepted(verdict, len(drafted.ids))
        token, draws, self._windows.replaced = verdict.token, self._windows.draws, None
        if exchange.arrays and draws:
            token = self._protocol.replace(drafted, verdict.accepted, exchange.arrays, draws)
            self._windows.replaced = token
        check_token(token, self._drafter.vocab_size)
        added: NDArray[np.int32] = np.append(drafted.ids[: verdict.accepted], np.int32(token))[:room]
        ends = [i for i, token in enumerate(added.tolist()) if token in self._ends]
        if ends:
            added = added[: ends[0] + 1]
        self._committed = np.concatenate([self._committed, added])
        if self._stream:
            self._stream.commit(added.tolist())
        self._risk = verdict.risk
        self._uploads.follow(verdict)
        self._lookahead.follow(verdict)
        if self._hints and verdict.window != NO_HINT:
            self._hints.hinted(verdict.window)
            self._alone = verdict.window == 0 and not self._protocol.replaces
        await self._settle(drafted, verdict, token, more=not ends and len(added) < room)
        return len(added), "stop" if ends else "length"

    async def _settle(self, drafted: Drafted, verdict: Verdict, token: int, more: bool) -> None:
        """Keep the window that was drafted ahead if it is valid; otherwise drop it and roll the drafter back."""
        whole = more and self._ahead is not None and verdict.accepted == len(drafted.ids) and not self._alone
        if whole and token == self._windows.guess:
            self._hit, self._void_bytes = (verdict.accepted, token), 0
            return
        await self._drop_ahead()
        if self._alone:
            self._next = verdict.round + 1  # the BS counts on from this round
        if more and drafted is not NOTHING and not self._stream:
            self._windows.commit(verdict.accepted, token)

    async def _open(self, round_: int) -> int:
        """Open the session at the round that begins next; returns the bytes sent."""
        if self._stream:
            self._stream.reopened()
        sampling, more = self._sampling, self._hints or self._stream
        message = Open(
            session=self._number, protocol=self._protocol.kind, threshold=self._threshold,
            hidden_size=self._drafter.hidden_size, temperature=sampling.temperature, top_k=sampling.top_k,
            top_p=sampling.top_p, seed=self._seed, drafter=self._drafter.fingerprint, served=self._client.served,
            hidden_bits=self._hidden_bits, speed_tps=self._speed_tps, window=self._hints.limit if self._hints else 0,
            max_tokens=self._end - len(self._committed) if more else 0, alone=self._alone,
            round=round_ if self._alone else 0, states=states_of(self._drafter), risk=self._risk,
            coupled=sampling.coupled, stream=self._stream.window if self._stream else 0,
            endless=more is not None and self._client.endless(self._ends), block=sampling.block,
            q_top=sampling.q_top, q_bits=sampling.q_bits, protocol_hints=self._uploads.hinted,
            lookahead_hints=self._lookahead.hinted,
            load=self._stream.chooses if self._stream else self._lookahead.chooses,
        )  # fmt: skip
        sent = await self._client.send(message, {"ids": self._committed})
        self._open_bytes += sent
        return sent

    def _refused(self, message: Busy) -> None:
        """Accept a slower speed, or give up.

        Raises:
            AdmissionError: the BS cannot guarantee the speed.
        """
        if not self._accept_slower or not message.speed_tps:
            raise AdmissionError(f"the BS refuses: {message.reason}")
        self._speed_tps = message.speed_tps

    async def _close(self) -> None:
        if self._stream:
            await self._stream.close()
        self._windows.close()
        self._client.end_session(self._number)
        await asyncio.shield(self._client.send(Close(session=self._number)))
