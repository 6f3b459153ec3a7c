"""What the base station promises its sessions, and what it knows of its own speed to keep that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from testbed.bs.engines.base import VerifyRequest, VerifyResult
from testbed.bs.metrics import Metrics
from testbed.bs.observer import Observer, Unobserved
from testbed.bs.pending import Pending
from testbed.bs.queue import Taken
from testbed.bs.scheduling.admission import Admission
from testbed.bs.scheduling.averages import Averages, OverheadEstimator, PassOverhead
from testbed.bs.scheduling.base import Scheduler
from testbed.bs.scheduling.estimator_online import OnlineEstimator
from testbed.bs.scheduling.slo import GUARD_PASSES, Slo
from testbed.bs.sessions import Key, Round, Session, SessionTable
from testbed.optim.pass_time import Coefficients, RequestWork
from testbed.protocols.messages import Busy, Open
from testbed.protocols.sampling import Kept

LOG = logging.getLogger(__name__)
RETRY_S = 5.0
"""After which a UE that was refused a speed may ask again."""
DEADLINES = Slo(coefficients=Coefficients(0.0, 0.0, 0.0, 1.0))
"""Says when requests are due where another scheduler plans; that does not depend on how long passes take."""


class PassLedger:
    """The scheduler, told what is learnt from the passes; admission, told what rounds are like.

    Args:
        sessions: all that are served.
        scheduler: what it has learnt is handed to `Slo` alone.
        estimator: learns from passes; None: the scheduler's coefficients stay.
        admission: None: everybody is promised what they ask for.
        block_size: tokens of a block of the engine's prefix cache; only whole blocks are kept.
        cuts: whether `Slo` may cut prompts, so that a pass lasts no longer than promises allow.
        margin: share by which sessions are scheduled faster than promised. What a round commits is left to chance: an
            output that just keeps its promise on average breaks it every other time.
        observer: told of passes.
    """

    def __init__(
        self,
        sessions: SessionTable,
        scheduler: Scheduler,
        estimator: OnlineEstimator | None = None,
        admission: Admission | None = None,
        block_size: int = 1,
        cuts: bool = False,
        margin: float = 0.0,
        observer: Observer | None = None,
    ) -> None:
        self._sessions, self.scheduler = sessions, scheduler
        self._observer = observer or Unobserved()
        self._estimator, self._admission = estimator, admission
        self._block_size, self._cuts, self._margin = block_size, cuts, margin
        self.metrics = Metrics()
        self._averages = Averages()
        self._last: tuple[Sequence[Pending], float] = ((), 0.0)
        self._ended_s: float | None = None
        self._passed = 0
        """Requests of the last pass."""
        self._overhead = OverheadEstimator()
        self._drifted = False
        self._unlearnt: list[Callable[[], None]] = []

    # ------------------------------------------------------------ sessions

    def admit(self, key: Key, message: Open) -> Busy | None:
        """Whether a session can be promised what it asks for, beside those that others were promised."""
        speed_tps = message.speed_tps
        if speed_tps is None or self._admission is None:
            return None
        admission = self._admission
        known = admission.coefficients if self._estimator is None else self._estimator.coefficients
        admission = replace(admission, coefficients=replace(known, c=known.c + self._overhead.mean_s))
        load = self._sessions.promised(apart=key)
        answer = admission.admissible(speed_tps, load, self._averages.shape())
        if answer.admitted:
            return None
        self.metrics.add_refused(speed_tps)
        best = answer.best_tps or 0.0
        can = f"{best:g} can" if best else "no slower class can either"
        reason = f"{speed_tps:g} tokens/s cannot be promised beside {sum(load.values())} other sessions; {can}"
        return Busy(session=message.session, reason=reason, retry_s=RETRY_S, speed_tps=best)

    def pending(self, session: Session, round_: Round, request: VerifyRequest) -> Pending:
        """A round's request as the scheduler sees it."""
        drafted_s = round_.arrived_s - round_.draft_s
        if session.begun_s is None:
            session.begun_s = drafted_s
        speed_tps, ahead_s = session.speed_tps, 0.0
        if speed_tps is not None:
            speed_tps *= 1 + self._margin
            ahead_s = session.got / speed_tps - (drafted_s - session.begun_s)
        return Pending(
            request,
            round_.arrived_s,
            session.computed,
            speed_tps,
            round_.draft_s,
            round_.network_s,
            ahead_s,
            self._averages.acceptance(session.accepted, session.rejected),
        )

    # ------------------------------------------------------------ passes

    @property
    def overhead(self) -> PassOverhead:
        """What passes and their rounds take besides."""
        return self._overhead.line

    def plan(self, pending: Sequence[Pending], now_s: float) -> list[Pending]:
        """The next batch."""
        self._note_overhead(pending, now_s)
        self._last = (pending, now_s)
        self.metrics.waiting = len(pending)
        return self.scheduler.plan(pending, now_s)

    def expected_s(self, batch: Sequence[Taken]) -> float:
        """How long a pass may take; 0 where there is no estimator."""
        if self._estimator is None:
            return 0.0
        works = (RequestWork(pending.new_tokens, pending.cached_tokens) for _, pending, _ in batch)
        return self._estimator.coefficients.batch_s(works)

    def passed(self, batch: Sequence[Taken], results: Sequence[VerifyResult], seconds: float) -> None:
        """A pass took so long."""
        self._ended_s, self._passed = self._last[1] + seconds, len(batch)
        works, evicted = [], 0
        for (session, item, whole), result in zip(batch, results, strict=True):
            expected = item.cached_tokens
            cached = expected if result.cached is None else result.cached
            evicted += max(0, expected - cached)
            work = RequestWork(len(item.request.prefix) + len(item.request.draft) - cached, cached)
            works.append(work)
            if session.current is not None:
                session.current.new += work.new
                session.current.cached = cached
            if not whole:
                session.computed = self._kept(len(item.request.prefix))
        rounds = sum(whole for _, _, whole in batch)
        self.metrics.add_pass(works, rounds, evicted, seconds)
        expected_s = None if self._estimator is None else self._estimator.coefficients.batch_s(works)
        self._observer.passed(works, rounds, self.metrics.waiting, self._last[1], seconds, expected_s)
        if self._estimator is not None and expected_s is not None and seconds > 0:
            self._unlearnt.append(partial(self._learn, self._estimator, works, expected_s, seconds))
        if isinstance(self.scheduler, Slo):  # it plans by what is known
            self.learn()
            self._tune(self.scheduler)

    def learn(self) -> None:
        """Learn from all passes since the last time; UEs that wait for the next one need not wait for this."""
        unlearnt, self._unlearnt = self._unlearnt, []
        for learn in unlearnt:
            learn()

    def settled(self, session: Session, round_: Round, kept: Kept, now_s: float) -> None:
        """A round was judged; its tokens are about to be committed."""
        accepted, drafted = kept.accepted, len(round_.window.ids)
        rejected = int(accepted < drafted)
        session.computed = self._kept(session.length + accepted)
        session.accepted += accepted
        session.rejected += rejected
        committed = accepted + (kept.token is not None)
        shape = (round_.new, round_.cached, committed, round_.draft_s, round_.network_s)
        self._averages.add(shape, accepted, rejected)
        if round_.pending is not None and session.speed_tps is not None:
            rule = self.scheduler if isinstance(self.scheduler, Slo) else DEADLINES
            due_s = rule.deadline_s(round_.pending, rule.expected(round_.pending))
            self.metrics.add_promised(session.speed_tps, now_s - round_.waited_s > due_s)

    def snapshot(self) -> dict[str, Any]:
        """Counters, and how things stand now."""
        found = {**self.metrics.snapshot(), "sessions": len(self._sessions), "promises": _named(self._sessions)}
        found["between"] = self.overhead._asdict()
        if isinstance(self.scheduler, Slo):
            queues = self.scheduler.queues(*self._last)
            found |= {"urgent": len(queues.urgent), "utility": len(queues.utility), "hold_s": self.scheduler.hold_s}
        if self._estimator is not None:
            found |= {"coefficients": self._estimator.coefficients.as_dict(), "drifted": self._estimator.drifted}
            found["drift"] = self._estimator.bias
        return found

    def _note_overhead(self, pending: Sequence[Pending], now_s: float) -> None:
        """How long the engine stood still since its last pass although there was work: judging, answering, planning.
        Promises take that time as well, while the estimator sees passes alone.
        """
        ended_s, self._ended_s = self._ended_s, None
        if ended_s is not None and any(item.arrived_s <= ended_s for item in pending):
            self._overhead.add(max(1, self._passed), max(0.0, now_s - ended_s))

    def _kept(self, tokens: int) -> int:
        """How many of so many leading tokens the prefix cache holds."""
        return tokens // self._block_size * self._block_size

    def _learn(
        self, estimator: OnlineEstimator, works: Sequence[RequestWork], expected_s: float, seconds: float
    ) -> None:
        self.metrics.add_error(expected_s, seconds)
        estimator.observe(works, seconds)
        if estimator.drifted and not self._drifted:
            way = "longer" if estimator.bias > 0 else "shorter"
            LOG.warning("passes take %s than the estimator was told at the start; it goes by what it sees", way)
        self._drifted = estimator.drifted

    def _tune(self, scheduler: Slo) -> None:
        """Hand the scheduler what was learnt."""
        if self._cuts or self._estimator is not None:
            known = scheduler.coefficients if self._estimator is None else self._estimator.coefficients
            self.scheduler = scheduler.with_coefficients(known, self._hold_s(scheduler))

    def _hold_s(self, scheduler: Slo) -> float | None:
        """A `GUARD_PASSES`-th of the tightest budget: a round may have to wait for a pass, and takes another."""
        if not self._cuts:
            return scheduler.hold_s
        shape, fastest = self._averages.shape(), max(self._sessions.promised(), default=None)
        budget_s = scheduler.patience_s
        if fastest is not None:
            budget_s = shape.committed / fastest - shape.draft_s - shape.network_s
        return max(0.0, budget_s) / GUARD_PASSES


def _named(sessions: SessionTable) -> dict[str, int]:
    return {f"{speed:g}": count for speed, count in sorted(sessions.promised().items())}
