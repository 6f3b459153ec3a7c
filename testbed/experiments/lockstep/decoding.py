"""Decodes many sequences in lockstep through one engine: every pass verifies the current request of each sequence."""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Iterable, Iterator
from typing import TypeVar

from testbed.bs.engines.base import VerifyEngine, VerifyRequest, VerifyResult
from testbed.ue.drafters.base import DraftSequence, DraftToken

T = TypeVar("T")
Decoding = Generator[VerifyRequest, VerifyResult, T]
"""Generator that decodes one sequence: yields each verification request, is sent its result, and returns a T. All its
requests belong to one session."""
NOTHING = {"passes": 0, "requests": 0, "seconds": 0.0}
"""Value of `Lockstep.spent` when there was no work."""
_Live = dict[int, tuple[Decoding[T], VerifyRequest]]


class Lockstep:
    """Runs decodings on an engine, at most `width` at a time.

    `passes` counts engine passes, `requests` the requests in them.
    """

    def __init__(self, engine: VerifyEngine, width: int) -> None:
        self._engine = engine
        self._width = width
        self.passes = self.requests = 0
        self._begun_s = time.monotonic()

    def spent(self) -> dict[str, float]:
        """Passes, requests, and seconds since construction."""
        seconds = round(time.monotonic() - self._begun_s, 1)
        return {"passes": self.passes, "requests": self.requests, "seconds": seconds}

    def run(self, decodings: Iterable[Decoding[T]]) -> Iterator[tuple[int, T]]:
        """Yield index and result of every decoding as it ends; the next one then takes its place.

        Unfinished decodings are closed when this iterator is closed or the engine fails.
        """
        waiting = enumerate(decodings)
        live: _Live[T] = {}
        try:
            while True:
                while len(live) < self._width and (new := next(waiting, None)):
                    yield from self._advance(live, *new, None)
                if not live:
                    return
                yield from self._step(live)
        finally:
            for decoding, _ in live.values():
                decoding.close()

    def _step(self, live: _Live[T]) -> Iterator[tuple[int, T]]:
        """Run one pass for all live decodings; yield those that end with it."""
        self.passes += 1
        self.requests += len(live)
        results = self._engine.verify([request for _, request in live.values()])
        for (number, (decoding, _)), result in zip(list(live.items()), results, strict=True):
            yield from self._advance(live, number, decoding, result)

    def _advance(
        self, live: _Live[T], number: int, decoding: Decoding[T], result: VerifyResult | None
    ) -> Iterator[tuple[int, T]]:
        """Start a decoding (result None) or send it its result; yield its return value if it ends."""
        try:
            live[number] = (decoding, next(decoding) if result is None else decoding.send(result))
        except StopIteration as ended:
            if number in live:
                self._engine.release(live.pop(number)[1].session)
            yield number, ended.value


def draft_window(sequence: DraftSequence, count: int, ends: Collection[int]) -> list[DraftToken]:
    """Draft up to `count` tokens, none after an end id."""
    tokens: list[DraftToken] = []
    while len(tokens) < count and not (tokens and tokens[-1].id in ends):
        tokens.append(sequence.draft_one())
    return tokens
