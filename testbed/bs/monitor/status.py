"""A line on the state of a base station every ten seconds, while there is work."""

from __future__ import annotations

from collections.abc import Callable

from testbed.bs.observer import FinishedPass, Observer
from testbed.bs.pending import Round
from testbed.bs.sessions import Session, SessionTable
from testbed.clock import Clock
from testbed.protocols.messages import Verdict

INTERVAL_S = 10.0
"""Time between two lines."""


class StatusLine(Observer):
    """Counts rounds, tokens and passes between two lines, and passes everything on.

    Args:
        sessions: all sessions of the base station.
        further: the observer that is informed as well; None: no other.
    """

    def __init__(self, sessions: SessionTable, further: Observer | None = None) -> None:
        self._sessions, self._further = sessions, further or Observer()
        self._rounds = self._tokens = self._passes = self._waiting = 0
        self._seconds = 0.0

    def came_ahead(self, session: Session, tokens: int, draft_s: float) -> None:
        """See `Observer.came_ahead`."""
        self._further.came_ahead(session, tokens, draft_s)

    def round(self, session: Session, round_: Round, verdict: Verdict) -> None:
        """See `Observer.round`."""
        self._rounds += 1
        self._tokens += verdict.accepted + (verdict.token >= 0)
        self._further.round(session, round_, verdict)

    def passed(self, done: FinishedPass) -> None:
        """See `Observer.passed`."""
        self._passes += done.passes
        self._waiting += done.waiting * done.passes
        self._seconds += done.seconds
        self._further.passed(done)

    def ended(self, session: Session) -> None:
        """See `Observer.ended`."""
        self._further.ended(session)

    def line(self, seconds: float) -> str | None:
        """A line about the last `seconds`, after which a new period begins; None if nothing happened."""
        if not self._passes:
            return None
        sessions, passes = len(self._sessions), self._passes
        text = (
            f"{sessions} session{'' if sessions == 1 else 's'}, {self._rounds / seconds:.1f} rounds/s, "
            f"{self._tokens / seconds:.1f} tokens/s, {self._waiting / passes:.1f} waiting, "
            f"{1e3 * self._seconds / passes:.1f} ms a pass"
        )
        self._rounds = self._tokens = self._passes = self._waiting = 0
        self._seconds = 0.0
        return text

    async def keep(self, clock: Clock, say: Callable[[str], None]) -> None:
        """Say a line every `INTERVAL_S` in which something happened, until cancelled."""
        before_s = clock.time()
        while True:
            await clock.sleep(INTERVAL_S)
            now_s = clock.time()
            if (text := self.line(now_s - before_s)) is not None:
                say(text)
            before_s = now_s
