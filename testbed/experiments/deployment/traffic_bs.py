"""A base station under synthetic traffic: the verifier's memory and times, and the target's tokens."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from testbed.bs.engines.base import Share, VerifyRequest, VerifyResult
from testbed.bs.engines.coupled import coupled
from testbed.bs.engines.runner import nobody
from testbed.bs.intake import Offer
from testbed.clock import Clock
from testbed.experiments.deployment.traffic_ue import LANGUAGE, MOST_POSITIONS, VOCAB
from testbed.experiments.inputs.profile import PassWork, VerifyCost
from testbed.optim.pass_time import NO_OVERHEAD, PassOverhead

T = TypeVar("T")

OFFER = Offer("synthetic", "", VOCAB, 1, (), MOST_POSITIONS)
"""Work of a base station under synthetic traffic."""
_ZEROS = np.zeros(512, np.float32)
with np.errstate(divide="ignore"):
    _SURE = np.log(np.eye(VOCAB, dtype=np.float32))
"""[VOCAB, VOCAB] log-probabilities of a target that is sure of the token of the row."""


class PrefixCache:
    """LRU prefix cache: leading tokens of each session whose keys and values are in memory.

    Args:
        capacity: tokens.
        tail: evict the last tokens of a session, as many as needed, instead of the whole session.
    """

    def __init__(self, capacity: int, tail: bool) -> None:
        self._capacity, self._tail = capacity, tail
        self._held: OrderedDict[str, int] = OrderedDict()
        self._total = 0
        self.evicted = 0

    def cached(self, session: str) -> int:
        """Leading tokens of a session that are in the cache."""
        return self._held.get(session, 0)

    def hold(self, session: str, tokens: int) -> None:
        """Cache the first `tokens` of a session as the most recently used, and evict others where needed."""
        self.drop(session)
        self._held[session] = tokens
        self._total += tokens
        while self._total > self._capacity and len(self._held) > 1:
            oldest, held = next(iter(self._held.items()))
            lost = min(held, self._total - self._capacity) if self._tail else held
            self._total -= lost
            self.evicted += lost
            if lost < held:
                self._held[oldest] = held - lost
            else:
                del self._held[oldest]

    def drop(self, session: str) -> None:
        """Remove a session."""
        self._total -= self._held.pop(session, 0)


Computation = Callable[[Sequence[VerifyRequest]], Sequence[VerifyResult]]
"""Results of the requests of a pass."""


def synthetic(batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
    """The tokens of `LANGUAGE`."""
    found = []
    for request in batch:
        length, drafted = len(request.prefix), len(request.draft)
        target = LANGUAGE[length : length + drafted + 1]
        sure = _SURE[target] if request.logprobs and request.coupling is None else None
        found.append(VerifyResult(target, _ZEROS[: drafted + 1], _ZEROS[:drafted], logprobs=sure))
    return found


class TrafficRunner:
    """Implements `EngineRunner`: results of a computation, after the pass time of eq. 19.

    Args:
        cache: None: every pass recomputes the whole prefix.
        linger: keep the tokens of closed sessions in the cache.
        lenient: mismatched tokens may be kept, so that all drafted ones stay in the cache until the next round.
        compute: default: synthetic tokens.
        forget: called with each session that ends.
        head_s: time of a judged position.
        between: least time between the end of a pass and the next one.
    """

    def __init__(
        self, cost: VerifyCost, cache: PrefixCache | None, clock: Clock, linger: bool, lenient: bool = False,
        compute: Computation = synthetic, forget: Callable[[str], None] = lambda session: None, head_s: float = 0.0,
        between: PassOverhead = NO_OVERHEAD,
    ) -> None:  # fmt: skip
        self._cost, self._cache, self._clock, self._linger, self._lenient = cost, cache, clock, linger, lenient
        self._compute, self._forget, self._head_s = compute, forget, head_s
        self._between, self._free_s = between, -math.inf
        self._submitted: list[VerifyRequest] = []
        self.passes: list[tuple[list[tuple[int, int]], float]] = []
        self.keep_passes = False

    def submit(self, request: VerifyRequest) -> None:
        """See `VerifyEngine.submit`."""
        self._submitted.append(request)

    async def step(self, waiting: Callable[[], bool] = nobody) -> list[Share]:
        """One pass over all submitted rounds."""
        batch, self._submitted = self._submitted, []
        works = [self._work(request) for request in batch]
        seconds = self._cost.pass_s(works)
        await self._clock.sleep(seconds + max(0.0, self._free_s - self._clock.time()))
        self._free_s = self._clock.time() + self._between.pass_s + self._between.request_s * len(batch)
        if self.keep_passes:
            self.passes.append(([(work.new, work.cached) for work in works], seconds))
        results = self._compute(batch)
        for request, result in zip(batch, results, strict=True):
            self._hold(request, result)
        return [coupled(Share(r, w.new, w.cached, result)) for r, w, result in zip(batch, works, results, strict=True)]

    def _work(self, request: VerifyRequest) -> PassWork:
        length, drafted = len(request.prefix), len(request.draft)
        cached = 0 if self._cache is None else min(self._cache.cached(request.session), length - 1)
        return PassWork(drafted, drafted + length - cached, cached)

    def _hold(self, request: VerifyRequest, result: VerifyResult) -> None:
        """Cache the tokens that the target shares with the round."""
        if self._cache is not None:
            drafted = len(request.draft)
            agree = request.draft == result.argmax[:drafted]
            held = drafted if self._lenient or agree.all() else int(agree.argmin())
            self._cache.hold(request.session, len(request.prefix) + held)

    def cached(self, request: VerifyRequest) -> int | None:
        """See `EngineRunner.cached`: less than was computed where the cache has evicted some."""
        return 0 if self._cache is None else self._cache.cached(request.session)

    async def judged(self, positions: int) -> None:
        """The time of the judge's head."""
        if positions and self._head_s:
            await self._clock.sleep(positions * self._head_s)

    async def beside(self, work: Callable[[], T]) -> T:
        """See `EngineRunner.beside`: computations take no virtual time."""
        return work()

    def release(self, session: str) -> None:
        """Remove a session from the cache, unless sessions linger."""
        self._forget(session)
        if self._cache is not None and not self._linger:
            self._cache.drop(session)
