"""One UE's share of the token-speed guarantees that a base station can give, and of the time that they leave."""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Iterable, Sequence

from testbed.bs.pending import Pending
from testbed.bs.room import RefusedUes
from testbed.bs.scheduling.admission import Admission, AdmissionDecision, Guarantees
from testbed.bs.scheduling.averages import Averages
from testbed.bs.sessions import Key, Session, SessionTable
from testbed.optim.pass_time import Coefficients


class GuaranteeShares:
    """Admits sessions with a guarantee. While another UE is refused, one UE gets no more than its share of the
    verifier's time (`Room.ue_share`), beyond its first session. To a UE within its share the sessions yield that others
    hold beyond theirs: those that wait for their UE before those that verify, the least recently heard first.
    """

    def __init__(self, sessions: SessionTable, averages: Averages) -> None:
        self._sessions, self._averages, self._refused = sessions, averages, RefusedUes()

    def decide(
        self, admission: Admission, key: Key, speed_tps: float, now_s: float
    ) -> tuple[AdmissionDecision, list[Session]]:
        """The decision, and the sessions that have to be closed first."""
        owner = self._sessions.owner(key[0])
        given = [session for session in self._sessions if session.speed_tps is not None and session.key != key]
        share = self._sessions.room.ue_share * admission.limit
        own = [session for session in given if self._sessions.owner(session.key[0]) == owner]
        used = admission.utilisation([*self._load(own), Guarantees(speed_tps, 1, self._averages.expected(owner))])
        within, yielding = not own or used <= share, list[Session]()
        answer = self._ask(admission, owner, speed_tps, given)
        if not answer.admitted and within:
            beyond = self._beyond(admission, share, given)
            needed = self._needed(admission, owner, speed_tps, given, beyond)
            if needed <= len(beyond):
                yielding = beyond[:needed]
                answer = self._ask(admission, owner, speed_tps, _without(given, yielding))
        if answer.admitted and not within and self._refused.others(owner, now_s):
            return AdmissionDecision(False, None, answer.utilisation), []
        if answer.admitted:
            self._refused.remove(owner)
        elif within and self._ask(admission, owner, speed_tps, ()).admitted:
            self._refused.add(owner, now_s)
        return answer, yielding

    def _load(self, sessions: Iterable[Session]) -> list[Guarantees]:
        """Guaranteed sessions by UE and speed."""
        counts = Counter((self._sessions.owner(session.key[0]), session.speed_tps or 0.0) for session in sessions)
        return [Guarantees(speed, count, self._averages.expected(ue)) for (ue, speed), count in counts.items()]

    def _ask(self, admission: Admission, owner: bytes, speed_tps: float, given: Iterable[Session]) -> AdmissionDecision:
        expected = self._averages.expected
        return admission.admissible(speed_tps, self._load(given), expected(owner), expected())

    def _needed(
        self, admission: Admission, owner: bytes, speed_tps: float, given: Sequence[Session], beyond: Sequence[Session]
    ) -> int:
        """Number of these sessions to close for another one; more than there are if closing them does not help."""

        def fits(count: int) -> bool:
            return self._ask(admission, owner, speed_tps, _without(given, beyond[:count])).admitted

        return bisect.bisect_left(range(len(beyond) + 1), True, key=fits)

    def _beyond(self, admission: Admission, share: float, given: Sequence[Session]) -> list[Session]:
        """Sessions by which UEs exceed their share, in the order in which they yield; each UE keeps one."""
        by_ue: dict[bytes, list[Session]] = {}
        for session in sorted(given, key=_in_turn):
            by_ue.setdefault(self._sessions.owner(session.key[0]), []).append(session)
        found: list[Session] = []
        for sessions in by_ue.values():
            used = [admission.utilisation(self._load([session])) for session in sessions]
            left, kept = sum(used), len(sessions)
            for session, part in zip(sessions, used, strict=True):
                if left > share and kept > 1:
                    left, kept = left - part, kept - 1
                    found.append(session)
        return sorted(found, key=_in_turn)


def turn_s(sessions: SessionTable, session: Session, item: Pending, times: Coefficients, rest: float) -> float:
    """Time within which a UE's part of the time left by guarantees suffices for its waiting requests without one: their
    verification time over `rest`, divided equally among the UEs with such sessions. A deadline at the end of it makes
    those requests a total bandwidth server (Spuri and Buttazzo, 1994): served by earliest deadline first, they take no
    more than `rest` of the time from guaranteed ones.

    Args:
        session: the session of `item`, a new request of that UE.
        rest: share of the time that guarantees leave.
    """
    waiting = [item]
    for other in sessions.ues.of(sessions.owner(session.key[0])):
        unbound = other.speed_tps is None and other is not session
        if unbound and other.current is not None and other.current.pending is not None:
            waiting.append(other.current.pending)
    used_s = math.fsum(times.share_s(one.new_tokens, one.cached_tokens) for one in waiting)
    return sessions.ues.without_guarantee / rest * used_s


def _in_turn(session: Session) -> tuple[bool, float]:
    return not session.idle, session.heard_s


def _without(sessions: Iterable[Session], closed: Sequence[Session]) -> list[Session]:
    keys = {session.key for session in closed}
    return [session for session in sessions if session.key not in keys]
