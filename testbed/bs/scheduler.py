"""Which pending requests go into the next pass: pure functions of their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from testbed.bs.engine import VerifyRequest
from testbed.errors import BadInput

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


class Scheduler(Protocol):
    """Chooses the batch of the next pass."""

    def plan(self, pending: Sequence[Pending], now_s: float) -> list[Pending]:
        """The next batch, never empty while something is pending; in place of a request it may take a `piece` of it."""


@dataclass(frozen=True)
class Fcfs:
    """First come, first served, as many as fit: the head of the queue always goes.

    Raises:
        BadInput: a bound below 1, under which nothing would ever go, or a piece of nothing.
    """

    max_requests: int = 256
    max_tokens: int = 8192
    """New tokens of one pass; a single larger request still goes, alone, where it is not cut into pieces."""
    chunk_tokens: int | None = None
    """New tokens of a prefix that one pass takes: longer ones go in pieces of so many, and others beside them. None:
    whole, however long."""

    def __post_init__(self) -> None:
        if self.max_requests < 1 or self.max_tokens < 1:
            raise BadInput(f"a pass takes 1 request and 1 token or more, not {self.max_requests} and {self.max_tokens}")
        if self.chunk_tokens is not None and self.chunk_tokens < PIECE:
            raise BadInput(f"a piece of a prompt has {PIECE} tokens or more, not {self.chunk_tokens}")

    def plan(self, pending: Sequence[Pending], now_s: float) -> list[Pending]:
        """In order of arrival until the next request would not fit."""
        batch: list[Pending] = []
        tokens = 0
        for item in sorted(pending, key=lambda p: p.arrived_s)[: self.max_requests]:
            item = self._cut(item)
            tokens += item.new_tokens
            if batch and tokens > self.max_tokens:
                break
            batch.append(item)
        return batch

    def _cut(self, item: Pending) -> Pending:
        most = self.chunk_tokens
        if most is None or len(item.request.prefix) - item.cached_tokens <= most:
            return item
        end = item.ends(most)
        return item.piece(end) if end else item
