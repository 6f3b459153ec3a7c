"""What the base station of a cell estimates of its UEs from their rounds, and the windows and protocols decided for
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from testbed.bs.pending import Round
from testbed.bs.scheduling.averages import NO_OVERHEAD, Mean, PassOverhead
from testbed.bs.scheduling.hints import Hint
from testbed.bs.sessions import Session
from testbed.protocols.messages import NO_HINT
from testbed.ue.windows.base import MAX_WINDOW

ROUNDS = 32.0
"""Memory of the means, in rounds."""
FORGET = 0.99
"""Weight of the past in the acceptance rates, per round."""
START, START_TOKENS = 0.8, 8.0
"""Acceptance rate before any round, and its weight in drafted tokens."""
SHARED_TOKENS = 32.0
"""Weight of the mean acceptance rate in that of each position, in drafted tokens."""


class UeEstimates:
    """Estimates of one UE.

    Attributes:
        sessions: its sessions that have had a round and have not ended.
        rounds: its rounds so far.
        window: the window that was decided; 0: the BS decodes alone; None: none was decided.
        mode: the protocol that was decided; empty: none was.
    """

    def __init__(self) -> None:
        self.sessions: set[int] = set()
        self.rounds = 0
        self.window: int | None = None
        self.mode = ""
        self.draft_s, self.mean_window, self.cached = Mean(ROUNDS), Mean(ROUNDS), 0
        self.asked = Mean(ROUNDS)
        """Hidden states per drafted token that a protocol which requests them would request: those of candidates."""
        self.measured = 0
        """Rounds with a measured drafting time."""
        self._tried, self._accepted = np.zeros(MAX_WINDOW), np.zeros(MAX_WINDOW)

    def learn(self, session: Session, round_: Round, accepted: int) -> None:
        """Learn from a committed round."""
        drafted, first = len(round_.window.ids), session.key[1] not in self.sessions
        self.sessions.add(session.key[1])
        self.rounds, self.cached = self.rounds + 1, round_.cached
        if not drafted:
            return
        self.mean_window.add(drafted)
        if not first:  # the first one's time counts from the request
            self.draft_s.add(round_.draft_s / drafted)
            self.measured += 1
        if session.protocol is not None and session.protocol.judged:
            self.asked.add(len(round_.candidates()) / drafted)
        tried = min(accepted + 1, drafted, MAX_WINDOW)
        self._tried *= FORGET
        self._accepted *= FORGET
        self._tried[:tried] += 1
        self._accepted[: min(accepted, tried)] += 1

    @property
    def present(self) -> int:
        """The window that it drafts, of 1 token or more."""
        return max(1, round(self.mean_window.value))

    def acceptance(self, most: int) -> tuple[float, ...]:
        """α by position, up to a window of `most`: each position's own, drawn to the mean of all."""
        mean = (self._accepted.sum() + START * START_TOKENS) / (self._tried.sum() + START_TOKENS)
        own = (self._accepted[:most] + SHARED_TOKENS * mean) / (self._tried[:most] + SHARED_TOKENS)
        return tuple(own.tolist())


class JointHints:
    """Implements `WindowHints`: the windows and protocols that a controller decided, for UEs that ask for hints.

    Attributes:
        changed: called when a response begins or ends.
        ues: estimates by identity.
        worths: worth of a token of each UE for the order of the batch, by identity.
    """

    def __init__(self) -> None:
        self.changed: Callable[[], None] = lambda: None
        self.ues: dict[bytes, UeEstimates] = {}
        self.worths: dict[bytes, float] = {}

    def hint(self, session: Session, round_: Round, accepted: int, now_s: float) -> Hint:
        """See `WindowHints.hint`."""
        ue = self.ues.setdefault(session.key[0], UeEstimates())
        begins = session.key[1] not in ue.sessions
        ue.learn(session, round_, accepted)
        if begins:
            self.changed()
        window = NO_HINT if not session.hinted or ue.window is None else min(ue.window, session.hinted)
        return Hint(window, ue.mode if session.protocol_hints else "")

    def learn(self, overhead: PassOverhead = NO_OVERHEAD) -> bool:
        """See `WindowHints.learn`: everything is learnt at once."""
        return False

    def ended(self, session: Session) -> None:
        """See `WindowHints.ended`."""
        ue = self.ues.get(session.key[0])
        if ue is not None and session.key[1] in ue.sessions:
            ue.sessions.remove(session.key[1])
            self.changed()

    def snapshot(self) -> dict[str, Any]:
        """See `WindowHints.snapshot`."""
        return {}
