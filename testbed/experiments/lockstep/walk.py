"""Many walks through one engine: each asks for one pass at a time, and all that ask are verified together."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator
from typing import TypeVar

from testbed.bs.engines.base import VerifyEngine, VerifyRequest, VerifyResult

T = TypeVar("T")
Walk = Generator[VerifyRequest, VerifyResult, T]
"""Yields what it wants verified, is sent the result, and returns a T. Its requests name one session."""
NOTHING = {"passes": 0, "requests": 0, "seconds": 0.0}
"""What `Lockstep.spent` says of no work."""
_Live = dict[int, tuple[Walk[T], VerifyRequest]]


class Lockstep:
    """Plays walks on an engine, `width` at a time.

    `passes` counts calls of the engine, `requests` what they held.
    """

    def __init__(self, engine: VerifyEngine, width: int) -> None:
        self._engine = engine
        self._width = width
        self.passes = self.requests = 0
        self._begun_s = time.monotonic()

    def spent(self) -> dict[str, float]:
        """Passes, their requests, and the seconds since this was made."""
        seconds = round(time.monotonic() - self._begun_s, 1)
        return {"passes": self.passes, "requests": self.requests, "seconds": seconds}

    def run(self, walks: Iterable[Walk[T]]) -> Iterator[tuple[int, T]]:
        """Number and result of every walk, as they end; a new one begins where one has ended.

        Walks that have not ended are closed when this is, and when the engine fails.
        """
        waiting = enumerate(walks)
        live: _Live[T] = {}
        try:
            while True:
                while len(live) < self._width and (new := next(waiting, None)):
                    yield from self._advance(live, *new, None)
                if not live:
                    return
                yield from self._step(live)
        finally:
            for walk, _ in live.values():
                walk.close()

    def _step(self, live: _Live[T]) -> Iterator[tuple[int, T]]:
        """One pass for all that are under way; yields those that end with it."""
        self.passes += 1
        self.requests += len(live)
        results = self._engine.verify([request for _, request in live.values()])
        for (number, (walk, _)), result in zip(list(live.items()), results, strict=True):
            yield from self._advance(live, number, walk, result)

    def _advance(
        self, live: _Live[T], number: int, walk: Walk[T], result: VerifyResult | None
    ) -> Iterator[tuple[int, T]]:
        """Send a walk its result (None: it begins); yields it if it ends."""
        try:
            live[number] = (walk, next(walk) if result is None else walk.send(result))
        except StopIteration as ended:
            if number in live:
                self._engine.release(live.pop(number)[1].session)
            yield number, ended.value
