"""A request waiting for the engine, as schedulers see it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from testbed.bs.engines.base import VerifyRequest

PIECE = 64
"""Pieces of a prompt end at multiples of this many tokens, so that they leave whole blocks in the prefix cache."""
_NOTHING = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """A request waiting for the engine."""

    request: VerifyRequest
    arrived_s: float
    """Time of arrival, on the server's clock."""
    computed: int
    """Leading tokens of the prefix that the engine has computed in this session."""
    speed_tps: float | None = None
    """Guaranteed token speed [tokens/s], the service class; None: no guarantee."""
    draft_s: float = 0.0
    """Drafting time since the last verdict."""
    network_s: float = 0.0
    """Time of the round's messages on the link, both ways."""
    ahead_s: float = 0.0
    """Lead of the session's output over its guarantee when the round began, tokens / speed − time; below 0: it was
    behind."""
    acceptance: float | None = None
    """Acceptance rate α of this session, accepted / (accepted + first rejections); None: not measured yet."""
    accepted_share: float | None = None
    """Accepted / drafted tokens of this session; None: not measured yet."""
    turn_s: float = 0.0
    """Time from the arrival within which its UE's part of the time that guarantees leave suffices for this request and
    those of its UE before it; 0: it has a guarantee, or no session has one."""
    ue: bytes = b""
    """UE that the session belongs to."""

    @property
    def cached_tokens(self) -> int:
        """Leading tokens of the prefix expected in the cache, by the session's own history."""
        return min(self.computed, len(self.request.prefix) - 1)

    @property
    def new_tokens(self) -> int:
        """Tokens that the pass must compute, by the session's own history."""
        return max(1, len(self.request.prefix) - self.computed) + len(self.request.draft)

    def ends(self, most: int) -> int:
        """End of a piece of at most `most` new tokens: a multiple of `PIECE` before the prefix's last token; 0: there
        is none.
        """
        cached = self.cached_tokens
        end = min(cached + most, len(self.request.prefix) - 1) // PIECE * PIECE
        return end if end > cached else 0

    def piece(self, end: int) -> Pending:
        """A pass over its first `end` tokens only, for the prefix cache; the request keeps waiting for the rest."""
        request = VerifyRequest(self.request.session, self.request.prefix[:end], _NOTHING)
        return replace(self, request=request)
