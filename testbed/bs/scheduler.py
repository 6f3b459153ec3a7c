"""Which pending requests go into the next pass: pure functions of their arguments, and their registry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from testbed.bs.engine import VerifyRequest
from testbed.errors import BadInput


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


class Scheduler(Protocol):
    """Chooses the batch of the next pass."""

    def plan(self, pending: Sequence[Pending], now_s: float) -> list[Pending]:
        """The next batch, never empty while something is pending."""


@dataclass(frozen=True)
class Fcfs:
    """First come, first served, as many as fit: the head of the queue always goes.

    Raises:
        BadInput: a bound below 1, under which nothing would ever go.
    """

    max_requests: int = 256
    max_tokens: int = 8192
    """New tokens of one pass; a single larger request still goes, alone."""

    def __post_init__(self) -> None:
        if self.max_requests < 1 or self.max_tokens < 1:
            raise BadInput(f"a pass takes 1 request and 1 token or more, not {self.max_requests} and {self.max_tokens}")

    def plan(self, pending: Sequence[Pending], now_s: float) -> list[Pending]:
        """In order of arrival until the next request would not fit."""
        batch: list[Pending] = []
        tokens = 0
        for item in sorted(pending, key=lambda p: p.arrived_s)[: self.max_requests]:
            tokens += item.new_tokens
            if batch and tokens > self.max_tokens:
                break
            batch.append(item)
        return batch


SCHEDULERS = {"fcfs": Fcfs}


def scheduler(kind: str, max_requests: int, max_tokens: int) -> Scheduler:
    """The scheduler of that kind.

    Raises:
        BadInput: unknown kind; the message lists the known ones.
    """
    if kind not in SCHEDULERS:
        raise BadInput(f"unknown scheduler {kind!r}; known: {', '.join(SCHEDULERS)}")
    return SCHEDULERS[kind](max_requests, max_tokens)
