"""Compute times of a profile: drafting, verification passes and the judge's head."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from testbed.bs.engines.base import Share, VerifyEngine, VerifyRequest, VerifyResult
from testbed.bs.engines.batched import BatchedEngine
from testbed.bs.engines.coupled import coupled
from testbed.bs.engines.runner import nobody
from testbed.bs.scheduling.window_hints import Windows
from testbed.clock import Clock
from testbed.experiments.inputs.coefficients import pass_coefficients
from testbed.experiments.inputs.profile import DraftCost, PassWork, Profile
from testbed.optim.draft_window.controller import DEFAULT as WINDOWS
from testbed.optim.draft_window.controller import WindowConfig
from testbed.ue.pace import lasted

T = TypeVar("T")


def hinting(
    profile: Profile, vocab_size: int = 0, chosen: WindowConfig = WINDOWS, max_requests: float = math.inf
) -> Windows:
    """The controller of the UEs' draft windows, at a profile's pass times."""
    known = pass_coefficients(profile.verify)
    return Windows(chosen, lambda: known, max_requests, vocab_size)


class ProfilePace:
    """Implements `Pace` with a profile's drafting times.

    Args:
        ahead: tokens drafted in every window beyond those that are sent.
        factor: multiplies all times.
        computed: called with the time of every step, in seconds, also of one that was broken off.

    Attributes:
        late_s: time by which steps of a real drafter took longer than the profile's.
    """

    def __init__(
        self, profile: Profile, clock: Clock, ahead: int = 0, factor: float = 1.0,
        computed: Callable[[float], None] = lambda seconds: None,
    ) -> None:  # fmt: skip
        self._profile, self._clock, self._ahead, self._ended_s = profile, clock, ahead, -math.inf
        self._factor, self._computed, self.late_s = factor, computed, 0.0

    def _draft(self) -> DraftCost:
        hot = self._profile.hot
        return hot.draft if hot and self._clock.time() - self._ended_s < hot.within_s else self._profile.draft

    def begin(self) -> float:
        """See `Pace.begin`."""
        return self._clock.time()

    async def opened(self, prompt_len: int, begun_s: float) -> None:
        """Prefilling the prompt."""
        await self._last(self._draft().prefill_s(prompt_len), begun_s)

    async def drafted(self, count: int, base_len: int, begun_s: float, before: int = 0) -> None:
        """Drafting a window, or more of it."""
        draft = self._draft()
        seconds = draft.window_s(before + count + self._ahead, base_len)
        if before:
            seconds -= draft.window_s(before + self._ahead, base_len)
        await self._last(seconds, begun_s)

    async def _last(self, seconds: float, begun_s: float) -> None:
        self.late_s += max(0.0, self._clock.time() - begun_s - self._factor * seconds)
        try:
            await lasted(self._clock, self._factor * seconds, begun_s)
        finally:
            self._computed(self._clock.time() - begun_s)
        self._ended_s = self._clock.time()


class _ProfilePasses(BatchedEngine):
    """Puts passes together as a base station's engine does; another engine computes the results."""

    def __init__(self, engine: VerifyEngine, chunk_tokens: int | None) -> None:
        super().__init__()
        self._engine, self.chunk_tokens = engine, chunk_tokens
        self.vocab_size, self.max_positions = engine.vocab_size, engine.max_positions
        self.max_batch_tokens = 2**31  # the scheduler's bound is the only one

    def compute(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
        """See `BatchedEngine.compute`."""
        return self._engine.verify(batch)

    def release(self, session: str) -> None:
        """See `VerifyEngine.release`."""
        super().release(session)
        self._engine.release(session)

    def close(self) -> None:
        """See `VerifyEngine.close`."""
        self._engine.close()


class ProfileRunner:
    """Implements `EngineRunner` with a profile's pass times, whatever engine computes the results.

    A session's first pass computes its prefix, or a piece of it; later passes find what was computed in the cache, all
    but the newest token.

    Args:
        chunk_tokens: new tokens of one prompt in a pass; None: all.
    """

    def __init__(self, engine: VerifyEngine, profile: Profile, clock: Clock, chunk_tokens: int | None = None) -> None:
        self._passes, self._profile, self._clock = _ProfilePasses(engine, chunk_tokens), profile, clock
        self._ended_s = -math.inf

    def submit(self, request: VerifyRequest) -> None:
        """See `VerifyEngine.submit`."""
        self._passes.submit(request)

    async def step(self, waiting: Callable[[], bool] = nobody) -> list[Share]:
        """One pass; cached tokens are the profile's, so that window hints are, too."""
        hot = self._profile.hot
        cost = hot.verify if hot and self._clock.time() - self._ended_s < hot.within_s else self._profile.verify
        shares = [coupled(share) for share in self._passes.step()]
        works = [PassWork(0 if s.result is None else len(s.request.draft), s.new, s.cached) for s in shares]
        await self._clock.sleep(cost.pass_s(works))
        self._ended_s = self._clock.time()
        return shares

    def cached(self, request: VerifyRequest) -> int | None:
        """See `EngineRunner.cached`: nothing is evicted."""
        return None

    async def judged(self, positions: int) -> None:
        """The head's time (WISV eq. 17)."""
        if self._profile.head is not None:
            await self._clock.sleep(positions * self._profile.head.position_s)

    async def beside(self, work: Callable[[], T]) -> T:
        """See `EngineRunner.beside`: computations take no virtual time."""
        return work()

    def release(self, session: str) -> None:
        """Let the engine forget a session."""
        self._passes.release(session)
