"""Engines that compute a list of requests at once: which submitted rounds a pass takes, and how much of each."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.bs.engines.base import Share, VerifyEngine, VerifyRequest, VerifyResult
from testbed.bs.engines.fairness import STALE_PASSES, fair_share, owner
from testbed.llama.kept import common_prefix

LEAST_PIECE = 16
"""Tokens of a piece, at least: what room is left below that stays free."""
_NOTHING = np.zeros(0, np.int32)


class _PassPart(NamedTuple):
    """A submitted round, and what a pass computes of it."""

    submitted: VerifyRequest
    computed: VerifyRequest
    """The round itself, or the beginning of its prefix without drafted tokens."""
    cached: int

    @property
    def whole(self) -> bool:
        """Whether the pass finishes the round."""
        return self.computed is self.submitted

    @property
    def new(self) -> int:
        """Positions to compute."""
        return len(self.computed.prefix) + len(self.computed.draft) - self.cached

    def share(self, result: VerifyResult) -> Share:
        """Its share of the pass, with what was found in the cache rather than what was expected there."""
        found = self if result.cached is None else self._replace(cached=result.cached)
        return Share(self.submitted, found.new, found.cached, result if self.whole else None)


class BatchedEngine(VerifyEngine):
    """Puts passes together from submitted rounds, in their order, at most one per session.

    A pass takes rounds until `max_batch_tokens` new tokens or `max_requests` are reached; where more sessions than
    `max_requests` hold keys and values or wait, at most a fair share of each UE's (`fairness`). A prefix with more
    than `chunk_tokens` uncached tokens, or more than a pass has room for, is computed in pieces; the round keeps its
    place, and leaves up to half of the room to later rounds that a pass finishes.
    """

    chunk_tokens: int | None = None
    """New tokens of one prefix in a pass, at most; None: as many as a pass has room for."""
    max_requests: int = 2**31
    """Requests of one pass, at most."""

    def __init__(self) -> None:
        self._submitted: list[VerifyRequest] = []
        """Changed in place, since `submit` may run during a step."""
        self._prompts: dict[str, NDArray[np.int32]] = {}
        """Progress of each session in its last pass."""
        self._passes = 0
        self._last_passes: dict[str, int] = {}
        """Number of each session's last pass."""

    @abstractmethod
    def compute(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
        """One pass over requests of different sessions; results in their order.

        Raises:
            EngineError: the pass failed; sessions are unchanged.
        """

    def cached(self, request: VerifyRequest) -> int:
        """Leading tokens of a request whose keys and values the engine holds, at most all but the prefix's last; by
        default, those that the session's last pass computed.
        """
        known = self._prompts.get(request.session)
        return 0 if known is None else common_prefix(known, request.prefix, len(request.prefix) - 1)

    def own(self, request: VerifyRequest) -> int | None:
        """See `VerifyEngine.own`; by default all of `cached`."""
        return self.cached(request)

    def held(self) -> Collection[str]:
        """Sessions whose keys and values the engine holds, the least recently used first, where it has a place for
        `max_requests` of them; by default none.
        """
        return ()

    def stale(self, held: Collection[str]) -> set[str]:
        """Those of these sessions that had no round for `STALE_PASSES`."""
        since = self._passes - STALE_PASSES
        return {session for session in held if self._last_passes.get(session, self._passes) < since}

    def submit(self, request: VerifyRequest) -> None:
        """See `VerifyEngine.submit`."""
        self.check(request)
        self._submitted.append(request)

    def step(self) -> list[Share]:
        """See `VerifyEngine.step`."""
        parts = self._parts(tuple(self._submitted))
        if not parts:
            return []
        try:
            results = self.compute([part.computed for part in parts])
        except Exception:
            self._submitted.clear()
            raise
        self._passes += 1
        for part in parts:
            self._prompts[part.submitted.session] = part.computed.prompt
            self._last_passes[part.submitted.session] = self._passes
            if part.whole:
                self._submitted.remove(part.submitted)
        return [part.share(result) for part, result in zip(parts, results, strict=True)]

    def release(self, session: str) -> None:
        """See `VerifyEngine.release`."""
        self._prompts.pop(session, None)
        self._last_passes.pop(session, None)
        for request in [request for request in self._submitted if request.session == session]:
            self._submitted.remove(request)

    def _parts(self, waiting: Sequence[VerifyRequest]) -> list[_PassPart]:
        """The parts of the next pass, in the order of their rounds.

        From the first round on that needs several passes, half of the room is kept for its pieces, and whole rounds
        behind it take the rest.
        """
        parts: dict[int, _PassPart] = {}
        pieces: list[int] = []
        room, kept, sessions = self.max_batch_tokens, 0, set[str]()
        share, taken = self._fair_share(waiting), Counter[str]()
        for place, request in enumerate(waiting):
            if len(sessions) == self.max_requests or request.session in sessions:
                break
            if taken[owner(request.session)] == share:
                continue
            taken[owner(request.session)] += 1
            sessions.add(request.session)
            whole = _PassPart(request, request, self.cached(request))
            if self._at_once(whole) and whole.new <= room - kept:
                parts[place] = whole
                room -= whole.new
            else:
                kept = kept or room // 2
                pieces.append(place)
        for place in pieces:
            part = self._piece(waiting[place], room, alone=not parts)
            if part is not None:
                parts[place] = part
                room -= part.new
        return [parts[place] for place in sorted(parts)]

    def _fair_share(self, waiting: Sequence[VerifyRequest]) -> int:
        """Most rounds of one UE in the next pass."""
        if not (held := self.held()):
            return self.max_requests
        used = set(held) - self.stale(held)
        return fair_share({*used, *(request.session for request in waiting)}, self.max_requests)

    def _at_once(self, whole: _PassPart) -> bool:
        """Whether the bound of one prefix's share lets a pass compute the whole round."""
        return self.chunk_tokens is None or len(whole.submitted.prefix) - whole.cached <= self.chunk_tokens

    def _piece(self, request: VerifyRequest, room: int, alone: bool) -> _PassPart | None:
        """What a pass computes of a round that it cannot finish; None: nothing."""
        cached = self.cached(request)
        prefix = len(request.prefix) - cached
        piece = min(prefix - 1, room, self.chunk_tokens or room)
        if piece < min(LEAST_PIECE, prefix - 1) or piece == 0:
            return _PassPart(request, request, cached) if alone else None
        beginning = VerifyRequest(request.session, request.prefix[: cached + piece], _NOTHING)
        return _PassPart(request, beginning, cached)
