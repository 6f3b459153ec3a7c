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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

from testbed.bs.pending import PIECE, Pending
from testbed.bs.scheduling.base import Heard, Scheduler, heard, others_have_rounds
from testbed.bs.scheduling.slo_rules import COMMITTED, LINEAR, REPAIRED, UNHURRIED, Places, Rules, budget_s
from testbed.errors import BadInput
from testbed.optim.pass_time import Coefficients

GUARD_PASSES = 3
"""A request may have to wait for the running pass, and shares its own pass with others, which takes longer than T̂({i}).
The third pass is for requests before it: with two, deadlines are met in passes so small that others miss theirs."""
WORTH = 2
"""Passes with prompts or with requests without a guarantee may last this many times c, however fast a guaranteed speed
is."""

Others = Callable[[bytes], bool]


class TimedRequest(NamedTuple):
    """A pending request as the scheduler sees it at one moment."""

    pending: Pending
    session: str
    deadline_s: float
    """d = arrival + τ (eq. 12)."""
    lst_s: float
    """Latest start time d − T̂({i}): eq. 17 without δ, which is the same for all."""
    utility: float
    """Expected tokens per second of pass time (eq. 16), by the time that the request adds to a pass, times their
    worth."""
    late: bool
    """Whether its deadline can no longer be met, even alone and now."""
    share_s: float
    """T̂(B ∪ {i}) − T̂(B)."""
    new: int
    """Tokens to compute."""
    kv: int
    """Tokens whose keys and values are needed."""


class Queues(NamedTuple):
    """Waiting requests, in the order in which they would be taken."""

    urgent: tuple[TimedRequest, ...]
    """Critical requests, earliest deadline first."""
    utility: tuple[TimedRequest, ...]
    """The others, highest utility first."""
    critical_s: float
    """Latest start time up to which a request is critical."""


@dataclass(frozen=True, kw_only=True)
class Slo(Scheduler):
    """Critical requests by earliest deadline, then the rest by utility, as many as fit.

    With the default rules, the first request is always taken, alone if necessary. Each further one must fit the bounds,
    and must not make a request of the batch miss a deadline that it could meet, by T̂. Waiting moves no deadline, and no
    deadline lies before the arrival: fewer and fewer requests come before a waiting one, so that none starves.

    Raises:
        BadInput: a value out of range.
    """

    learns: ClassVar[bool] = True
    coefficients: Coefficients
    rules: Rules = REPAIRED
    max_requests: int = 256
    max_tokens: int = 8192
    """New tokens of one pass; a single larger request is still taken, alone."""
    kv_tokens: int | None = None
    """Tokens whose keys and values one pass may need, M(t); a single larger request is still taken. None: any."""
    guard_s: float | None = None
    """δ: how long before its latest start a request becomes critical. None: `GUARD_PASSES` passes of the waiting
    requests."""
    acceptance: float = 0.8
    """α of a session without measurements."""
    committed: str = "geometric"
    """One of `COMMITTED`."""
    protect: bool = True
    """Whether a pass stays small enough for the deadlines in it that can be met. False: it is filled to its bounds and
    may miss deadlines: if pass time is scarce, small passes cost others more than they save."""
    spend: float = 0.5
    """Share of its lead over the guarantee that an output may lose in one round."""
    patience_s: float = 1.0
    """Least τ of a request without a guarantee; `Pending.turn_s` keeps them to the time that guarantees leave."""
    spare_s: float = math.inf
    """Longest pass that a request without a guarantee may join. `learn` sets it."""
    hold_s: float | None = None
    """Longest pass that an uncached prompt may cause; longer prompts are computed in pieces, so that requests that
    arrive during the pass wait less. None: prompts are never cut."""
    cuts: bool = False
    """Whether `learn` sets `hold_s`."""
    worths: Mapping[bytes, float] = field(default_factory=dict)
    """Worth of a token of each UE, relative to others, by which utilities are multiplied; UEs that it lacks: 1."""
    own_tokens: int | None = None
    """Largest sum of `Pending.weight` that one UE's requests have in a pass while other UEs have rounds, guaranteed or
    not: a low guaranteed speed binds nobody to slow rounds. The first request is always taken; of a prompt, a piece of
    this many new tokens is. None: no bound."""
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
        return self._fill(line, now_s, queues.critical_s, others_have_rounds(self.heard, pending, now_s))

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
            item, item.request.session, deadline_s, deadline_s - alone_s, utility, late, share_s, new, cached + new
        )

    def _pass_guard_s(self, entries: Sequence[TimedRequest]) -> float:
        """δ from the waiting requests; the sum is exact, so that their order does not matter."""
        size = min(len(entries), self.max_requests)
        share_s = math.fsum(entry.share_s for entry in entries) / max(1, len(entries))
        return GUARD_PASSES * (self.coefficients.c + size * share_s)

    def _fill(self, line: Sequence[TimedRequest], now_s: float, critical_s: float, others: Others) -> list[Pending]:
        """FEASIBLEADD of Algorithm 1, request by request; T̂ grows by the share of each."""
        batch: list[Pending] = []
        room = math.inf if self.kv_tokens is None else self.kv_tokens
        tokens, kv, took_s, due_s = 0, 0, self.coefficients.c, math.inf
        blocks, used = self.rules.late == "stop", Counter[bytes]()
        places = Places([(entry.pending.ue, entry.share_s) for entry in line], took_s, self.spare_s, self.hold_s)
        for entry in line:
            exempt = not self.protect or (entry.late and not blocks)
            tightest_s = due_s if exempt else min(due_s, entry.deadline_s)
            prompt = self._cuttable(entry)
            ue, unhurried = entry.pending.ue, entry.lst_s > max(critical_s, now_s + UNHURRIED * self.patience_s)
            free = unhurried or entry.pending.speed_tps is None
            room_s = places.room_s(ue, self.spare_s - took_s) if free and batch else math.inf
            own = self._own(entry, used[ue]) if others(ue) else math.inf
            if own < entry.new and not prompt:
                continue
            fits = entry.new <= min(own, self.max_tokens - tokens) and kv + entry.kv <= room
            fits = fits and now_s + (took_s + entry.share_s) <= tightest_s and entry.share_s <= room_s
            if prompt and self.hold_s is not None:
                least_s = self._least_s(entry, self.hold_s) if ue not in used and entry.lst_s <= critical_s else 0.0
                room_s = min(room_s, places.prompt_s(ue, self.hold_s - took_s, free, least_s))
                if not (fits and entry.share_s <= room_s):
                    spare_s = min(room_s, due_s - now_s - took_s)
                    most = min(self._tokens(entry, spare_s), self.max_tokens - tokens, room - kv - entry.kv + entry.new)
                    cut = _piece(entry, min(own, most if batch else max(most, PIECE)), self.coefficients)
                    if cut is None:
                        continue
                    entry, tightest_s = cut, due_s
            elif (batch or blocks) and not fits:
                if not self.rules.filling:
                    break
                continue
            batch.append(entry.pending)
            places.take(ue)
            used[ue] = (used[ue] or entry.pending.running_tokens) + entry.pending.weight
            tokens, kv, took_s, due_s = tokens + entry.new, kv + entry.kv, took_s + entry.share_s, tightest_s
            if len(batch) == self.max_requests:
                break
        return batch

    def _own(self, entry: TimedRequest, used: int) -> float:
        """New tokens of a request that its UE's share leaves room for; infinite for the first one, unless it is a
        prompt that can be cut.
        """
        item = entry.pending
        if self.own_tokens is None:
            return math.inf
        before = used or item.running_tokens
        if before:
            return self.own_tokens - before - (item.weight - item.new_tokens)
        return max(self.own_tokens, PIECE) if self._cuttable(entry) else math.inf

    def _least_s(self, entry: TimedRequest, hold_s: float) -> float:
        """Time of a piece of a prompt where a pass of `hold_s` has none beside another one; else 0."""
        piece_s = self.coefficients.share_s(PIECE + 1, entry.pending.cached_tokens)
        return piece_s if hold_s - self.coefficients.c < 2 * piece_s else 0.0

    def _cuttable(self, entry: TimedRequest) -> bool:
        return self.hold_s is not None and entry.new - len(entry.pending.request.draft) > PIECE

    def _tokens(self, entry: TimedRequest, spare_s: float) -> float:
        """New tokens of a prefix that a pass computes in `spare_s`: the root of `share_s`."""
        times, cached = self.coefficients, entry.pending.cached_tokens
        linear, left_s = times.a + times.b_compute * cached, spare_s - times.b_read * cached
        if left_s <= 0:
            return 0.0
        if times.b_compute == 0:
            return left_s / linear if linear > 0 else math.inf
        return 2 * left_s / (linear + math.sqrt(linear**2 + 4 * times.b_compute * left_s))


def _piece(entry: TimedRequest, most: float, times: Coefficients) -> TimedRequest | None:
    """The entry with a piece of its prefix instead; None: no piece ends within `most` tokens."""
    item, cached = entry.pending, entry.pending.cached_tokens
    end = item.ends(int(min(most, entry.new)))
    if not end:
        return None
    new = end - cached
    return entry._replace(pending=item.piece(end), share_s=times.share_s(new, cached), new=new, kv=end)


def _by_deadline(entry: TimedRequest) -> tuple[float, float, str]:
    return entry.deadline_s, entry.pending.arrived_s, entry.session


def _by_utility(entry: TimedRequest) -> tuple[float, float, float, str]:
    return -entry.utility, entry.deadline_s, entry.pending.arrived_s, entry.session
