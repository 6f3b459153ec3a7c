"""The verdict of a round, from what became of it, and the reason of a fault."""

from __future__ import annotations

from testbed.bs.sessions import Round, Session
from testbed.protocols.messages import Verdict
from testbed.protocols.sampling import Kept

MAX_REASON = 500
"""Characters of a `Fault`'s reason."""


def verdict(session: Session, round_: Round, kept: Kept, window: int, judge_s: float, now_s: float) -> Verdict:
    """What the UE is told.

    Args:
        window: the hint for its next round.
        now_s: on the server's clock.
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
        judge_s=judge_s,
        bs_s=now_s - round_.arrived_s - round_.waited_s,
        window=window,
        kept=sum(position < kept.accepted for position in positions),
    )


def reason(exc: Exception) -> str:
    """An error's text for whoever caused it, in one printable line."""
    return "".join(c if c.isprintable() else " " for c in str(exc)[:MAX_REASON])
