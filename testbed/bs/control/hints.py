"""Hints that a controller of the cell decides, in the same process or in another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from testbed.bs.control.messages import Decided, Decisions, Event, RoundSeen, SessionEnded
from testbed.bs.judging.acceptance import threshold
from testbed.bs.pending import Round
from testbed.bs.scheduling.hints import Hint
from testbed.bs.sessions import Session
from testbed.optim.pass_time import NO_OVERHEAD, PassOverhead
from testbed.protocols.messages import NO_HINT

NOTHING = Decided()
MOST_DECIDED = 4096
"""UEs of which decisions are remembered beyond their sessions."""


class DecidedHints:
    """Implements `WindowHints`: the windows, protocols and lookahead that a controller decided, for UEs that ask for
    hints, and thresholds of judges.

    Attributes:
        worths: worth of a token of each UE for the order of the batch, by identity.

    Args:
        tell: informs the controller.
        knows: whether a UE with this identity has a session; by default, the controller decides for such UEs only.
    """

    def __init__(self, tell: Callable[[Event], object], knows: Callable[[bytes], bool] = lambda ue: True) -> None:
        self._tell, self._knows = tell, knows
        self._decided: dict[bytes, Decided] = {}
        self._first = NO_HINT
        self.worths: dict[bytes, float] = {}
        self._arrivals: dict[tuple[bytes, int], float] = {}
        """Arrival of the last round of each session."""

    def apply(self, decisions: Decisions) -> None:
        """Hint what was decided from now on; decisions for UEs that have had no session are ignored."""
        self._first = decisions.first
        known = {ue: one for ue, one in decisions.ues.items() if ue in self._decided or self._knows(ue)}
        self._decided.update(known)
        if len(self._decided) > MOST_DECIDED:
            self._decided = {ue: one for ue, one in self._decided.items() if self._knows(ue)}
        self.worths.clear()  # whoever has had no round yet counts as the mean
        self.worths.update((ue, one.worth) for ue, one in known.items())

    def forget(self) -> None:
        """Hint nothing until the next decision."""
        self._decided.clear()
        self._first = NO_HINT
        self.worths.clear()

    def weight(self, session: Session) -> float | None:
        """The radio's weight of a session's UE; None: none was decided."""
        return self._of(session).weight

    def _of(self, session: Session) -> Decided:
        return self._decided.get(session.key[0], NOTHING)

    def threshold(self, session: Session) -> float:
        """See `WindowHints.threshold`."""
        decided = self._of(session).threshold
        return session.threshold if decided is None else min(decided, session.threshold)

    def hint(self, session: Session, round_: Round, accepted: int, now_s: float) -> Hint:
        """See `WindowHints.hint`."""
        drafted = len(round_.window.ids)
        judged = drafted > 0 and session.protocol is not None and session.protocol.judged
        found = round_.candidates() if judged else []
        kept = sum(position < accepted for position in found)
        before_s = self._arrivals.get(session.key, round_.arrived_s)
        self._arrivals[session.key] = round_.arrived_s
        self._tell(
            RoundSeen(
                *session.key, drafted, accepted, round_.cached, round_.draft_s, len(found) if judged else None, kept,
                threshold(session, round_), round_.guess is not None, round_.queue_s + round_.verify_s, round_.new,
                max(0.0, round_.arrived_s - before_s),
            )
        )  # fmt: skip
        decided, protocol = self._of(session), ""
        if session.protocol_hints:
            protocol = decided.protocol
        lookahead = decided.lookahead if session.lookahead_hints else NO_HINT
        window = decided.window if session.key[0] in self._decided else self._first
        return Hint(_window(session, window), protocol, lookahead)

    def learn(self, overhead: PassOverhead = NO_OVERHEAD) -> bool:
        """See `WindowHints.learn`: the controller learns."""
        return False

    def ended(self, session: Session) -> None:
        """See `WindowHints.ended`."""
        self._arrivals.pop(session.key, None)
        self._tell(SessionEnded(*session.key))

    def snapshot(self) -> dict[str, Any]:
        """See `WindowHints.snapshot`."""
        return {}


def _window(session: Session, decided: int) -> int:
    """The window that a session is told: not more than it asked for, and 1 or more where its UE draws tokens itself."""
    if not session.hinted or decided == NO_HINT:
        return NO_HINT
    draws = session.protocol is not None and session.protocol.replaces
    return min(max(decided, int(draws)), session.hinted)
