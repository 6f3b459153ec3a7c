"""Accepted tokens of sessions that sample, from the target's distributions and the session's sampling options."""

from __future__ import annotations

import functools
from collections.abc import Callable

from testbed.bs.engines.base import VerifyResult
from testbed.bs.pending import Round
from testbed.bs.sessions import Session
from testbed.protocols.sampling import Draws, Kept, Probs, Sampling, draw, one_hot, warp


def drawn(session: Session, round_: Round, vocab_size: int) -> Kept:
    """Accepted tokens of a round and the token that follows; without drafts, the next token."""
    assert round_.result is not None
    target = _target(round_.result, session.sampling, vocab_size)
    draws = Draws(session.seed, round_.number)
    if session.protocol is None or not len(round_.window.ids):
        return Kept(0, draw(target(0), draws.replace(0)))
    keep = session.protocol.keep_block if session.sampling.block else session.protocol.keep
    return keep(round_.window, target, draws)


def _target(result: VerifyResult, sampling: Sampling, vocab_size: int) -> Callable[[int], Probs]:
    """The target's distribution at a position; at temperature 0, all mass on the argmax."""

    @functools.cache
    def target(position: int) -> Probs:
        if result.logprobs is None:
            return one_hot(int(result.argmax[position]), vocab_size)
        return warp(result.logprobs[position], sampling)

    return target
