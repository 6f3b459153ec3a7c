"""The synthetic target: a pure function of the prefix, whatever the window."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.errors import BadInput
from testbed.synthetic import next_token
from tests.bs.oracle import ask

IDS = st.lists(st.integers(0, 49), min_size=1, max_size=30)


@given(prefix=IDS, draft=IDS, seed=st.integers(0, 3))
def test_a_window_says_what_single_tokens_say(prefix: list[int], draft: list[int], seed: int) -> None:
    engine = SyntheticEngine(vocab_size=50, hidden_size=8, seed=seed)
    (window,) = engine.verify([ask("a", prefix, draft)])
    steps = engine.verify([ask("b", [*prefix, *draft[:i]]) for i in range(len(draft) + 1)])
    assert window.argmax.tolist() == [int(step.argmax[0]) for step in steps]
    assert window.argmax.tolist() == [next_token([*prefix, *draft[:i]], 50, seed) for i in range(len(draft) + 1)]
    for name in ("margin", "hidden", "logprobs"):
        np.testing.assert_array_equal(getattr(window, name), np.concatenate([getattr(step, name) for step in steps]))


@given(prefix=IDS, draft=IDS)
def test_numbers_agree_with_the_distribution(prefix: list[int], draft: list[int]) -> None:
    (result,) = SyntheticEngine(vocab_size=50, hidden_size=8).verify([ask("a", prefix, draft)])
    assert result.hidden is not None and result.hidden.shape == (len(draft) + 1, 8)
    assert result.logprobs is not None and result.logprobs.shape == (len(draft) + 1, 50)
    assert (result.argmax.dtype, result.margin.dtype, result.draft_gap.dtype) == (np.int32, np.float32, np.float32)
    ordered = np.sort(result.logprobs, axis=-1)
    np.testing.assert_allclose(np.exp(result.logprobs).sum(-1), 1.0, rtol=1e-5)
    assert result.argmax.tolist() == result.logprobs.argmax(-1).tolist()
    np.testing.assert_allclose(result.margin, ordered[:, -1] - ordered[:, -2], atol=1e-4)
    faced = result.logprobs[np.arange(len(draft)), draft]
    np.testing.assert_allclose(result.draft_gap, ordered[:-1, -1] - faced, atol=1e-4)
    plain = SyntheticEngine(vocab_size=50).verify([ask("a", prefix, draft, hidden=False, logprobs=False)])[0]
    assert plain.hidden is None and plain.logprobs is None
    assert plain.margin.tolist() == result.margin.tolist()


def test_the_seed_is_the_language() -> None:
    request = ask("a", [1, 2, 3], list(range(40)))
    texts = {tuple(SyntheticEngine(seed=seed).verify([request])[0].argmax.tolist()) for seed in (0, 1, 2)}
    assert len(texts) == 3


def test_bad_input() -> None:
    engine = SyntheticEngine(vocab_size=10, max_model_len=20)
    for prefix, complaint in (([], "empty"), ([10], "outside"), ([1] * 20, "21 positions, but the target takes 20")):
        with pytest.raises(BadInput, match=complaint):
            engine.verify([ask("a", prefix)])
    with pytest.raises(BadInput, match="4 tokens or more"):
        SyntheticEngine(vocab_size=3)


def test_it_is_instantaneous_however_long_the_prefix() -> None:
    engine = SyntheticEngine(max_model_len=100_000, max_batch_tokens=100_000)
    requests = [ask(str(i), [1] * 50_000, [2] * 8, hidden=False, logprobs=False) for i in range(16)]
    engine.verify(requests)
    start = time.perf_counter()
    engine.verify(requests)
    assert time.perf_counter() - start < 0.25
