"""Losslessness check: compares outputs with the target's own, token for token."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from testbed.errors import LinkError, ProtocolError
from testbed.protocols.messages import Busy, Close, Draft, Open, Verdict
from testbed.protocols.ranges import check_accepted
from testbed.protocols.sampling import GREEDY, Sampling
from testbed.ue.client import Client
from testbed.ue.exchange import NOTHING, OutgoingWindow, SessionExchanges

LOG = logging.getLogger(__name__)
SHOWN = 8
"""Number of tokens of each continuation in a report."""


class Divergence(msgspec.Struct, frozen=True):
    """First difference between an output and the target's own."""

    request: int
    position: int
    """Index in the output."""
    output: list[int]
    """The output from `position` on."""
    target: list[int]
    """The target's own output from `position` on."""
    gap: float
    """Logit of the target's token minus that of the output's token, computed by the serving engine; infinite where one
    of the two ends, or if the BS did not say."""
    tie: bool
    """Whether the gap is within the tolerance, so that it does not count as a loss."""


def first_difference(output: Sequence[int], target: Sequence[int]) -> int | None:
    """Index of the first token that differs, or None; the end of one sequence counts as a difference."""
    for i, (a, b) in enumerate(zip(output, target, strict=False)):
        if a != b:
            return i
    return None if len(output) == len(target) else min(len(output), len(target))


async def compare(
    client: Client,
    request: int,
    prompt: Sequence[int],
    output: Sequence[int],
    target: Sequence[int],
    tolerance: float,
    sampling: Sampling = GREEDY,
    seed: int = 0,
) -> Divergence | None:
    """Compare an output with the target's own; at the first difference, query the engine for the logit gap.

    Args:
        tolerance: largest logit gap that counts as a tie; 0 in float32.
        sampling: greedy, or coupled sampling with the noise of `seed`.
    """
    position = first_difference(output, target)
    if position is None:
        return None
    gap = float("inf")
    if position < min(len(output), len(target)):
        asked = _opening(client, sampling, seed)
        gap = await _gap(client, asked, [*prompt, *target[:position]], output[position], target[position])
    tie = tolerance > 0 and abs(gap) <= tolerance
    return Divergence(request, position, list(output[position:][:SHOWN]), list(target[position:][:SHOWN]), gap, tie)


def _opening(client: Client, sampling: Sampling, seed: int) -> Open:
    return Open(
        session=-1, protocol="greedy", threshold=0.0, hidden_size=1,
        temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p, seed=seed,
        coupled=sampling.coupled, served=client.served,
    )  # fmt: skip


async def _gap(client: Client, asked: Open, prefix: list[int], output: int, target: int) -> float:
    """Logit of the target's token after `prefix` minus that of the other of the two tokens; with coupled sampling,
    noise included. Infinite, with a warning, if the BS does not say.
    """
    gap = 0.0
    try:
        for token in (output, target):
            verdict = await _verdict(client, asked, np.asarray(prefix, np.int32), token)
            check_accepted(verdict, drafted=1)
            if verdict.accepted == 0:
                gap = float("inf") if math.isnan(verdict.gap) else max(gap, verdict.gap)
    except LinkError as exc:
        LOG.warning("outputs differ, and by which logits is unknown: %s", exc)
        return float("inf")
    return gap


async def _verdict(client: Client, asked: Open, prefix: NDArray[np.int32], token: int) -> Verdict:
    """Verdict on one token, from a session of its own."""
    number = client.new_session()

    async def begin(round_: int) -> int:
        return await client.send(replace(asked, session=number, round=round_), {"ids": prefix})

    exchanges = SessionExchanges(client, number, begin, _refused, lambda drafted, positions: {})
    draft = Draft(session=number, round=0, base_len=len(prefix))
    window = OutgoingWindow(draft, {"ids": np.array([token], np.int32)}, NOTHING, client.clock.time())
    try:
        await exchanges.open(0)
        return (await exchanges.verdict(window)).verdict
    finally:
        client.end_session(number)
        await client.send(Close(session=number))


def _refused(busy: Busy) -> None:
    raise ProtocolError(f"the BS refuses: {busy.reason}")
