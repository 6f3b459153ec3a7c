"""Tokens of coupled sampling in place of a target's argmax."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.bs.engines.base import Share, VerifyRequest, VerifyResult
from testbed.protocols.sampling import Coupling, warp


def coupled(share: Share) -> Share:
    """A share whose result has the tokens that its request's coupling chooses; without a coupling, the same share."""
    return share if share.result is None else share._replace(result=chosen(share.request, share.result))


def chosen(request: VerifyRequest, result: VerifyResult) -> VerifyResult:
    """A result with the tokens of the request's coupling as `argmax`, and without log-probabilities.

    `margin` and `draft_gap` are differences of logit + T·G, T being the temperature: they compare with errors of
    logits, as under greedy decoding. Logits that are not numbers are left to `check_result`.
    """
    coupling, logprobs = request.coupling, result.logprobs
    if coupling is None or logprobs is None:
        return result
    if not np.isfinite(logprobs[np.arange(len(logprobs)), result.argmax]).all():
        return result
    faced = [*request.draft.tolist(), None]
    rows = [
        _choice(coupling, logits, len(request.prefix) + i, float(result.margin[i]), faced[i])
        for i, logits in enumerate(logprobs)
    ]
    tokens, margins, gaps = zip(*rows, strict=True)
    return replace(
        result,
        argmax=np.array(tokens, np.int32),
        margin=np.array(margins, np.float32),
        draft_gap=np.array(gaps[:-1], np.float32),
        logprobs=None,
    )


def _choice(
    coupling: Coupling, logits: NDArray[Any], position: int, margin: float, faced: int | None
) -> tuple[int, float, float]:
    """The token at a position, its margin, and its gap to the drafted token that it faces, if any.

    A token outside top-k or top-p lacks at least what separates its logit from the smallest one that was kept.

    Args:
        margin: that of the logits, which stands where top-k or top-p kept a single token.
    """
    warped, temperature = warp(logits, coupling.sampling), coupling.sampling.temperature
    times = coupling.times(position, len(warped))
    scores = warped / times
    best = int(scores.argmax())
    scores[best] = 0.0
    second = int(scores.argmax())

    def gap(token: int) -> float:
        noise = math.log(times[token] / times[best])
        behind = float(logits[best]) - float(logits[token]) + temperature * noise
        return behind if warped[token] else max(behind, float(logits[warped > 0].min() - logits[token]))

    return best, gap(second) if scores[second] else margin, 0.0 if faced is None else gap(faced)
