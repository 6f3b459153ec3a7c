"""What the controller of a cell estimates of the UEs from their rounds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from testbed.bs.control.messages import Event, RoundSeen
from testbed.bs.scheduling.averages import Mean
from testbed.experiments.cell.control.judgements import Judgements
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
        threshold: θ that was decided; None: none was.
        lookahead: the one that was decided; None: none was.
    """

    def __init__(self) -> None:
        self.sessions: set[int] = set()
        self.rounds = 0
        self.window: int | None = None
        self.mode = ""
        self.threshold: float | None = None
        self.lookahead: int | None = None
        self._draft_s, self._period_s = Mean(ROUNDS), Mean(ROUNDS)
        """Per token: the drafting time that its UE states, and the time between its rounds."""
        self.mean_window, self.cached = Mean(ROUNDS), 0
        self.extra = Mean(ROUNDS)
        """Tokens computed beside a window and one: those after the last whole block of the prefix cache."""
        self.asked = Mean(ROUNDS)
        """Hidden states per drafted token that a protocol which requests them would request: those of candidates."""
        self.judgements = Judgements()
        self.measured = 0
        """Rounds with a measured drafting time."""
        self._tried, self._accepted = np.zeros(MAX_WINDOW), np.zeros(MAX_WINDOW)

    def learn(self, seen: RoundSeen) -> None:
        """Learn from a committed round."""
        drafted, first = seen.drafted, seen.session not in self.sessions
        self.sessions.add(seen.session)
        self.rounds, self.cached = self.rounds + 1, seen.cached
        if not first:  # which computes the prompt
            self.extra.add(max(0, seen.new - drafted - 1))
        if not drafted:
            return
        self.mean_window.add(drafted)
        if not first:  # the first one's time counts from the request
            self._draft_s.add(seen.draft_s / (drafted + seen.ahead))
            self._period_s.add(seen.period_s / (drafted + seen.ahead))
            self.measured += 1
        if seen.candidates is not None:
            self.asked.add(seen.candidates / drafted)
            self.judgements.learn(seen)
        tried = min(seen.accepted + 1, drafted, MAX_WINDOW)
        self._tried *= FORGET
        self._accepted *= FORGET
        self._tried[:tried] += 1
        self._accepted[: min(seen.accepted, tried)] += 1

    @property
    def draft_s(self) -> float:
        """Drafting time per token as its UE states it, up to the time between its rounds; 0: not known."""
        return min(self._draft_s.value, self._period_s.value)

    @property
    def present(self) -> int:
        """The window that it drafts, of 1 token or more."""
        return max(1, round(self.mean_window.value))

    def acceptance(self, most: int) -> tuple[float, ...]:
        """α by position, up to a window of `most`: each position's own, drawn to the mean of all."""
        mean = (self._accepted.sum() + START * START_TOKENS) / (self._tried.sum() + START_TOKENS)
        own = (self._accepted[:most] + SHARED_TOKENS * mean) / (self._tried[:most] + SHARED_TOKENS)
        return tuple(own.tolist())


class CellEstimates:
    """Estimates of the UEs of a cell, from what its base station tells.

    Attributes:
        changed: called when a response begins or ends.
        ues: estimates by identity.
        stay_s: time of a round at the base station, of those with drafted tokens that were not drafted ahead.
        prompts: tokens computed and found in the prefix cache by each first round, until somebody takes them.
    """

    def __init__(self) -> None:
        self.changed: Callable[[], None] = lambda: None
        self.ues: dict[bytes, UeEstimates] = {}
        self.stay_s = Mean(ROUNDS)
        self.prompts: list[tuple[int, int]] = []

    def tell(self, event: Event) -> None:
        """Learn from a committed round, or from the end of a session."""
        if isinstance(event, RoundSeen):
            ue = self.ues.setdefault(event.ue, UeEstimates())
            begins = event.session not in ue.sessions
            ue.learn(event)
            if event.drafted and not event.ahead and not begins:
                self.stay_s.add(event.stay_s)
            if begins:
                self.prompts.append((event.new, event.cached))
                self.changed()
        elif (known := self.ues.get(event.ue)) is not None and event.session in known.sessions:
            known.sessions.remove(event.session)
            self.changed()
