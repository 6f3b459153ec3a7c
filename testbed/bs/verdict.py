"""Answers to a round: its tokens committed and its verdict, the request for hidden states, and the fault of a pass that
failed.
"""

from __future__ import annotations

import asyncio
import logging

import numpy as np

from testbed.bs.metrics import Metrics
from testbed.bs.observer import Observer
from testbed.bs.pending import Round
from testbed.bs.scheduling.hints import Hint, WindowHints
from testbed.bs.scheduling.pass_ledger import PassLedger
from testbed.bs.sessions import Session
from testbed.channel.csi import single
from testbed.clock import Clock
from testbed.protocols.codec import encode, pack_positions
from testbed.protocols.messages import NO_HINT, Fault, NeedHidden, Verdict
from testbed.protocols.sampling import Kept

LOG = logging.getLogger(__name__)
MAX_REASON = 500
"""Characters of a `Fault`'s reason."""


class Verdicts:
    """Commits judged rounds and makes their verdicts; the arguments are the parts of the base station that learn from
    them.
    """

    def __init__(
        self, ledger: PassLedger, metrics: Metrics, windows: WindowHints | None, observer: Observer, clock: Clock
    ) -> None:
        self._ledger, self._metrics, self._windows = ledger, metrics, windows
        self._observer, self._clock = observer, clock

    def settle(self, session: Session, round_: Round, kept: Kept) -> Verdict:
        """Commit the tokens of a round; returns its verdict."""
        if round_.follows and session.free_s is not None:  # its own pass, and the time since the verdict before
            round_.shared_s = session.free_s - round_.arrived_s - round_.verify_s
        now_s = self._clock.time()
        self._commit(session, round_, kept, now_s)
        hint = self._hint(session, round_, kept.accepted)
        answer = verdict(session, round_, kept, hint, now_s)
        self._observer.round(session, round_, answer)
        return answer

    def learn(self) -> None:
        """Update what is estimated from passes and a few rounds, and from further ones once other tasks have run; an
        estimate is no reason to end sessions.
        """
        try:
            self._ledger.learn()
            if self._windows is not None and self._windows.learn(self._ledger.overhead):
                asyncio.get_running_loop().call_soon(self.learn)
        except Exception:
            LOG.exception("an estimate could not be updated")
            self._metrics.failed_updates += 1

    def _commit(self, session: Session, round_: Round, kept: Kept, now_s: float) -> None:
        session.free_s = now_s
        self._ledger.settled(session, round_, kept)
        if session.speed_tps is not None:
            self._metrics.add_promised(session.speed_tps, self._ledger.late(round_, now_s))
        session.append(round_.window.ids[: kept.accepted])
        if kept.token is not None:
            session.append(np.array([kept.token], np.int32))
        session.owed, session.current = kept.token is None, None

    def _hint(self, session: Session, round_: Round, accepted: int) -> Hint:
        """The hint for a session's next round; after a window of 0, the target goes on alone."""
        if self._windows is None:
            return Hint()
        hint = self._windows.hint(session, round_, accepted, self._clock.time())
        if hint.window != NO_HINT:
            session.alone = hint.window == 0
        return hint


def verdict(session: Session, round_: Round, kept: Kept, hint: Hint, now_s: float) -> Verdict:
    """The verdict of a judged round.

    Args:
        hint: for the next round.
        now_s: time on the server's clock.
    """
    assert round_.result is not None
    positions = round_.candidates()
    candidates = len(positions)
    return Verdict(
        session=session.key[1],
        round=round_.number,
        accepted=kept.accepted,
        token=-1 if kept.token is None else kept.token,
        candidates=candidates,
        queried=candidates if round_.asked_s is not None else int(kept.target is not None),
        gap=single(round_.result.gap(kept.accepted)),
        batch_size=round_.batch_size,
        queue_s=single(round_.queue_s),
        verify_s=single(round_.verify_s),
        judge_s=single(round_.judge_s),
        bs_s=single(now_s - round_.arrived_s - round_.waited_s - round_.shared_s),
        window=hint.window,
        kept=sum(position < kept.accepted for position in positions),
        risk=single(session.risk),
        base_len=session.length - kept.accepted - (kept.token is not None)
        if session.stream or session.hinted
        else None,
        draft=round_.draft,
        joined=len(round_.window.ids) if session.stream else 0,
        protocol=hint.protocol,
        lookahead=hint.lookahead,
        others_drafted=round_.others_drafted if session.load else 0,
    )


def need_hidden(session: Session, round_: Round, now_s: float) -> list[bytes | memoryview] | None:
    """The encoded request for the hidden states of a round's candidates; None: its protocol sends none on request, or
    they came with the window.

    Args:
        now_s: time on the server's clock, from which the UE is waited for.
    """
    if session.protocol is None or round_.window.hidden is not None:
        return None
    if not (positions := session.protocol.asks_for(round_.candidates())):
        return None
    round_.asked_s = now_s
    ask = NeedHidden(session=session.key[1], round=round_.number, count=len(positions))
    session.last_reply = encode(ask, {"positions": pack_positions(positions, len(round_.window.ids))})
    return session.last_reply


def failure(session: Session, exc: Exception) -> Fault:
    """The answer to a round whose pass failed."""
    return Fault(session=session.key[1], reason=f"verification failed: {reason(exc)}")


def reason(exc: Exception) -> str:
    """An error's text for the sender of a message, as one printable line."""
    return "".join(c if c.isprintable() else " " for c in str(exc)[:MAX_REASON])
