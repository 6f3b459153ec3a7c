"""SLO-aware batches for token-speed guarantees: WISP's Algorithm 1 (Sections 3.1 to 4.3), as printed or corrected.

A class is named by its speed in tokens per second. `Rules` has a switch for each correction:

- A request that can no longer meet its deadline keeps its place among the critical ones, but its deadline bounds no
  batch: it neither blocks the others (as printed) nor starves behind them (if put last).
- The verifier's own token counts towards the guarantee (eqs. 5 and 6 leave it out).
- A request that does not fit is skipped, and the batch keeps growing with those that do.

Beyond the paper: the guarantee holds for the whole response, so that gains and losses of earlier rounds move the
deadline of the next one. With `Pending.ahead_s` = 0, each round stands alone, as in eq. 6.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

from testbed.bs.pending import Pending
from testbed.bs.scheduling.base import Heard, Scheduler, heard, others_have_rounds
from testbed.bs.scheduling.slo_batch import Batch, PassBounds, TimedRequest
from testbed.bs.scheduling.slo_rules import COMMITTED, LINEAR, budget_s
from testbed.errors import BadInput
from testbed.optim.pass_time import Coefficients

GUARD_PASSES = 3
"""A request may have to wait for the running pass, and shares its own pass with others, which takes longer than T̂({i}).
The third pass is for requests before it: with two, deadlines are met in passes so small that others miss theirs."""
WORTH = 2
"""Passes with prompts or with requests without a guarantee may last this many times c, however fast a guaranteed speed
is."""


class Queues(NamedTuple):
    """Waiting requests, in the order in which they would be taken."""

    urgent: tuple[TimedRequest, ...]
    """Critical requests, earliest deadline first."""
    utility: tuple[TimedRequest, ...]
    """The others, highest utility first."""
    critical_s: float
    """Latest start time up to which a request is critical."""


@dataclass(frozen=True, kw_only=True)
class Slo(PassBounds, Scheduler):
    """Critical requests by earliest deadline, then the rest by utility, as many as fit.

    With the default rules, the first request is always taken, alone if necessary. Each further one must fit the bounds,
    and must not make a request of the batch miss a deadline that it could meet, by T̂. Waiting moves no deadline, and no
    deadline lies before the arrival: fewer and fewer requests come before a waiting one, so that none starves.

    Raises:
        BadInput: a value out of range.
    """

    learns: ClassVar[bool] = True
    guard_s: float | None = None
    """δ: how long before its latest start a request becomes critical. None: `GUARD_PASSES` passes of the waiting
    requests."""
    acceptance: float = 0.8
    """α of a session without measurements."""
    committed: str = "geometric"
    """One of `COMMITTED`."""
    spend: float = 0.5
    """Share of its lead over the guarantee that an output may lose in one round."""
    cuts: bool = False
    """Whether `learn` sets `hold_s`."""
    worths: Mapping[bytes, float] = field(default_factory=dict)
    """Worth of a token of each UE, relative to others, by which utilities are multiplied; UEs that it lacks: 1."""
    heard: Heard = ()

    def __post_init__(self) -> None:
        if self.max_requests < 1 or self.max_tokens < 1:
            raise BadInput(f"a pass takes 1 request and 1 token or more, not {self.max_requests} and {self.max_tokens}")
        if self.kv_tokens is not None and self.kv_tokens < 1:
            raise BadInput(f"a pass needs room for 1 token or more, not {self.kv_tokens}")
        if self.committed not in COMMITTED:
            raise BadInput(f"unknown estimate {self.committed!r} of a round's tokens; known: {', '.join(COMMITTED)}")
        for name in ("acceptance", "spend"):
            if not 0 <= getattr(self, name) <= 1:
                raise BadInput(f"{name} must lie in [0, 1], not {getattr(self, name):g}")
        if self.guard_s is not None and not 0 <= self.guard_s < math.inf:
            raise BadInput(f"a guard time is 0 s or more, not {self.guard_s:g}")
        if not 0 <= self.patience_s < math.inf:
            raise BadInput(f"patience is 0 s or more, not {self.patience_s:g}")
        if self.hold_s is not None and not self.hold_s >= 0:
            raise BadInput(f"a pass may last 0 s or more, not {self.hold_s:g}")

    def plan(self, pending: Sequence[Pending], now_s: float) -> list[Pending]:
        """The next batch, independent of the order of the requests. While requests are pending, it is empty only under
        the rule `late="stop"`, if none of them is feasible, or if all are of UEs whose prompts the engine has and that
        use up their shares.
        """
        queues = self.queues(pending, now_s)
        line = [*queues.urgent, *queues.utility]
        if self.rules.late == "last":
            line.sort(key=lambda entry: entry.late)
        others = others_have_rounds(self.heard, pending, now_s)
        return Batch(self, line, now_s, queues.critical_s, others).filled()

    def beside(self, running: Sequence[Pending]) -> Slo:
        """See `Scheduler.beside`: the next pass has less room and time."""
        return self if not (running or self.running) else replace(self, running=tuple(running))

    def after(self, pending: Sequence[Pending], batch: Sequence[Pending]) -> Slo:
        """See `Scheduler.after`: it remembers who has rounds."""
        found = self.heard if self.own_tokens is None else heard(self.heard, pending)
        return self if found == self.heard else replace(self, heard=found)

    def queues(self, pending: Sequence[Pending], now_s: float) -> Queues:
        """Both queues at this moment, for `plan` and for metrics."""
        entries = [self._entry(item, now_s) for item in pending]
        critical_s = now_s + (self._pass_guard_s(entries) if self.guard_s is None else self.guard_s)
        urgent: list[TimedRequest] = []
        others: list[TimedRequest] = []
        for entry in entries:
            (urgent if critical_s >= entry.lst_s else others).append(entry)
        urgent.sort(key=_by_deadline)
        others.sort(key=_by_utility)
        return Queues(tuple(urgent), tuple(others), critical_s)

    def learn(self, coefficients: Coefficients | None, budget_s: float | None) -> Slo:
        """The same scheduler with new coefficients. Requests without a guarantee and, if they are cut, prompts make no
        pass longer than a `GUARD_PASSES`-th of the budget: a round may have to wait for one pass before its own. A
        small budget leaves them `WORTH` times c; with a large one prompts are cut as without guarantees.
        """
        times = coefficients or self.coefficients
        spare_s = math.inf if budget_s is None else max(budget_s / GUARD_PASSES, WORTH * times.c)
        hold_s = min(spare_s, self.patience_s / GUARD_PASSES) if self.cuts else self.hold_s
        return replace(self, coefficients=times, hold_s=hold_s, spare_s=spare_s)

    def snapshot(self, pending: Sequence[Pending], now_s: float) -> dict[str, Any]:
        """Requests in both queues, and the longest pass that a prompt may cause."""
        queues = self.queues(pending, now_s)
        return {"urgent": len(queues.urgent), "utility": len(queues.utility), "hold_s": self.hold_s}

    def due_s(self, item: Pending) -> float:
        """Deadline of a request with the tokens that its round is expected to commit."""
        return self.deadline_s(item, self.expected(item))

    def expected(self, item: Pending) -> float:
        """Expected tokens of a request's round."""
        known = item.accepted_share if self.committed == LINEAR else item.acceptance
        tokens = COMMITTED[self.committed](self.acceptance if known is None else known, len(item.request.draft))
        return tokens if self.rules.own_token else tokens - 1

    def deadline_s(self, item: Pending, tokens: float) -> float:
        """d: deadline of a request with this many expected tokens (eq. 12)."""
        if item.speed_tps is None:
            return item.arrived_s + max(self.patience_s, item.turn_s)
        return item.arrived_s + budget_s(tokens, item.speed_tps, item.draft_s, item.network_s, item.ahead_s, self.spend)

    def _entry(self, item: Pending, now_s: float) -> TimedRequest:
        times, tokens, new, cached = self.coefficients, self.expected(item), item.new_tokens, item.cached_tokens
        share_s = times.share_s(new, cached)
        deadline_s = self.deadline_s(item, tokens)
        alone_s = times.c + share_s
        utility = self.worths.get(item.peer, 1.0) * tokens / share_s if share_s > 0 else math.inf
        late = now_s + alone_s > deadline_s
        return TimedRequest(
            item, item.request.session, deadline_s, deadline_s - alone_s, utility, late, share_s, new, cached
        )

    def _pass_guard_s(self, entries: Sequence[TimedRequest]) -> float:
        """δ from the waiting requests; the sum is exact, so that their order does not matter."""
        size = min(len(entries), self.max_requests)
        share_s = math.fsum(entry.share_s for entry in entries) / max(1, len(entries))
        return GUARD_PASSES * (self.coefficients.c + size * share_s)


def _by_deadline(entry: TimedRequest) -> tuple[float, float, str]:
    return entry.deadline_s, entry.pending.arrived_s, entry.session


def _by_utility(entry: TimedRequest) -> tuple[float, float, float, str]:
    return -entry.utility, entry.deadline_s, entry.pending.arrived_s, entry.session
