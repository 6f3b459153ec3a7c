"""Estimates learnt from passes and rounds, and the token speeds that they allow to guarantee."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from testbed.bs.engines.base import Share, VerifyRequest
from testbed.bs.metrics import by_speed
from testbed.bs.observer import FinishedPass
from testbed.bs.pending import Pending, Round
from testbed.bs.queue import Taken
from testbed.bs.scheduling.admission import Admission, Guarantees
from testbed.bs.scheduling.averages import Averages, OverheadEstimator
from testbed.bs.scheduling.base import RECENT_S, Scheduler
from testbed.bs.scheduling.estimator_online import OnlineEstimator
from testbed.bs.scheduling.guarantees import GuaranteeShares, excuse, own_times, work_s
from testbed.bs.scheduling.slo import Slo
from testbed.bs.scheduling.slo_rules import geometric
from testbed.bs.sessions import Key, Session, SessionTable
from testbed.optim.pass_time import Coefficients, PassOverhead, RequestWork
from testbed.protocols.messages import Busy, Open
from testbed.protocols.sampling import Kept

LOG = logging.getLogger(__name__)
RETRY_S = 5.0
"""Time after which a UE that was refused a speed may ask again."""
LEAST_REST = 0.2
"""Share of the verifier's time for requests without a guarantee, at least: admission leaves as much."""
DEADLINES = Slo(coefficients=Coefficients(0.0, 0.0, 0.0, 1.0))
"""Deadlines under schedulers that have none of their own; they do not depend on how long passes take."""


class _Planned(NamedTuple):
    """The requests that were waiting at the last plan."""

    pending: Sequence[Pending]
    now_s: float


class PassLedger:
    """Plans passes with what was learnt from earlier ones, and guarantees token speeds by it.

    Args:
        sessions: all sessions of the base station.
        scheduler: handed what was learnt after each pass, if it learns.
        estimator: learns from passes; None: the scheduler's coefficients stay.
        admission: None: every speed is granted.
        block_size: tokens of a block of the engine's prefix cache; only whole blocks are kept.
        margin: share by which sessions are scheduled faster than guaranteed. Tokens per round vary: an output that
            just meets its speed on average misses it every other time.
    """

    def __init__(
        self,
        sessions: SessionTable,
        scheduler: Scheduler,
        estimator: OnlineEstimator | None = None,
        admission: Admission | None = None,
        block_size: int = 1,
        margin: float = 0.0,
    ) -> None:
        self._sessions, self.scheduler = sessions, scheduler
        self._estimator, self._admission = estimator, admission
        self._block_size, self._margin = block_size, margin
        self._averages = Averages()
        self._shares = GuaranteeShares(sessions, self._averages)
        self._last = _Planned((), 0.0)
        self._budget: tuple[float, float] | None = None
        """The last of `_budget_s` while there was a guarantee, and when."""
        self._ended_s: float | None = None
        self._passed = 0
        """Requests of the last pass."""
        self._overhead = OverheadEstimator()
        self._drifted = False
        self._unlearnt: list[FinishedPass] = []

    # ------------------------------------------------------------ sessions

    def admit(
        self, key: Key, message: Open, now_s: float = 0.0, forget: Callable[[Session], None] = lambda session: None
    ) -> Busy | None:
        """The refusal of a session whose speed cannot be guaranteed beside the other sessions'; None: it can.

        Args:
            forget: called for each session that was closed to make it possible.
        """
        speed_tps = message.speed_tps
        if speed_tps is None or self._admission is None:
            return None
        answer, yielding = self._shares.decide(self._admission_now(), key, speed_tps, now_s)
        for session in yielding:
            self._sessions.lose(session, "the time of its guarantee was needed for other UEs")
            forget(session)
        if answer.admitted:
            return None
        others = sum(s.speed_tps is not None and s.key != key for s in self._sessions)
        best = answer.best_tps or 0.0
        can = f"{best:g} can" if best else "no slower class can either"
        reason = f"{speed_tps:g} tokens/s cannot be guaranteed beside {others} other sessions; {can}"
        return Busy(session=message.session, reason=reason, retry_s=RETRY_S, speed_tps=best)

    def pending(self, session: Session, round_: Round, request: VerifyRequest) -> Pending:
        """A round's request as the scheduler sees it."""
        owner = self._sessions.owner(session.key[0])
        acceptance = self._averages.acceptance(owner, session.accepted, session.rejected)
        draft_s, network_s = own_times(session, round_)
        drafted_s = round_.arrived_s - draft_s
        if session.begun_s is None:
            session.begun_s = drafted_s
        speed_tps, ahead_s = session.speed_tps, 0.0
        if speed_tps is not None:
            speed_tps *= 1 + self._margin
            ahead_s = session.got / speed_tps - (drafted_s - session.begun_s)
            alpha = DEADLINES.acceptance if acceptance is None else acceptance
            if session.free_s is not None:
                allowed_s = geometric(alpha, len(round_.window.ids)) / speed_tps
                excuse(session, max(0.0, round_.arrived_s - session.free_s), allowed_s)
        share = self._averages.accepted_share(owner, session.accepted, session.drafted)
        found = Pending(
            request, round_.arrived_s, session.computed, speed_tps, draft_s, network_s, ahead_s, acceptance, share,
            ue=owner, peer=session.key[0], at_once=round_.at_once,
        )  # fmt: skip
        if speed_tps is None and self._estimator is not None:
            found = replace(found, work_s=work_s(self._sessions, session, found, self._estimator.coefficients))
        return self._in_turn([found], round_.arrived_s)[0]

    def waited(self, session: Session, round_: Round) -> None:
        """Count the time that a round waited for hidden states as its UE's own, as that between rounds."""
        excuse(session, round_.waited_s)

    def _in_turn(self, pending: Sequence[Pending], now_s: float) -> Sequence[Pending]:
        """The requests with their `turn_s` beside the guarantees that are given now: those may have come later. While
        passes are still short after the last one, order counts as beside it.
        """
        if not self._sessions.promised() and not self._recently(now_s):
            return [replace(item, turn_s=0.0) if item.turn_s else item for item in pending]
        stretch = self._sessions.ues.without_guarantee / self._rest()
        return [item if item.speed_tps is not None else replace(item, turn_s=stretch * item.work_s) for item in pending]

    def _admission_now(self) -> Admission:
        """Admission with the pass times and the time between passes that were learnt."""
        assert self._admission is not None
        known = self._admission.coefficients if self._estimator is None else self._estimator.coefficients
        return replace(self._admission, coefficients=known, between=self.overhead)

    def _rest(self) -> float:
        """Share of the verifier's time that guarantees leave, at least `LEAST_REST`."""
        if self._admission is None:
            return LEAST_REST
        shape = self._averages.expected()
        load = [Guarantees(speed, count, shape) for speed, count in self._sessions.promised().items()]
        return max(LEAST_REST, 1 - self._admission_now().utilisation(load))

    # ------------------------------------------------------------ passes

    @property
    def estimates(self) -> bool:
        """Whether it learns how long passes take."""
        return self._estimator is not None

    @property
    def overhead(self) -> PassOverhead:
        """Time between passes that follow each other: judging, answering, planning."""
        return self._overhead.line

    def plan(self, pending: Sequence[Pending], now_s: float, running: Sequence[Pending] = ()) -> list[Pending]:
        """The next batch, beside what the engine has not finished."""
        pending = self._in_turn(pending, now_s)
        self._learn_overhead(pending, now_s)
        self._last = _Planned(pending, now_s)
        if not pending:
            return []
        batch = self.scheduler.beside(running).plan(pending, now_s)
        self.scheduler = self.scheduler.after(pending, batch)
        return batch

    def ended(self, session: Session) -> bool:
        """Let the scheduler know that a session has ended; returns whether its next plan may be another one."""
        before, self.scheduler = self.scheduler, self.scheduler.ended(session.name)
        return self.scheduler is not before

    def expected_s(self, batch: Sequence[Taken]) -> float:
        """Estimated duration of a pass; 0 without an estimator."""
        if self._estimator is None:
            return 0.0
        works = (RequestWork(pending.new_tokens, pending.cached_tokens) for _, pending, _ in batch)
        return self._estimator.coefficients.batch_s(works)

    def passed(self, shares: Sequence[tuple[Taken | None, Share]], seconds: float) -> FinishedPass:
        """Record a pass that took `seconds`; None stands for a request whose session was closed meanwhile."""
        self._ended_s, self._passed = self._last.now_s + seconds, len(shares)
        works, rounds, evicted = [], 0, 0
        for taken, share in shares:
            works.append(RequestWork(share.new, share.cached))
            if taken is None:
                continue
            rounds += taken.whole and share.result is not None
            session = taken.session
            evicted += max(0, min(session.computed, len(taken.pending.request.prefix) - 1) - share.cached)
            if session.current is not None:
                session.current.new += share.new
                session.current.cached = share.cached
            if not taken.whole or share.result is None:
                session.computed = self._kept(share.cached + share.new)
        expected_s = None if self._estimator is None else self._estimator.coefficients.batch_s(works)
        waiting, start_s = len(self._last.pending), self._last.now_s
        passes = max((share.passes for _, share in shares), default=1)
        done = FinishedPass(works, rounds, waiting, evicted, start_s, seconds, expected_s, passes)
        if expected_s is not None and seconds > 0:
            self._unlearnt.append(done)
        if self.scheduler.learns:
            self.learn()
            known = None if self._estimator is None else self._estimator.coefficients
            self.scheduler = self.scheduler.learn(known, self._budget_s())
        return done

    def learn(self) -> None:
        """Update the estimator with the passes since the last call; it may wait while UEs wait for verdicts."""
        unlearnt, self._unlearnt = self._unlearnt, []
        for done in unlearnt:
            assert self._estimator is not None
            self._estimator.observe(done.works, done.seconds)
            self._warn_of_drift(self._estimator)

    def settled(self, session: Session, round_: Round, kept: Kept) -> None:
        """Learn from a round that was judged, before its tokens are committed."""
        accepted, drafted = kept.accepted, len(round_.window.ids)
        rejected = int(accepted < drafted)
        session.computed = self._kept(session.length + accepted)
        session.accepted += accepted
        session.rejected += rejected
        session.drafted += drafted
        committed = accepted + (kept.token is not None)
        own = round_ if round_.pending is None else round_.pending  # with its times as far as they are possible
        shape = (round_.new, round_.cached, committed, own.draft_s, own.network_s)
        self._averages.add(self._sessions.owner(session.key[0]), shape, accepted, rejected, drafted)

    def late(self, round_: Round, now_s: float) -> bool:
        """Whether a round with a guaranteed speed ends after its deadline; waiting for hidden states does not count."""
        assert round_.pending is not None
        due_s = self.scheduler.due_s(round_.pending)
        return bool(now_s - round_.waited_s > (DEADLINES.due_s(round_.pending) if due_s is None else due_s))

    def snapshot(self) -> dict[str, Any]:
        """Gauges for the metrics."""
        promised = by_speed(self._sessions.promised())
        found = {"waiting": len(self._last.pending), "sessions": len(self._sessions), "promises": promised}
        found |= {"between": self.overhead._asdict(), **self.scheduler.snapshot(*self._last)}
        if self._estimator is not None:
            found |= {"coefficients": self._estimator.coefficients.as_dict(), "drifted": self._estimator.drifted}
            found["drift"] = self._estimator.bias
        return found

    def _learn_overhead(self, pending: Sequence[Pending], now_s: float) -> None:
        """Measure how long the engine was idle since its last pass although requests were waiting, or had only to be
        judged first. Guaranteed speeds must allow for that time as well, while the estimator sees passes alone.
        """
        ended_s, self._ended_s = self._ended_s, None
        if ended_s is not None and any(item.at_once or item.arrived_s <= ended_s for item in pending):
            self._overhead.add(max(1, self._passed), max(0.0, now_s - ended_s))

    def _kept(self, tokens: int) -> int:
        """Tokens of a prefix of this length that the prefix cache holds."""
        return tokens // self._block_size * self._block_size

    def _budget_s(self) -> float | None:
        """Time for queueing and verification in a round of the UE whose fastest guaranteed speed leaves least, by its
        own rounds as in admission; by typical ones where its own could not be in time even alone. For `RECENT_S` after
        the last one ended, what it was then, since the session of a UE's next request would wait for a long pass. None:
        there is none.
        """
        fastest = dict[bytes, float]()
        for session in self._sessions:
            if session.speed_tps is not None:
                ue = self._sessions.owner(session.key[0])
                fastest[ue] = max(session.speed_tps, fastest.get(ue, 0.0))
        if not fastest:
            return self._budget[0] if self._budget and self._recently(self._last.now_s) else None
        *rounds, typical = self._averages.expected_values([*fastest, None]).tolist()
        left_s = []
        for own, speed_tps in zip(rounds, fastest.values(), strict=True):
            alone_s = self._estimator.coefficients.alone_s(own[0], own[1]) if self._estimator else 0.0
            own_s, typical_s = (one[2] / speed_tps - one[3] - one[4] for one in (own, typical))
            left_s.append(own_s if own_s > alone_s else typical_s)
        self._budget = min(left_s), self._last.now_s
        return self._budget[0]

    def _recently(self, now_s: float) -> bool:
        """Whether there was a guarantee in the last `RECENT_S`."""
        return self._budget is not None and now_s - self._budget[1] < RECENT_S

    def _warn_of_drift(self, estimator: OnlineEstimator) -> None:
        if estimator.drifted and not self._drifted:
            way = "longer" if estimator.bias > 0 else "shorter"
            LOG.warning("passes take %s than the estimator's first coefficients say; it follows the passes", way)
        self._drifted = estimator.drifted
