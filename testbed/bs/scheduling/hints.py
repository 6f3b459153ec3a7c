"""The seam of draft-window hints: what a verdict tells its UE about the next window."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from testbed.bs.pending import Round
from testbed.bs.sessions import Session
from testbed.optim.pass_time import NO_OVERHEAD, PassOverhead
from testbed.protocols.messages import NO_HINT


class Hint(NamedTuple):
    """What a verdict tells its UE about the next window."""

    window: int = NO_HINT
    """Its length; 0: the BS decodes alone, `NO_HINT`: none."""
    protocol: str = ""
    """Its protocol, for sessions with `protocol_hints`; empty: no change."""
    lookahead: int = NO_HINT
    """Lookahead from it on, for sessions with `lookahead_hints`; `NO_HINT`: no change."""


class WindowHints(Protocol):
    """Hints windows, and possibly their protocols, to the UEs that ask for them, and learns from the rounds of all."""

    def hint(self, session: Session, round_: Round, accepted: int, now_s: float) -> Hint:
        """The hint for a session's next round, after one was committed."""

    def threshold(self, session: Session) -> float:
        """θ of the judge for a session's next round, at most the one that it requested; UEs are not told."""

    def learn(self, overhead: PassOverhead = NO_OVERHEAD) -> bool:
        """Learn from a few rounds, preferably while the engine computes; returns whether there are further ones."""

    def ended(self, session: Session) -> None:
        """A session was closed or expired."""

    def snapshot(self) -> dict[str, Any]:
        """Gauges for the metrics."""
