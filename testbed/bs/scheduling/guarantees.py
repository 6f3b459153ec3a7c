"""One UE's share of the token-speed guarantees that a base station can give, and of the time that they leave."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence

import numpy as np

from testbed.bs.pending import Pending, Round
from testbed.bs.room import RefusedUes
from testbed.bs.scheduling.admission import Admission, AdmissionDecision, Floats
from testbed.bs.scheduling.averages import Averages
from testbed.bs.sessions import Key, Session, SessionTable
from testbed.optim.pass_time import Coefficients

PREPARED_S = 2.0
"""Drafting time before `Open` that counts: a UE computes its prompt while it opens the session."""
MOST_LAG_S = 2.0
"""Time by which a UE's own slowness may put its output behind the guarantee; the scheduler makes up for no more."""


class GuaranteeShares:
    """Admits sessions with a guarantee. While another UE is refused, one UE gets no more than its share of the
    verifier's time and of the prefix cache (`Room.ue_share`), beyond its first session. To a UE within its share the
    sessions yield that others hold beyond theirs: those that wait for their UE before those that verify, the least
    recently heard first. If these are not enough, hasty ones of others yield (`Admission.hasty`): however small its
    share, one UE could keep all others away by such a session.
    """

    def __init__(self, sessions: SessionTable, averages: Averages) -> None:
        self._sessions, self._averages, self._refused = sessions, averages, RefusedUes()

    def decide(
        self, admission: Admission, key: Key, speed_tps: float, now_s: float
    ) -> tuple[AdmissionDecision, list[Session]]:
        """The decision, and the sessions that have to be closed first."""
        owner = self._sessions.owner(key[0])
        given = [session for session in self._sessions if session.speed_tps is not None and session.key != key]
        load = _Given(admission, self._averages, self._sessions.owner, given)
        share = self._sessions.room.ue_share
        within = owner not in load.owners or load.part_of(owner, speed_tps) <= share
        yielding = list[Session]()
        answer = load.ask(owner, speed_tps)
        possible = answer.admitted or (within and load.ask(owner, speed_tps, range(len(given))).admitted)
        if possible and not answer.admitted:
            beyond = load.beyond(share)
            hasty = [] if share >= 1 else load.hasty(owner, speed_tps, share * admission.limit)
            for order in (beyond, hasty, [*hasty, *(index for index in beyond if index not in hasty)]):
                if load.ask(owner, speed_tps, order).admitted:
                    fewest = load.fewest(owner, speed_tps, order)
                    yielding, answer = [given[index] for index in fewest], load.ask(owner, speed_tps, fewest)
                    break
        if answer.admitted and not within and self._refused.others(owner, now_s):
            return AdmissionDecision(False, None, answer.utilisation), []
        if answer.admitted:
            self._refused.remove(owner)
        elif possible:
            self._refused.add(owner, now_s)
        return answer, yielding


class _Given:
    """The guaranteed sessions beside one that asks, with what each takes reckoned once."""

    def __init__(
        self, admission: Admission, averages: Averages, owner_of: Callable[[bytes], bytes], given: Sequence[Session]
    ) -> None:
        self._admission, self._averages, self._sessions = admission, averages, given
        self.owners = [owner_of(session.key[0]) for session in given]
        """The UE of each session."""
        numbers: dict[tuple[bytes, float], int] = {}
        pairs = zip(self.owners, given, strict=True)
        self._kind_of = [numbers.setdefault((ue, one.speed_tps or 0.0), len(numbers)) for ue, one in pairs]
        """Each session's kind: its UE and speed."""
        self._kinds_by_ue = [ue for ue, _ in numbers]
        rounds = averages.expected_values(self._kinds_by_ue)
        self._kinds = admission.kinds([speed for _, speed in numbers], rounds, averages.expected())
        self._counts = self._count(range(len(given)))

    def part_of(self, owner: bytes, speed_tps: float) -> float:
        """Part of the time that may be guaranteed, or of the prefix cache if that is larger, that a UE takes with one
        more session at this speed.
        """
        own = [kind for kind, ue in enumerate(self._kinds_by_ue) if ue == owner]
        speeds = [*self._kinds.speeds[own].tolist(), speed_tps]
        kinds = self._admission.kinds(speeds, self._averages.expected_values([owner] * len(speeds)))
        return float(np.max(self._admission.parts(kinds) @ np.append(self._counts[own], 1.0)))

    def ask(self, owner: bytes, speed_tps: float, without: Sequence[int] = ()) -> AdmissionDecision:
        """Whether a UE can join beside these sessions, without some of them, given by their indices."""
        counts = self._counts
        if without:
            counts = counts - self._count(without)
        return self._admission.join(speed_tps, self._kinds.load(counts), self._averages.expected(owner))

    def fewest(self, owner: bytes, speed_tps: float, order: Sequence[int]) -> Sequence[int]:
        """The fewest of these sessions, in this order, without which a UE can join; without all of them it can."""
        admitted: Callable[[int], bool] = lambda count: self.ask(owner, speed_tps, order[:count]).admitted  # noqa: E731
        return order[: bisect.bisect_left(range(len(order)), True, key=admitted)]

    def _count(self, indices: Sequence[int]) -> Floats:
        """Number of sessions of each kind among these."""
        kinds = np.array([self._kind_of[index] for index in indices], np.intp)
        return np.bincount(kinds, minlength=len(self._kinds.speeds)).astype(np.float64)

    def hasty(self, owner: bytes, speed_tps: float, share: float) -> list[int]:
        """Indices of the hasty sessions of other UEs (`Admission.hasty`), those with the least slack first; none for a
        UE that asks for such a session itself, or whose rounds take over twice as long as typical ones.
        """
        rounds = self._averages.expected_values([owner, None])
        asked = self._admission.kinds([speed_tps] * 2, rounds)
        if self._admission.hasty(asked, share)[0] or asked.share_s[0] > 2 * asked.share_s[1]:
            return []
        late, slack_s = self._admission.hasty(self._kinds, share).tolist(), self._kinds.slack_s.tolist()
        found = [n for n, kind in enumerate(self._kind_of) if self.owners[n] != owner and late[kind]]
        return sorted(found, key=lambda n: slack_s[self._kind_of[n]])

    def beyond(self, share: float) -> list[int]:
        """Indices of the sessions by which UEs exceed their share of the time or of the prefix cache, in the order in
        which they yield: those that wait for their UE first, the least recently heard first. Each UE keeps one.
        """
        parts = self._admission.parts(self._kinds)
        by_ue: dict[bytes, list[int]] = {}
        in_turn = sorted(range(len(self._sessions)), key=lambda index: _turn(self._sessions[index]))
        for index in in_turn:
            by_ue.setdefault(self.owners[index], []).append(index)
        found = set[int]()
        for indices in by_ue.values():
            own = parts[:, [self._kind_of[index] for index in indices]]
            left, kept = own.sum(axis=1), len(indices)
            for index, part in zip(indices, own.T, strict=True):
                if left.max() > share and kept > 1:
                    left, kept = left - part, kept - 1
                    found.add(index)
        return [index for index in in_turn if index in found]


def work_s(sessions: SessionTable, session: Session, item: Pending, times: Coefficients) -> float:
    """Verification time of a UE's waiting requests without a guarantee, a new one included.

    Times n / U for n UEs with such sessions and the share U of the time that guarantees leave, it is the time within
    which the UE's equal part of that share suffices for them. A deadline at the end of it makes those requests a total
    bandwidth server (Spuri and Buttazzo, 1994): served by earliest deadline first, they take no more than U of the time
    from guaranteed ones.

    Args:
        session: the session of `item`, the new request.
    """
    waiting = [item]
    for other in sessions.ues.of(sessions.owner(session.key[0])):
        unbound = other.speed_tps is None and other is not session
        if unbound and other.current is not None and other.current.pending is not None:
            waiting.append(other.current.pending)
    return math.fsum(times.share_s(one.new_tokens, one.cached_tokens) for one in waiting)


def own_times(session: Session, round_: Round) -> tuple[float, float]:
    """Drafting and link time of a round as its UE reports them, up to the time in which it can have had them."""
    if session.free_s is None:
        return round_.draft_s, round_.network_s
    own_s = max(0.0, round_.arrived_s - session.free_s)
    draft_s = min(round_.draft_s, own_s + (0.0 if session.got else PREPARED_S))
    return draft_s, min(round_.network_s, max(0.0, own_s - draft_s))


def excuse(session: Session, took_s: float, allowed_s: float = 0.0) -> None:
    """Leave out of a guarantee what its UE took beyond `allowed_s` per round and `MOST_LAG_S` in all."""
    if session.begun_s is None:
        return
    lag_s = max(0.0, session.lag_s + took_s - allowed_s)
    session.lag_s = min(lag_s, MOST_LAG_S)
    session.begun_s += lag_s - session.lag_s


def _turn(session: Session) -> tuple[bool, float]:
    return not session.idle, session.heard_s
