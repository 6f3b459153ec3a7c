"""One decoding request of a UE: steps 1, 2, 3 and 8 of every round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.channel.csi import Csi
from testbed.errors import LinkTimeout, ProtocolError
from testbed.protocols.base import Drafted, RoundProtocol
from testbed.protocols.codec import AnyArray, Packet, unpack_positions
from testbed.protocols.messages import Busy, Close, Draft, Fault, Hidden, NeedHidden, Open, Opened, Resync, Verdict
from testbed.ue.client import RESEND_S, Client
from testbed.ue.drafting import Drafter, DraftToken
from testbed.ue.records import RequestRecord, RoundRecord
from testbed.ue.window import WindowPolicy

Progress = Callable[[RoundRecord], None]


class Exchange(NamedTuple):
    """What came of sending a window."""

    verdict: Verdict
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
    """

    def __init__(
        self,
        client: Client,
        drafter: Drafter,
        protocol: RoundProtocol,
        policy: WindowPolicy,
        threshold: float = 0.0,
        csi: Callable[[], Csi | None] = lambda: None,
    ) -> None:
        self._client, self._drafter, self._protocol, self._policy = client, drafter, protocol, policy
        self._threshold, self._csi, self._clock = threshold, csi, client.clock
        self._number = client.new_session()
        self._opened_bytes = [0, 0]

    async def decode(
        self, prompt: Sequence[int], max_tokens: int, end_ids: Sequence[int], progress: Progress | None = None
    ) -> RequestRecord:
        """Decode until an end id or `max_tokens`.

        Raises:
            BadInput: the drafter refuses the prompt.
            LinkError: the BS cannot be reached.
            ProtocolError: the BS refuses.
        """
        start_s = self._clock.time()
        self._committed = np.asarray(prompt, np.int32)
        self._ends = frozenset(end_ids)
        sequence = self._sequence = self._drafter.open(prompt)
        rounds: list[RoundRecord] = []
        reason = "length"
        begun_s = start_s
        try:
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

    async def _round(self, number: int, room: int, begun_s: float) -> tuple[RoundRecord, str]:
        """One round; `begun_s` is when the one before ended."""
        csi = self._csi()
        tokens = self._draft(room)  # 1 draft
        drafted = Drafted(np.array([t.id for t in tokens], np.int32), np.stack([t.hidden for t in tokens]))
        drafted_s = self._clock.time()
        arrays = self._protocol.uplink(drafted)  # 2 encode
        draft = Draft(session=self._number, round=number, base_len=len(self._committed), csi=csi)
        exchange = await self._exchange(draft, arrays, drafted)  # 3 send, and wait for the verdict
        committed, reason = self._commit(drafted, exchange.verdict, room)  # 8 commit
        verdict = exchange.verdict
        parts_s = {
            "draft_s": drafted_s - begun_s,
            "link_s": max(0.0, exchange.seconds - exchange.reveal_s - verdict.bs_s),
            "queue_s": verdict.queue_s,
            "verify_s": verdict.verify_s,
            "judge_s": verdict.judge_s,
        }
        record = RoundRecord(
            round=number,
            protocol=self._protocol.kind,
            base_len=draft.base_len,
            drafted=len(tokens),
            accepted=verdict.accepted,
            committed=committed,
            candidates=verdict.candidates,
            queried=verdict.queried,
            batch_size=verdict.batch_size,
            overhead_s=max(0.0, self._clock.time() - begun_s - sum(parts_s.values())),
            uplink_bytes=exchange.uplink_bytes,
            downlink_bytes=exchange.downlink_bytes,
            gap=verdict.gap,
            csi=csi,
            **parts_s,
        )
        return record, reason

    def _draft(self, room: int) -> list[DraftToken]:
        """Draft a window: until the policy says so, an end id, or the room left for the output."""
        limit = min(self._policy.max_window, room)
        tokens = [self._sequence.draft_one()]
        while len(tokens) < limit and tokens[-1].id not in self._ends and self._policy.keep_drafting(tokens):
            tokens.append(self._sequence.draft_one())
        return tokens

    async def _exchange(self, draft: Draft, arrays: dict[str, AnyArray], drafted: Drafted) -> Exchange:
        """Send the window and see it through to its verdict, whatever is asked in between."""
        start_s, reveal_s, up, down = self._clock.time(), 0.0, 0, 0
        answer: tuple[Draft | Hidden, dict[str, AnyArray]] = (draft, arrays)
        wait_s, send = RESEND_S, True
        while True:
            if send:
                up += await self._client.send(*answer)
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
                return Exchange(message, self._clock.time() - start_s, reveal_s, up, down)
            if isinstance(message, NeedHidden) and message.round == draft.round:
                asked_s = self._clock.time()
                answer, send = self._reveal(message, packet, drafted), True
                reveal_s += self._clock.time() - asked_s
            elif isinstance(message, Resync | Busy):
                if isinstance(message, Busy):
                    await self._clock.sleep(message.retry_s)
                await self._open()
                answer, send = (draft, arrays), True
            elif isinstance(message, Fault):
                raise ProtocolError(f"the BS refuses: {message.reason}")

    def _reveal(
        self, ask: NeedHidden, packet: Packet[NeedHidden], drafted: Drafted
    ) -> tuple[Hidden, dict[str, AnyArray]]:
        packed = packet.arrays.get("positions")
        if packed is None:
            raise ProtocolError("NeedHidden without positions")
        positions = unpack_positions(packed, ask.count, len(drafted.ids))
        return Hidden(session=self._number, round=ask.round), self._protocol.reveal(drafted, positions)

    def _commit(self, drafted: Drafted, verdict: Verdict, room: int) -> tuple[int, str]:
        """Append what was committed and roll the drafter back to it; returns tokens added and why to stop, if so."""
        if not 0 <= verdict.accepted <= len(drafted.ids):
            raise ProtocolError(f"verdict accepts {verdict.accepted} of {len(drafted.ids)} tokens")
        added: NDArray[np.int32] = np.append(drafted.ids[: verdict.accepted], np.int32(verdict.token))[:room]
        ends = [i for i, token in enumerate(added.tolist()) if token in self._ends]
        if ends:
            added = added[: ends[0] + 1]
        self._committed = np.concatenate([self._committed, added])
        if not ends and len(added) < room:
            self._sequence.commit(verdict.accepted, verdict.token)
        return len(added), "stop" if ends else "length"

    async def _open(self) -> None:
        message = Open(
            session=self._number,
            protocol=self._protocol.kind,
            threshold=self._threshold,
            hidden_size=self._drafter.hidden_size,
        )
        self._opened_bytes[0] += await self._client.send(message, {"ids": self._committed})

    async def _close(self) -> None:
        self._client.end_session(self._number)
        await asyncio.shield(self._client.send(Close(session=self._number)))
