"""Prompts whose last rows lie in blocks of the prefix cache are computed again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from testbed.bs.engines.vllm.prompt import VllmPrompt
from tests.bs.oracle import ask


def test_rows_of_a_request() -> None:
    prompt = VllmPrompt.of(ask("a", [5, 6], [7, 8], hidden=True, logprobs=False))
    assert prompt == VllmPrompt([5, 6, 7, 8], [7, 8, 0], hidden=True, logprobs=False, session="a")
    assert prompt.rows == 3


@given(
    prefix=st.integers(1, 80),
    window=st.integers(0, 70),
    block=st.sampled_from([1, 16, 32]),
    data=st.data(),
)
def test_cuts(prefix: int, window: int, block: int, data: st.DataObject) -> None:
    ids = list(range(100, 100 + prefix + window))
    prompt = VllmPrompt(ids, [*ids[prefix:], 0], hidden=True)
    missing = data.draw(st.integers(0, prompt.rows))
    cuts = prompt.cuts(missing, block)
    assert [token for cut in cuts for token in cut.facing] == prompt.facing[:missing]
    covered = [p for cut in cuts for p in range(len(cut.ids) - cut.rows, len(cut.ids))]
    assert covered == list(range(prefix - 1, prefix - 1 + missing))
    for cut in cuts:
        assert cut.ids == ids[: len(cut.ids)]
        assert cut.hidden and not cut.logprobs
        from_cache_at_most = (len(cut.ids) - 1) // block * block
        assert len(cut.ids) - cut.rows >= from_cache_at_most, "a row may be served from the cache"
    blocks = {position // block for position in covered}
    assert len(cuts) == len(blocks)
