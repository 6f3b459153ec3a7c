"""Passes put together from submitted rounds: order, room, one prompt's share, and rounds that join between passes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.bs.engines.base import VerifyRequest, VerifyResult
from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.errors import BadInput, EngineError
from tests.bs.oracle import ask

VOCAB = 50
ROUNDS = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 300), st.integers(0, 12)), min_size=1, max_size=12)
"""Session, length of the prefix, drafted tokens."""


class Watched(SyntheticEngine):
    """Records the passes: session, beginning and end of what was computed."""

    def __init__(self, **options: int | None) -> None:
        super().__init__(vocab_size=VOCAB, hidden_size=4, **options)  # type: ignore[arg-type]
        self.passes: list[list[tuple[str, int]]] = []
        self.fails = False

    def compute(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
        if self.fails:
            raise EngineError("out of memory")
        self.passes.append([(request.session, len(request.prefix) + len(request.draft)) for request in batch])
        return super().compute(batch)


def some(session: int, length: int, drafted: int) -> VerifyRequest:
    return ask(str(session), [session + 1] * length, [7] * drafted, hidden=False, logprobs=False)


@given(rounds=ROUNDS, chunk=st.none() | st.integers(16, 90), room=st.integers(20, 400), joining=st.integers(1, 5))
def test_every_round_is_finished_once_within_the_bounds(
    rounds: list[tuple[int, int, int]], chunk: int | None, room: int, joining: int
) -> None:
    """Rounds are submitted a few before each pass; results are those of one pass over the whole round."""
    engine, own = Watched(max_batch_tokens=room, chunk_tokens=chunk), SyntheticEngine(vocab_size=VOCAB, hidden_size=4)
    waiting, finished, computed = [some(*one) for one in rounds], list[int](), dict[int, int]()
    order = {id(request): place for place, request in enumerate(waiting)}
    while len(finished) < len(rounds):
        for _ in range(min(joining, len(waiting))):
            engine.submit(waiting.pop(0))
        shares = engine.step()
        assert shares and [order[id(s.request)] for s in shares] == sorted(order[id(s.request)] for s in shares)
        assert len({share.request.session for share in shares}) == len(shares)
        assert sum(share.new for share in shares) <= room or len(shares) == 1
        for share in shares:
            key, total = id(share.request), len(share.request.prompt)
            assert share.new > 0 and share.cached >= computed.get(key, 0)
            computed[key] = share.cached + share.new
            prefix = min(computed[key], len(share.request.prefix)) - share.cached
            assert chunk is None or prefix <= chunk
            assert (share.result is not None) == (computed[key] == total)
            if share.result is not None:
                finished.append(key)
                assert share.result.argmax.tolist() == own.verify([share.request])[0].argmax.tolist()
    assert len(set(finished)) == len(rounds) and not engine.step()


def test_a_long_prompt_does_not_hold_back_rounds_that_come_later() -> None:
    engine = Watched(max_batch_tokens=100, chunk_tokens=64)
    engine.submit(long := some(0, 200, 3))
    ends = []
    for number in range(1, 5):
        engine.submit(short := some(number, 5, 4))
        shares = {id(share.request): share for share in engine.step()}
        assert shares[id(short)].result is not None
        ends.append(shares[id(long)].result is not None)
    assert ends == [False, False, False, True]
    assert [dict(one)["0"] for one in engine.passes] == [64, 128, 192, 203]


@pytest.mark.parametrize("longs", [1, 3])
def test_prompts_that_fill_passes_leave_room_for_later_rounds(longs: int) -> None:
    """The bound of a prompt's share is a whole pass. A short round before each pass is finished in it or the next."""
    engine = Watched(max_batch_tokens=100, chunk_tokens=100)
    waiting = {str(number) for number in range(longs)}
    prompts = set(waiting)
    for number in range(longs):
        engine.submit(some(number, 400, 3))
    for number in range(10, 10 + 8 * longs):
        engine.submit(some(number, 20, 4))
        shares = engine.step()
        waiting = (waiting | {str(number)}) - {share.request.session for share in shares if share.result}
        assert waiting - prompts <= {str(number)}
        assert 84 < sum(share.new for share in shares) <= 100 or not waiting & prompts
    assert not waiting & prompts


def test_verify_steps_until_its_batch_is_finished_and_reports_what_was_cached_at_first() -> None:
    class Telling(Watched):
        def compute(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
            return [
                VerifyResult(r.argmax, r.margin, r.draft_gap, cached=self.cached(request))
                for request, r in zip(batch, super().compute(batch), strict=True)
            ]

    engine = Telling(max_batch_tokens=100, chunk_tokens=64)
    results = engine.verify([some(0, 200, 3), some(1, 5, 4)])
    assert [result.cached for result in results] == [0, 0] and len(engine.passes) == 4
    (again,) = engine.verify([some(0, 210, 1)])
    assert again.cached == 200
    same = some(2, 9, 1)
    assert [r.argmax.tolist() for r in engine.verify([same, same])] == [engine.verify([same])[0].argmax.tolist()] * 2


def test_a_failed_pass_drops_what_was_submitted() -> None:
    engine = Watched(chunk_tokens=64)
    engine.submit(some(0, 200, 3))
    engine.step()
    engine.fails = True
    engine.submit(some(1, 5, 4))
    with pytest.raises(EngineError, match="out of memory"):
        engine.step()
    engine.fails = False
    assert engine.step() == []
    assert engine.verify([some(0, 200, 3)])[0].argmax.shape == (4,)
    assert engine.passes[1:] == [[("0", 128)], [("0", 192)], [("0", 203)]]


def test_a_released_session_leaves_with_its_round() -> None:
    engine = Watched(chunk_tokens=64)
    engine.submit(some(0, 200, 3))
    engine.step()
    engine.submit(some(1, 5, 4))
    engine.release("0")
    engine.release("unknown")
    assert [share.request.session for share in engine.step()] == ["1"] and engine.step() == []


def test_a_batch_with_a_bad_request_is_not_submitted() -> None:
    engine = Watched()
    with pytest.raises(BadInput, match="outside the vocabulary"):
        engine.verify([some(0, 5, 1), some(VOCAB, 5, 1)])
    assert engine.step() == [] and engine.verify([]) == []
    np.testing.assert_array_equal(engine.passes, [])
