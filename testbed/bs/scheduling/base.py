"""The scheduler seam: which pending requests go into the next pass, a pure function of its arguments."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from testbed.bs.pending import PIECE, Pending
from testbed.errors import BadInput
from testbed.optim.pass_time import Coefficients

RECENT_S = 10.0
"""Time after its last request for which a UE counts as having rounds."""
Heard = tuple[tuple[bytes, float], ...]
"""The last two UEs that had a request, and when; a UE that drafts has none, and comes back."""


def heard(before: Heard, pending: Sequence[Pending]) -> Heard:
    """The last two UEs that had a request until now."""
    last = dict(before)
    for item in pending:
        last[item.ue] = max(item.arrived_s, last.get(item.ue, -math.inf))
    return tuple(sorted(last.items(), key=lambda one: (-one[1], one[0]))[:2])


def others_have_rounds(before: Heard, pending: Sequence[Pending], now_s: float) -> Callable[[bytes], bool]:
    """Whether UEs other than one have a request, or had one in the last `RECENT_S`."""
    recent = {item.ue for item in pending} | {ue for ue, at_s in before if now_s - at_s < RECENT_S}
    return lambda ue: bool(recent - {ue})


class Scheduler(ABC):
    """Chooses the batch of the next pass."""

    learns: ClassVar[bool] = False
    """Whether `learn` is to be called after every pass."""

    @abstractmethod
    def plan(self, pending: Sequence[Pending], now_s: float) -> list[Pending]:
        """The next batch; in place of a request it may take a `piece` of it. After an empty batch, the next plan
        follows when another request arrives.
        """

    def beside(self, running: Sequence[Pending]) -> Scheduler:
        """The scheduler of a plan whose pass computes these requests, too, which the engine has not finished; requests
        of their sessions are not planned meanwhile. By default they change nothing.
        """
        return self

    def after(self, pending: Sequence[Pending], batch: Sequence[Pending]) -> Scheduler:
        """The scheduler of the plan that follows this one, for schedulers whose batches depend on earlier ones."""
        return self

    def ended(self, session: str) -> Scheduler:
        """The scheduler once a session has ended; if it is another one, the next plan follows at once."""
        return self

    def learn(self, coefficients: Coefficients | None, budget_s: float | None) -> Scheduler:
        """The scheduler of the next pass.

        Args:
            coefficients: of pass times (eq. 19) as estimated now; None: there is no estimator.
            budget_s: time for queueing and verification in a mean round of the UE whose guaranteed speed leaves least;
                None: no session has one.
        """
        return self

    def due_s(self, item: Pending) -> float | None:
        """Deadline of a request on the server's clock; None: this scheduler knows no deadlines."""
        return None

    def snapshot(self, pending: Sequence[Pending], now_s: float) -> dict[str, Any]:
        """Gauges for the metrics, at the last plan."""
        return {}


@dataclass(frozen=True)
class Fcfs(Scheduler):
    """First come, first served, by UE: the first request of each UE in order of arrival, then the second ones, and so
    on, as many as fit. With one session per UE that is the order of arrival.

    Raises:
        BadInput: a bound below 1, or pieces that are too small.
    """

    max_requests: int = 256
    max_tokens: int = 8192
    """New tokens of one pass; a single larger request is still taken, alone, unless it is cut into pieces."""
    chunk_tokens: int | None = None
    """New tokens of a prefix that one pass takes: longer ones are computed in pieces, beside other requests. None:
    prefixes are never cut."""
    own_tokens: int | None = None
    """`Pending.weight` up to which one UE's requests are taken while other UEs have rounds, those that the engine still
    has included; its first one always is. None: there is no such bound."""
    heard: Heard = ()

    def __post_init__(self) -> None:
        if self.max_requests < 1 or self.max_tokens < 1:
            raise BadInput(f"a pass takes 1 request and 1 token or more, not {self.max_requests} and {self.max_tokens}")
        if self.chunk_tokens is not None and self.chunk_tokens < PIECE:
            raise BadInput(f"a piece of a prompt has {PIECE} tokens or more, not {self.chunk_tokens}")

    def plan(self, pending: Sequence[Pending], now_s: float) -> list[Pending]:
        """Requests in turn, until one does not fit."""
        batch: list[Pending] = []
        tokens, used = 0, Counter[bytes]()
        others = others_have_rounds(self.heard, pending, now_s)
        for item in map(self._cut, in_turn(pending)):
            before = used[item.ue] or item.running_tokens
            own = before + item.weight
            if before and self.own_tokens is not None and own > self.own_tokens and others(item.ue):
                continue
            tokens += item.new_tokens
            if batch and tokens > self.max_tokens:
                break
            batch.append(item)
            used[item.ue] = own
            if len(batch) == self.max_requests:
                break
        return batch

    def after(self, pending: Sequence[Pending], batch: Sequence[Pending]) -> Fcfs:
        """See `Scheduler.after`: it remembers who has rounds."""
        found = heard(self.heard, pending)
        return self if found == self.heard else replace(self, heard=found)

    def _cut(self, item: Pending) -> Pending:
        most = self.chunk_tokens
        if most is None or len(item.request.prefix) - item.cached_tokens <= most:
            return item
        end = item.ends(most)
        return item.piece(end) if end else item


def in_turn(pending: Sequence[Pending]) -> list[Pending]:
    """The first request of each UE in order of arrival, then the second one of each, and so on."""
    turns, before = list[tuple[int, float, int]](), Counter[bytes]()
    ordered = sorted(pending, key=lambda item: item.arrived_s)
    for number, item in enumerate(ordered):
        turns.append((before[item.ue], item.arrived_s, number))
        before[item.ue] += 1
    return [ordered[number] for _, _, number in sorted(turns)]
