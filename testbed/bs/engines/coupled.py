"""Tokens of coupled sampling in place of a target's argmax.

A token reads a row of the vocabulary: 1 to 4 ms for 50,000 to 150,000 ids. Those of a round are therefore chosen in its
pass only while the pass reads few rows (`few_chosen`), and else a few at a time beside the event loop (`Choices`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.bs.engines.base import Share, VerifyRequest, VerifyResult
from testbed.protocols.sampling import Coupling, warp


def unchosen(share: Share) -> int:
    """Number of values that coupled sampling has yet to read to choose a share's tokens."""
    found = choices(share)
    return 0 if found is None else found.left


def choices(share: Share) -> Choices | None:
    """The choice of a share's tokens; None: they are chosen, or the target's argmax."""
    request, result = share.request, share.result
    if request.coupling is None or result is None or result.logprobs is None:
        return None
    return Choices(request.coupling, request, result)


def few_chosen(shares: Sequence[Share], most: int) -> list[Share]:
    """Shares with the tokens of those rounds that read at most `most` values together, the shortest ones first."""
    found = list(shares)
    for i in sorted((i for i, share in enumerate(found) if unchosen(share)), key=lambda i: unchosen(found[i])):
        most -= unchosen(found[i])
        if most < 0:
            break
        found[i] = coupled(found[i])
    return found


def coupled(share: Share) -> Share:
    """A share whose result has the tokens that its request's coupling chooses; without a coupling, the same share."""
    return share if share.result is None else share._replace(result=chosen(share.request, share.result))


def chosen(request: VerifyRequest, result: VerifyResult) -> VerifyResult:
    """A result with the tokens of the request's coupling as `argmax`, and without log-probabilities.

    `margin` and `draft_gap` are differences of logit + T·G, T being the temperature: they compare with errors of
    logits, as under greedy decoding. Logits that are not numbers are left to `check_result`.
    """
    logprobs = result.logprobs
    if request.coupling is None or logprobs is None:
        return result
    if not np.isfinite(logprobs[np.arange(len(logprobs)), result.argmax]).all():
        return result
    tokens = Choices(request.coupling, request, result)
    tokens.choose(logprobs.size)
    return tokens.result


class Choices:
    """The tokens of a round, chosen a few at a time.

    Args:
        result: with log-probabilities that are numbers.
    """

    def __init__(self, coupling: Coupling, request: VerifyRequest, result: VerifyResult) -> None:
        assert result.logprobs is not None
        self._coupling, self._result, self._logprobs = coupling, result, result.logprobs
        self._size = int(result.logprobs.shape[1])
        self._first, self._faced = len(request.prefix), [*request.draft.tolist(), None]
        self._chosen: list[tuple[int, float, float]] = []

    @property
    def left(self) -> int:
        """Number of values to read."""
        return (len(self._logprobs) - len(self._chosen)) * self._size

    def part(self, most: int) -> int:
        """Number of values that `choose` reads."""
        return min(self.left, max(1, most // self._size) * self._size)

    def choose(self, most: int) -> None:
        """Choose the next tokens: as many as read `most` values, and one at least."""
        done, count = len(self._chosen), self.part(most) // self._size
        for i in range(done, done + count):
            margin, logits = float(self._result.margin[i]), self._logprobs[i]
            self._chosen.append(_choice(self._coupling, logits, self._first + i, margin, self._faced[i]))

    @property
    def result(self) -> VerifyResult:
        """See `chosen`; once none is left."""
        tokens, margins, gaps = zip(*self._chosen, strict=True)
        return replace(
            self._result,
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
