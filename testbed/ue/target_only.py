"""Decoding by the target alone: the prompt goes up once, the tokens are streamed back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from testbed.errors import AdmissionError, LinkTimeout, ProtocolError
from testbed.protocols import TARGET_ONLY
from testbed.protocols.codec import AnyArray, Packet
from testbed.protocols.messages import Busy, Close, Fault, Open, Opened, Resync, Verdict
from testbed.protocols.sampling import GREEDY, Sampling
from testbed.ue.client import RESEND_S, Client
from testbed.ue.records import RequestRecord, RoundRecord
from testbed.ue.session import SILENCE_S, SLOWEST_BPS, Progress


async def decode_remotely(
    client: Client,
    prompt: Sequence[int],
    max_tokens: int,
    end_ids: Sequence[int],
    progress: Progress | None = None,
    sampling: Sampling = GREEDY,
    seed: int = 0,
    speed_tps: float | None = None,
    accept_slower: bool = False,
) -> RequestRecord:
    """Have the BS decode a prompt; one record per streamed token, the link's time in the first of them.

    Args:
        sampling: how the target's tokens are drawn; the default takes the most likely ones.
        seed: of the request's random numbers.
        speed_tps: tokens a second that the BS is to promise; None: no promise.
        accept_slower: whether to take what it can promise where it cannot promise that.

    Raises:
        AdmissionError: the BS cannot promise the speed.
        LinkTimeout: the stream stopped.
        ProtocolError: the BS refuses.
    """
    start_s = client.clock.time()
    ask = _ask(max_tokens, sampling, seed, speed_tps)
    stream = _TokenStream(client, ask, {"ids": np.asarray(prompt, np.int32)}, accept_slower)
    verdicts: list[tuple[Verdict, int]] = []
    times_s = [start_s]
    try:
        while not verdicts or (verdicts[-1][0].token not in end_ids and len(verdicts) < max_tokens):
            verdicts.append(await stream.token())
            times_s.append(client.clock.time())
            if progress:
                progress(_record(verdicts[-1], len(prompt) + len(verdicts) - 1, 0.0, 0))
    except LinkTimeout as exc:
        raise LinkTimeout(f"{exc}, {len(verdicts)} tokens into a target-only request") from exc
    finally:
        await stream.close()
    up, down = stream.uplink_bytes, stream.downlink_bytes
    latency_s = client.clock.time() - start_s
    link_s = max(0.0, latency_s - sum(v.bs_s for v, _ in verdicts))
    rounds = [
        _record(pair, len(prompt) + i, 0.0 if i else link_s, 0 if i else up, (times_s[i], times_s[i + 1]))
        for i, pair in enumerate(verdicts)
    ]
    token_ids = [v.token for v, _ in verdicts]
    reason = "stop" if token_ids[-1] in end_ids else "length"
    return RequestRecord(len(prompt), token_ids, reason, latency_s, up, down, rounds)


class _TokenStream:
    """Tokens that the BS decodes, in order. A stream that breaks off is asked for anew: what comes is a pure function
    of the request, so that what is here already is passed over.
    """

    def __init__(self, client: Client, ask: Open, ids: dict[str, AnyArray], accept_slower: bool) -> None:
        self._client, self._ask, self._ids, self._accept_slower = client, ask, ids, accept_slower
        self._session: int | None = None
        self._next = self._got = 0
        self._heard, self._answer_s = False, RESEND_S
        self.uplink_bytes = self.downlink_bytes = 0

    async def token(self) -> tuple[Verdict, int]:
        """The next one, and the bytes of its message.

        Raises:
            AdmissionError: the BS cannot promise the speed.
            LinkTimeout: nothing came in time.
            ProtocolError: the BS refuses.
        """
        if self._session is None:
            await self._begin()
        while True:
            packet = await self._receive()
            message = packet.message
            self.downlink_bytes += packet.size_bytes
            if isinstance(message, Verdict) and message.round == self._next:
                self._next += 1
                if self._next > self._got:
                    self._got += 1
                    return message, packet.size_bytes
            elif isinstance(message, Busy):
                await self._refused(message)
                await self._send()
            elif isinstance(message, Resync) or (isinstance(message, Verdict) and message.round > self._next):
                await self.close()  # the session was lost, or a token was
                await self._begin()
            elif not isinstance(message, Opened | Verdict):
                reason = message.reason if isinstance(message, Fault) else type(message).__name__
                raise ProtocolError(f"the BS refuses: {reason}")

    async def close(self) -> None:
        """End the session."""
        if self._session is not None:
            self._client.end_session(self._session)
            await self._client.send(Close(session=self._session))
            self._session = None

    async def _begin(self) -> None:
        self._session, self._next = self._client.new_session(), 0
        self._ask = msgspec.structs.replace(self._ask, session=self._session)
        await self._send()

    async def _send(self) -> None:
        sent = await self._client.send(self._ask, self._ids)
        self.uplink_bytes += sent
        self._heard, self._answer_s = False, max(RESEND_S, 8 * sent / SLOWEST_BPS)

    async def _receive(self) -> Packet[Any]:
        """The next message; after a while of silence the request is sent anew. A BS says at once that it has it, but a
        token of a long prompt may take its time.
        """
        left_s, times = self._client.timeout_s, 1
        while True:
            assert self._session is not None
            wait_s = times * (max(SILENCE_S, self._client.timeout_s / 4) if self._heard else self._answer_s)
            try:
                packet = await self._client.receive(self._session, min(wait_s, left_s))
                self._heard = True
                return packet
            except LinkTimeout as exc:
                left_s -= wait_s
                if left_s <= 0:
                    raise LinkTimeout(f"the BS did not answer within {self._client.timeout_s:g} s") from exc
            times *= 2
            await self.close()
            await self._begin()

    async def _refused(self, busy: Busy) -> None:
        """Wait until the BS may have room, or ask for less."""
        if busy.speed_tps is None:
            await self._client.clock.sleep(busy.retry_s)
        elif self._accept_slower and busy.speed_tps > 0:
            self._ask = msgspec.structs.replace(self._ask, speed_tps=busy.speed_tps)
        else:
            raise AdmissionError(f"the BS refuses: {busy.reason}")


def _ask(max_tokens: int, sampling: Sampling, seed: int, speed_tps: float | None) -> Open:
    return Open(
        session=-1,
        protocol=TARGET_ONLY,
        threshold=0.0,
        hidden_size=1,
        max_tokens=max_tokens,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=seed,
        speed_tps=speed_tps,
    )


def _record(
    pair: tuple[Verdict, int],
    base_len: int,
    link_s: float,
    uplink_bytes: int,
    span_s: tuple[float, float] | None = None,
) -> RoundRecord:
    """The record of a token; `span_s` is when the one before was there and this one."""
    verdict, size_bytes = pair
    begin_s, end_s = span_s or (None, None)
    return RoundRecord(
        round=verdict.round,
        protocol=TARGET_ONLY,
        base_len=base_len,
        drafted=0,
        accepted=0,
        committed=1,
        candidates=0,
        queried=0,
        batch_size=verdict.batch_size,
        draft_s=0.0,
        link_s=link_s,
        queue_s=verdict.queue_s,
        verify_s=verdict.verify_s,
        judge_s=verdict.judge_s,
        overhead_s=max(0.0, verdict.bs_s - verdict.queue_s - verdict.verify_s - verdict.judge_s),
        uplink_bytes=uplink_bytes,
        downlink_bytes=size_bytes,
        gap=verdict.gap,
        begin_s=begin_s,
        sent_s=begin_s,
        verdict_s=end_s,
        end_s=end_s,
    )
