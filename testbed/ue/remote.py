"""Decoding by the target alone: the prompt goes up once, the tokens are streamed back."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from testbed.errors import AdmissionError, LinkTimeout, ProtocolError
from testbed.protocols import TARGET_ONLY
from testbed.protocols.messages import Busy, Close, Fault, Open, Opened, Verdict
from testbed.protocols.sampling import GREEDY, Sampling
from testbed.ue.client import Client
from testbed.ue.records import RequestRecord, RoundRecord
from testbed.ue.session import Progress


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
        ProtocolError: the BS refuses, or a token is missing.
    """
    session = client.new_session()
    start_s = client.clock.time()
    ask = _ask(session, max_tokens, sampling, seed, speed_tps)
    ids = {"ids": np.asarray(prompt, np.int32)}
    up, down = await client.send(ask, ids), 0
    verdicts: list[tuple[Verdict, int]] = []
    finished = False
    try:
        while not finished:
            packet = await client.receive(session, client.timeout_s)
            down += packet.size_bytes
            message = packet.message
            if isinstance(message, Verdict):
                if message.round != len(verdicts):
                    raise ProtocolError(f"token {len(verdicts)} of the stream is missing")
                verdicts.append((message, packet.size_bytes))
                finished = message.token in end_ids or len(verdicts) == max_tokens
                if progress:
                    progress(_record(verdicts[-1], len(prompt) + len(verdicts) - 1, 0.0, 0))
            elif isinstance(message, Busy) and message.speed_tps is not None:
                if not (accept_slower and message.speed_tps > 0):
                    raise AdmissionError(f"the BS refuses: {message.reason}")
                up += await client.send(msgspec.structs.replace(ask, speed_tps=message.speed_tps), ids)
            elif not isinstance(message, Opened):
                reason = message.reason if isinstance(message, Fault) else type(message).__name__
                raise ProtocolError(f"the BS refuses: {reason}")
    except LinkTimeout as exc:
        raise LinkTimeout(f"{exc}, {len(verdicts)} tokens into a target-only request") from exc
    finally:
        client.end_session(session)
        await client.send(Close(session=session))
    latency_s = client.clock.time() - start_s
    link_s = max(0.0, latency_s - sum(v.bs_s for v, _ in verdicts))
    rounds = [_record(pair, len(prompt) + i, 0.0 if i else link_s, 0 if i else up) for i, pair in enumerate(verdicts)]
    token_ids = [v.token for v, _ in verdicts]
    reason = "stop" if token_ids[-1] in end_ids else "length"
    return RequestRecord(len(prompt), token_ids, reason, latency_s, up, down, rounds)


def _ask(session: int, max_tokens: int, sampling: Sampling, seed: int, speed_tps: float | None) -> Open:
    return Open(
        session=session,
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


def _record(pair: tuple[Verdict, int], base_len: int, link_s: float, uplink_bytes: int) -> RoundRecord:
    verdict, size_bytes = pair
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
    )
