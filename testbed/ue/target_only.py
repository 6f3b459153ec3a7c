"""Decoding by the target alone: one request on the uplink, the tokens streamed back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from testbed.errors import AdmissionError, LinkTimeout, ProtocolError
from testbed.protocols import TARGET_ONLY
from testbed.protocols.codec import AnyArray, Packet
from testbed.protocols.messages import Busy, Close, Fault, Open, Opened, Resync, Verdict
from testbed.protocols.ranges import check_accepted, check_token
from testbed.protocols.sampling import GREEDY, Sampling
from testbed.ue.client import RESEND_S, Client
from testbed.ue.exchange import SILENCE_S, SLOWEST_BPS
from testbed.ue.records import RequestRecord, RoundRecord
from testbed.ue.session import Progress
from testbed.ue.waiting.reported import ReportedTimes


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
    """Decode a prompt on the BS; one record per streamed token, the link's time in the first of them.

    Args:
        sampling: how the target's tokens are sampled; default: greedily.
        seed: seed of the request's random numbers.
        speed_tps: token speed that the BS shall guarantee; None: no guarantee.
        accept_slower: whether to accept a lower speed that the BS offers.

    Raises:
        AdmissionError: the BS cannot guarantee the speed.
        LinkTimeout: the stream stopped.
        ProtocolError: the BS refuses.
    """
    times_s = [client.clock.time()]
    request = _request(client, end_ids, max_tokens, sampling, seed, speed_tps)
    stream = _TokenStream(client, request, {"ids": np.asarray(prompt, np.int32)}, accept_slower)
    verdicts: list[tuple[Verdict, int]] = []
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
    return _request_record(stream, verdicts, times_s, len(prompt), end_ids, client.clock.time() - times_s[0])


def _request_record(
    stream: _TokenStream,
    verdicts: Sequence[tuple[Verdict, int]],
    times_s: Sequence[float],
    prompt_len: int,
    end_ids: Sequence[int],
    latency_s: float,
) -> RequestRecord:
    """The record of a finished stream; `times_s` has the start and the arrival of each token."""
    up, down = stream.uplink_bytes, stream.downlink_bytes
    link_s = max(0.0, latency_s - sum(max(0.0, v.bs_s) for v, _ in verdicts))
    rounds = [
        _record(pair, prompt_len + i, 0.0 if i else link_s, 0 if i else up, (times_s[i], times_s[i + 1]))
        for i, pair in enumerate(verdicts)
    ]
    token_ids = [v.token for v, _ in verdicts]
    reason = "stop" if token_ids[-1] in end_ids else "length"
    return RequestRecord(prompt_len, token_ids, reason, latency_s, up, down, rounds)


class _TokenStream:
    """Tokens that the BS decodes, in order.

    An interrupted stream is requested again. Its tokens are a pure function of the request, so those received before
    are skipped.
    """

    def __init__(self, client: Client, request: Open, ids: dict[str, AnyArray], accept_slower: bool) -> None:
        self._client, self._request, self._ids, self._accept_slower = client, request, ids, accept_slower
        self._times = ReportedTimes(client.clock.time())
        self._session: int | None = None
        self._position = self._received = 0
        self._confirmed, self._answer_s = False, RESEND_S
        self._patience, self._reached = client.patience(), -1
        """What is left since the last progress, and tokens confirmed then (-1: the request not yet)."""
        self.uplink_bytes = self.downlink_bytes = 0

    async def token(self) -> tuple[Verdict, int]:
        """The next token's verdict, and the bytes of its message.

        Raises:
            AdmissionError: the BS cannot guarantee the speed.
            LinkTimeout: no progress within the client's timeout: neither this token nor, after an interruption, one of
                those before that had not come again yet.
            ProtocolError: the BS refuses, or sends something else than a token of its vocabulary.
        """
        self._reached = -2
        self._progress(-1)
        if self._session is None:
            await self._begin()
        while True:
            packet = await self._receive()
            message = packet.message
            self.downlink_bytes += packet.size_bytes
            if isinstance(message, Verdict) and message.round == self._position:
                check_accepted(message, drafted=0)
                check_token(message.token, self._client.vocab_size)
                self._position += 1
                if self._position > self._received:
                    self._received += 1
                    return self._times.alone(message, self._client.clock.time()), packet.size_bytes
                self._progress(self._position)
            elif isinstance(message, Opened):
                self._progress(0)
            elif isinstance(message, Busy):
                self._refused(message)
                await self._patience.rest(message)
                await self._send()
            elif isinstance(message, Resync) or (isinstance(message, Verdict) and message.round > self._position):
                await self.close()  # the session or a token was lost
                await (self._patience.rest(message) if isinstance(message, Resync) else self._patience.pause())
                await self._begin()
            elif not isinstance(message, Verdict):
                reason = message.reason if isinstance(message, Fault) else type(message).__name__
                raise ProtocolError(f"the BS refuses: {reason}")

    def _progress(self, tokens: int) -> None:
        """Note that the BS has sent this many tokens of the request again, which counts once for each number."""
        if tokens > self._reached:
            self._patience.begin()
            self._reached = tokens

    async def close(self) -> None:
        """End the session."""
        if self._session is not None:
            self._client.end_session(self._session)
            await self._client.send(Close(session=self._session))
            self._session = None

    async def _begin(self) -> None:
        self._session, self._position = self._client.new_session(), 0
        self._request = msgspec.structs.replace(self._request, session=self._session)
        await self._send()

    async def _send(self) -> None:
        sent = await self._client.send(self._request, self._ids)
        self.uplink_bytes += sent
        self._confirmed, self._answer_s = False, max(RESEND_S, 8 * sent / SLOWEST_BPS)

    async def _receive(self) -> Packet[Any]:
        """The next message; after a silence the request is sent again.

        The silence is short until the BS has confirmed the request, and longer afterwards, since the first token of a
        long prompt takes time.
        """
        timeout_s, times = self._client.timeout_s, 1
        while True:
            assert self._session is not None
            left_s = self._patience.left_s
            wait_s = times * (max(SILENCE_S, timeout_s / 4) if self._confirmed else self._answer_s)
            try:
                packet = await self._client.receive(self._session, min(wait_s, left_s))
                self._confirmed = True
                self._patience.heard()
                return packet
            except LinkTimeout as exc:
                if left_s <= wait_s:
                    raise self._patience.over(exc) from exc
            times *= 2
            await self.close()
            await self._begin()

    def _refused(self, busy: Busy) -> None:
        """Ask for the speed that the BS offers, if any."""
        if busy.speed_tps is None:
            return
        if not self._accept_slower or not busy.speed_tps:
            raise AdmissionError(f"the BS refuses: {busy.reason}")
        self._request = msgspec.structs.replace(self._request, speed_tps=busy.speed_tps)


def _request(
    client: Client, end_ids: Sequence[int], max_tokens: int, sampling: Sampling, seed: int, speed_tps: float | None
) -> Open:
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
        served=client.served,
        endless=client.endless(end_ids),
        speed_tps=speed_tps,
        coupled=sampling.coupled,
    )


def _record(
    pair: tuple[Verdict, int],
    base_len: int,
    link_s: float,
    uplink_bytes: int,
    span_s: tuple[float, float] | None = None,
) -> RoundRecord:
    """The record of a token; `span_s`: arrival of the previous token and of this one."""
    verdict, size_bytes = pair
    begin_s, end_s = span_s or (None, None)
    return RoundRecord(
        round=verdict.round, protocol=TARGET_ONLY, base_len=base_len, drafted=0, committed=1,
        accepted=0, candidates=0, queried=0, batch_size=verdict.batch_size, gap=verdict.gap, draft_s=0.0,
        link_s=link_s, queue_s=verdict.queue_s, verify_s=verdict.verify_s, judge_s=verdict.judge_s,
        overhead_s=max(0.0, verdict.bs_s - verdict.queue_s - verdict.verify_s - verdict.judge_s),
        uplink_bytes=uplink_bytes, downlink_bytes=size_bytes,
        begin_s=begin_s, sent_s=begin_s, verdict_s=end_s, end_s=end_s,
    )  # fmt: skip
