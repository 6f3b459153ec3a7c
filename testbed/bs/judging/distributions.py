"""Accepted tokens of sessions that sample, from the target's distributions and the session's sampling options."""

from __future__ import annotations

import functools
from collections.abc import Callable

from testbed.bs.engines.base import VerifyResult
from testbed.bs.pending import Round
from testbed.bs.sessions import Session
from testbed.protocols.base import Steps, whole
from testbed.protocols.sampling import Draws, Kept, Probs, Sampling, draw, one_hot, warp

ROWS = 2
"""Distributions that are kept while a round is decided: block verification reads those of two positions at a time."""


def drawn(session: Session, round_: Round, vocab_size: int) -> Kept:
    """Accepted tokens of a round and the token that follows; without drafts, the next token."""
    return whole(_steps(session, round_, vocab_size))


class Drawing:
    """The accepted tokens of a round and the token that follows, decided some positions at a time; see `drawn`."""

    def __init__(self, session: Session, round_: Round, vocab_size: int) -> None:
        self._steps = _steps(session, round_, vocab_size)
        self._rows, self._size = len(round_.window.ids) + 1, vocab_size
        self._failed: Exception | None = None
        self.kept: Kept | None = None
        """What `drawn` returns; None: positions are left."""

    @property
    def left(self) -> int:
        """Number of values to read, at most."""
        return 0 if self.kept is not None else self._rows * self._size

    def part(self, most: int) -> int:
        """Number of values that `choose` reads, at most."""
        return min(self.left, max(1, most // self._size) * self._size)

    def choose(self, most: int) -> None:
        """Decide the next positions: as many as read `most` values, and one at least."""
        for _ in range(self.part(most) // self._size):
            self._step()
            if self.kept is not None:
                return

    def _step(self) -> None:
        if self._failed is not None:
            raise self._failed
        try:
            next(self._steps)
            self._rows -= 1
        except StopIteration as done:
            self.kept = done.value
        except Exception as exc:
            self._failed = exc
            raise


def _steps(session: Session, round_: Round, vocab_size: int) -> Steps[Kept]:
    """The result of `drawn`, a position at a time."""
    assert round_.result is not None
    target = _target(round_.result, session.sampling, vocab_size)
    draws, protocol = Draws(session.seed, round_.number), session.protocol
    if protocol is None or not len(round_.window.ids):
        return Kept(0, draw(target(0), draws.replace(0)))
    steps = protocol.keep_block_steps if session.sampling.block else protocol.keep_steps
    return (yield from steps(round_.window, target, draws))


def _target(result: VerifyResult, sampling: Sampling, vocab_size: int) -> Callable[[int], Probs]:
    """The target's distribution at a position; at temperature 0, all mass on the argmax."""

    @functools.lru_cache(ROWS)
    def target(position: int) -> Probs:
        if result.logprobs is None:
            return one_hot(int(result.argmax[position]), vocab_size)
        return warp(result.logprobs[position], sampling)

    return target
