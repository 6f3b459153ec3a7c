"""Compute times of a profile: drafting, verification passes and the judge's head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from testbed.bs.engines.base import VerifyEngine, VerifyRequest, VerifyResult
from testbed.bs.scheduling.window_hints import Windows
from testbed.clock import Clock
from testbed.experiments.inputs.coefficients import pass_coefficients
from testbed.experiments.inputs.profile import DraftCost, PassWork, Profile
from testbed.optim.draft_window.controller import DEFAULT as WINDOWS
from testbed.optim.draft_window.controller import WindowConfig


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
    """

    def __init__(self, profile: Profile, clock: Clock, ahead: int = 0, factor: float = 1.0) -> None:
        self._profile, self._clock, self._ahead, self._ended_s = profile, clock, ahead, -math.inf
        self._factor = factor

    def _draft(self) -> DraftCost:
        hot = self._profile.hot
        return hot.draft if hot and self._clock.time() - self._ended_s < hot.within_s else self._profile.draft

    async def opened(self, prompt_len: int) -> None:
        """Prefilling the prompt."""
        await self._clock.sleep(self._factor * self._draft().prefill_s(prompt_len))
        self._ended_s = self._clock.time()

    async def drafted(self, count: int, base_len: int) -> None:
        """Drafting a window."""
        await self._clock.sleep(self._factor * self._draft().window_s(count + self._ahead, base_len))
        self._ended_s = self._clock.time()


class ProfileRunner:
    """Implements `EngineRunner` with a profile's pass times, whatever engine computes the results.

    A session's first pass computes its prefix, or a piece of it; later passes find what was computed in the cache, all
    but the newest token.
    """

    def __init__(self, engine: VerifyEngine, profile: Profile, clock: Clock) -> None:
        self._engine, self._profile, self._clock = engine, profile, clock
        self._seen: dict[str, int] = {}
        self._ended_s = -math.inf

    async def verify(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
        """Results of one pass, in order; cached tokens are the profile's, so that window hints are, too."""
        hot = self._profile.hot
        cost = hot.verify if hot and self._clock.time() - self._ended_s < hot.within_s else self._profile.verify
        works = [self._work(request) for request in batch]
        results = self._engine.verify(batch)
        await self._clock.sleep(cost.pass_s(works))
        self._ended_s = self._clock.time()
        return [replace(result, cached=work.cached) for result, work in zip(results, works, strict=True)]

    def _work(self, request: VerifyRequest) -> PassWork:
        drafted, prefix = len(request.draft), len(request.prefix)
        cached = min(self._seen.get(request.session, 0), prefix - 1)
        self._seen[request.session] = prefix + drafted
        return PassWork(drafted, drafted + prefix - cached, cached)

    def cached(self, session: str) -> int | None:
        """See `EngineRunner.cached`: nothing is evicted."""
        return None

    async def judged(self, positions: int) -> None:
        """The head's time (WISV eq. 17)."""
        if self._profile.head is not None:
            await self._clock.sleep(positions * self._profile.head.position_s)

    def release(self, session: str) -> None:
        """Let the engine forget a session."""
        self._seen.pop(session, None)
        self._engine.release(session)
