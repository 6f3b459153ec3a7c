"""Hybrids on a random model: after windows of index and model in any order, the model drafts as a fresh one does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.ue.drafters.hybrid import HYBRID_FLOOR, HybridDrafter
from testbed.ue.drafters.index import IndexDrafter, IndexRule
from testbed.ue.drafters.lookup import NgramLookup
from testbed.ue.llama.drafter import LlamaDrafter
from tests.support.models import TOKENS

PROMPT = [5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6, 7]


@pytest.fixture(scope="module")
def model(random_ggufs: dict[str, Path]) -> Iterator[LlamaDrafter]:
    path = next(iter(random_ggufs.values()))
    loaded = LlamaDrafter(path, TOKENS, kv_type="f32", flash_attention=False, threads=1, context=256)
    yield loaded
    loaded.close()


@settings(max_examples=20, deadline=None)
@given(rounds=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4), st.integers(5, 9)), min_size=1, max_size=10))
def test_the_model_catches_up(model: LlamaDrafter, rounds: list[tuple[int, int, int]]) -> None:
    index = IndexDrafter(model.vocab_size, model.context, "ngram", lambda: NgramLookup(3, 2), IndexRule(2, 2))
    hybrid = HybridDrafter(index, model).open(PROMPT)
    text = list(PROMPT)
    assert hybrid.passes() == (len(PROMPT), 0)
    behind = 0
    try:
        for most, kept, token in rounds:
            looked_up = index.open(text)
            by_index = looked_up.match >= HYBRID_FLOOR and looked_up.ready()
            other = None if by_index else model.open(text)
            ids: list[int] = []
            while len(ids) < most and hybrid.ready():
                drafted = hybrid.draft_one()
                expected = looked_up.draft_one() if other is None else other.draft_one()
                assert drafted.id == expected.id
                if other is not None:
                    assert drafted.top1 == pytest.approx(expected.top1, abs=1e-4)
                    np.testing.assert_allclose(drafted.hidden, expected.hidden, atol=5e-3)
                assert drafted.hidden.shape == (model.hidden_size,)
                ids.append(drafted.id)
            if other is not None:
                other.close()
            assert hybrid.passes() == ((0, 0) if by_index else (behind, len(ids)))
            accepted = min(kept, len(ids))
            hybrid.commit(accepted, token)
            text += [*ids[:accepted], token]
            behind = behind + accepted + 1 if by_index else 0
            assert hybrid.length == len(text)
    finally:
        hybrid.close()
