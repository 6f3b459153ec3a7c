"""A request that waits for the engine, as schedulers see it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from testbed.bs.engines.base import VerifyRequest

PIECE = 64
"""Pieces of a prompt end at multiples of so many tokens, so that they leave whole blocks in the prefix cache."""
_NOTHING = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """A request that waits for the engine."""

    request: VerifyRequest
    arrived_s: float
    """On the server's clock."""
    computed: int
    """Leading tokens of the prefix that the engine has seen before in this session."""
    speed_tps: float | None = None
    """Tokens a second promised to its UE, its service class; None: nothing is promised."""
    draft_s: float = 0.0
    """Time that its UE spent on drafting since the last verdict."""
    network_s: float = 0.0
    """Time that the round's messages spend on the link, there and back."""
    ahead_s: float = 0.0
    """How far the session's output was ahead of its promise when the round began, tokens / speed − time; below 0: it
    was behind."""
    acceptance: float | None = None
    """Share of drafted tokens that is accepted in this session; None: not measured yet."""

    @property
    def cached_tokens(self) -> int:
        """Leading tokens of the prefix that the pass need not compute, as far as the session's own history tells."""
        return min(self.computed, len(self.request.prefix) - 1)

    @property
    def new_tokens(self) -> int:
        """Tokens that the pass must compute for it, as far as the session's own history tells."""
        return max(1, len(self.request.prefix) - self.computed) + len(self.request.draft)

    def ends(self, most: int) -> int:
        """Where a piece that computes `most` tokens or fewer ends: at a multiple of `PIECE` before the prefix's last
        token; 0: nowhere.
        """
        cached = self.cached_tokens
        end = min(cached + most, len(self.request.prefix) - 1) // PIECE * PIECE
        return end if end > cached else 0

    def piece(self, end: int) -> Pending:
        """A pass over its first `end` tokens alone, for the prefix cache; the request goes on waiting for the rest."""
        request = VerifyRequest(self.request.session, self.request.prefix[:end], _NOTHING)
        return replace(self, request=request)
