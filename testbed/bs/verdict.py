"""Answers to a round: its verdict, the request for hidden states, and the fault of a pass that failed."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.bs.sessions import Round, Session
from testbed.protocols.codec import AnyArray, pack_positions
from testbed.protocols.messages import Fault, NeedHidden, Verdict
from testbed.protocols.sampling import Kept

MAX_REASON = 500
"""Characters of a `Fault`'s reason."""


def verdict(session: Session, round_: Round, kept: Kept, window: int, now_s: float) -> Verdict:
    """The verdict of a judged round.

    Args:
        window: draft-window hint for the next round.
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
        gap=round_.result.gap(kept.accepted),
        batch_size=round_.batch_size,
        queue_s=round_.queue_s,
        verify_s=round_.verify_s,
        judge_s=round_.judge_s,
        bs_s=now_s - round_.arrived_s - round_.waited_s,
        window=window,
        kept=sum(position < kept.accepted for position in positions),
        risk=session.risk,
    )


def need_hidden(session: Session, round_: Round, positions: Sequence[int]) -> tuple[NeedHidden, dict[str, AnyArray]]:
    """The request for the hidden states at these positions of a window, and its arrays."""
    ask = NeedHidden(session=session.key[1], round=round_.number, count=len(positions))
    return ask, {"positions": pack_positions(positions, len(round_.window.ids))}


def failure(session: Session, exc: Exception) -> Fault:
    """The answer to a round whose pass failed."""
    return Fault(session=session.key[1], reason=f"verification failed: {reason(exc)}")


def reason(exc: Exception) -> str:
    """An error's text for the sender of a message, as one printable line."""
    return "".join(c if c.isprintable() else " " for c in str(exc)[:MAX_REASON])
