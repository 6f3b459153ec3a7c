"""`GuaranteeShares` written down plainly: every load is reckoned again, from each session, whenever it is needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from testbed.bs.room import RefusedUes
from testbed.bs.scheduling.admission import Admission, AdmissionDecision, RoundShape
from testbed.bs.scheduling.averages import Averages
from testbed.bs.sessions import Key, Session, SessionTable

Wanted = tuple[float, RoundShape]
"""A session's guaranteed speed, and its mean round."""


class PlainShares:
    """As `GuaranteeShares`."""

    def __init__(self, sessions: SessionTable, averages: Averages) -> None:
        self._sessions, self._averages, self._refused = sessions, averages, RefusedUes()

    def decide(
        self, admission: Admission, key: Key, speed_tps: float, now_s: float
    ) -> tuple[AdmissionDecision, list[Session]]:
        owner = self._sessions.owner(key[0])
        given = [session for session in self._sessions if session.speed_tps is not None and session.key != key]
        new, share = (speed_tps, self._averages.expected(owner)), self._sessions.room.ue_share
        own = [session for session in given if self._owner(session) == owner]
        within = not own or part(admission, [*map(self._wanted, own), new]) <= share

        def ask(left: Sequence[Session]) -> AdmissionDecision:
            return self._decision(admission, [*map(self._wanted, left)], new)

        answer, yielding = ask(given), list[Session]()
        if not answer.admitted and within:
            beyond = self._beyond(admission, share, given)
            hasty = self._hasty(admission, share, [one for one in given if self._owner(one) != owner], new)
            for order in (beyond, hasty, hasty + [session for session in beyond if session not in hasty]):
                for count in range(1, len(order) + 1):
                    left = [session for session in given if session not in order[:count]]
                    if not answer.admitted and ask(left).admitted:
                        answer, yielding = ask(left), order[:count]
        if answer.admitted and not within and self._refused.others(owner, now_s):
            return AdmissionDecision(False, None, answer.utilisation), []
        if answer.admitted:
            self._refused.remove(owner)
        elif within and ask([]).admitted:
            self._refused.add(owner, now_s)
        return answer, yielding

    def _owner(self, session: Session) -> bytes:
        return self._sessions.owner(session.key[0])

    def _wanted(self, session: Session) -> Wanted:
        return session.speed_tps or 0.0, self._averages.expected(self._owner(session))

    def _decision(self, admission: Admission, load: Sequence[Wanted], new: Wanted) -> AdmissionDecision:
        speed_tps, shape = new
        times = admission.coefficients
        others_s = min((self._slack_s(one) for one in load), default=math.inf)

        def holds(speed: float) -> bool:
            joined = [*load, (speed, shape)]
            tokens = sum(one.cached + one.new for _, one in joined)
            if used(admission, joined) > admission.limit or tokens > (admission.kv_tokens or math.inf):
                return False
            spare = 1 - sum(busy(admission, *one) for one in joined)
            pass_s = max(times.c / spare, times.c + share_s(admission, shape)) if spare > 0 else math.inf
            return min(others_s, slack_s(speed, shape)) >= 2 * pass_s

        slower = sorted((speed for speed in admission.classes if speed < speed_tps), reverse=True)
        best: Callable[[], float | None] = lambda: next(filter(holds, slower), None)  # noqa: E731
        asked = holds(speed_tps)
        return AdmissionDecision(asked, speed_tps if asked else best(), used(admission, [*load, new]))

    def _slack_s(self, wanted: Wanted) -> float:
        speed_tps, shape = wanted
        return max(slack_s(speed_tps, shape), slack_s(speed_tps, self._averages.expected()))

    def _hasty(self, admission: Admission, share: float, others: Sequence[Session], new: Wanted) -> list[Session]:
        times, typical = admission.coefficients, self._averages.expected()

        def late(wanted: Wanted, time_s: float) -> bool:
            rest = 1 - share * admission.limit - busy(admission, *wanted)
            fast = wanted[0] > max(admission.classes) and (rest <= 0 or time_s < 2 * times.c / rest)
            return fast or time_s < 2 * (times.c + share_s(admission, wanted[1]))

        long = share_s(admission, new[1]) > 2 * share_s(admission, typical)
        if late(new, slack_s(*new)) or long or share == 1:
            return []
        found = [one for one in others if late(self._wanted(one), self._slack_s(self._wanted(one)))]
        return sorted(found, key=lambda session: self._slack_s(self._wanted(session)))

    def _beyond(self, admission: Admission, share: float, given: Sequence[Session]) -> list[Session]:
        found: list[Session] = []
        for ue in {self._owner(session) for session in given}:
            own = sorted((session for session in given if self._owner(session) == ue), key=in_turn)
            while len(own) > 1 and part(admission, [*map(self._wanted, own)]) > share:
                found.append(own.pop(0))
        return sorted(found, key=in_turn)


def in_turn(session: Session) -> tuple[bool, float]:
    return not session.idle, session.heard_s


def slack_s(speed_tps: float, shape: RoundShape) -> float:
    return shape.committed / speed_tps - shape.draft_s - shape.network_s


def share_s(admission: Admission, shape: RoundShape) -> float:
    times, context = admission.coefficients, shape.cached + shape.new
    return times.a * shape.new + times.b_compute * context * shape.new + times.b_read * shape.cached


def busy(admission: Admission, speed_tps: float, shape: RoundShape) -> float:
    return speed_tps / shape.committed * share_s(admission, shape)


def used(admission: Admission, load: Sequence[Wanted]) -> float:
    """Share of the verifier's time that sessions take."""
    rounds = sum(speed / shape.committed for speed, shape in load)
    return sum(busy(admission, *one) for one in load) + rounds * admission.coefficients.c / admission.max_requests


def part(admission: Admission, load: Sequence[Wanted]) -> float:
    """Part of the time that may be guaranteed, or of the prefix cache, that sessions take."""
    tokens = sum(shape.cached + shape.new for _, shape in load)
    return max(used(admission, load) / admission.limit, tokens / (admission.kv_tokens or math.inf))
