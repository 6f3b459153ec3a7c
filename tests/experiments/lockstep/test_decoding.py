"""Decodings in lockstep on one engine: results, concurrency, and clean-up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from testbed.bs.engines.base import VerifyRequest, VerifyResult
from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.errors import EngineError
from testbed.experiments.lockstep.decoding import Decoding, Lockstep
from tests.support.synthetic import VOCAB, greedy


class Watched(SyntheticEngine):
    """Records batch sizes and released sessions, and can fail at a given pass."""

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__(vocab_size=VOCAB)
        self.sizes: list[int] = []
        self.released: list[str] = []
        self._fails_at = fails_at

    def compute(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
        if len(self.sizes) == self._fails_at:
            raise EngineError("no more")
        self.sizes.append(len(batch))
        return super().compute(batch)

    def release(self, session: str) -> None:
        self.released.append(session)


def decode(name: str, prompt: list[int], count: int, closed: list[str]) -> Decoding[list[int]]:
    """Decode `count` tokens, one per pass."""
    text = list(prompt)
    try:
        for _ in range(count):
            result = yield VerifyRequest(name, np.array(text, np.int32), np.empty(0, np.int32))
            text.append(int(result.argmax[0]))
    finally:
        closed.append(name)
    return text[len(prompt) :]


COUNTS = [3, 0, 9, 1, 4, 4, 0, 6, 2, 5]
PROMPTS = [[i + 1, 7, i] for i in range(len(COUNTS))]


@pytest.mark.parametrize("width", [1, 3, 100])
def test_every_decoding_gets_its_own_results(width: int) -> None:
    engine, closed = Watched(), list[str]()
    lockstep = Lockstep(engine, width)
    decodings = (decode(str(i), p, n, closed) for i, (p, n) in enumerate(zip(PROMPTS, COUNTS, strict=True)))
    found = dict(lockstep.run(decodings))
    assert found == {i: greedy(p, n, ()) for i, (p, n) in enumerate(zip(PROMPTS, COUNTS, strict=True))}
    assert max(engine.sizes) == min(width, sum(n > 0 for n in COUNTS))
    assert (lockstep.passes, lockstep.requests) == (len(engine.sizes), sum(COUNTS))
    assert lockstep.requests == sum(engine.sizes)
    assert sorted(engine.released) == [str(i) for i, n in enumerate(COUNTS) if n]


def test_a_free_place_is_taken_at_once() -> None:
    engine = Watched()
    lockstep = Lockstep(engine, 2)
    assert len(list(lockstep.run(decode(str(n), [1], n, []) for n in (1, 5, 1, 1, 1, 1)))) == 6
    assert engine.sizes == [2, 2, 2, 2, 2]


def test_a_failing_engine_closes_all_decodings() -> None:
    closed: list[str] = []
    running = Lockstep(Watched(fails_at=3), 3).run(decode(str(i), [1, i], 2 + i, closed) for i in range(9))
    assert [next(running)[0], next(running)[0]] == [0, 1] == [int(name) for name in closed]
    with pytest.raises(EngineError, match="no more"):
        next(running)
    assert sorted(closed) == ["0", "1", "2", "3", "4"]  # 5 to 8 never began


def test_closing_the_iterator_closes_all_decodings() -> None:
    closed: list[str] = []
    running = Lockstep(Watched(), 4).run(decode(str(i), [1, i], 1 + i, closed) for i in range(4))
    assert next(running)[0] == 0
    running.close()
    assert sorted(closed) == ["0", "1", "2", "3"]
