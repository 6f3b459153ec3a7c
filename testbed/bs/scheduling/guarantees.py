"""One UE's share of the token-speed guarantees that a base station can give."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Sequence

from testbed.bs.room import RefusedUes
from testbed.bs.scheduling.admission import Admission, AdmissionDecision, Guarantees
from testbed.bs.scheduling.averages import Averages
from testbed.bs.sessions import Key, Session, SessionTable


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
        """How many of these sessions have to be closed for another; more than there are: closing them is no use."""

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


def _in_turn(session: Session) -> tuple[bool, float]:
    return not session.idle, session.heard_s


def _without(sessions: Iterable[Session], closed: Sequence[Session]) -> list[Session]:
    keys = {session.key for session in closed}
    return [session for session in sessions if session.key not in keys]
