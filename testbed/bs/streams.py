"""Sessions that the target decodes alone: how far ahead, and the rounds of the tokens that were decoded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from testbed.bs.pending import Round
from testbed.bs.sessions import Session

MOST_AHEAD = 7
"""Tokens decoded ahead, at most."""


def ahead(session: Session) -> int:
    """Tokens that a stream may be decoded ahead: none before its first token, which is sent at once, where tokens are
    drawn, or where a speed is guaranteed, whose scheduler plans every pass.
    """
    if not session.alone or not session.got or session.drawn or session.speed_tps is not None:
        return 0
    return max(0, min(MOST_AHEAD, session.wanted - session.length - 1))


def rounds_of(round_: Round, count: int, start_s: float, verify_s: float) -> Iterator[Round]:
    """The round of each token that passes in a row found for a stream; their last passes took equally long.

    Args:
        count: number of passes.
        start_s: their start.
        verify_s: their duration.
    """
    if count == 1:
        yield round_
        return
    result = round_.result
    assert result is not None
    each_s = verify_s / count
    for i in range(count):
        own = replace(result, argmax=result.argmax[i : i + 1], margin=result.margin[i : i + 1])
        if i == 0:
            first_s, new = round_.verify_s - verify_s + each_s, round_.new - count + 1
            yield replace(round_, result=own, verify_s=first_s, new=new, shared_s=verify_s - each_s, followed=True)
            continue
        yield replace(
            round_, number=round_.number + i, result=own, arrived_s=start_s + i * each_s, queue_s=0.0, verify_s=each_s,
            new=1, cached=round_.cached + round_.new - count + i, follows=True, followed=i < count - 1,
        )  # fmt: skip
