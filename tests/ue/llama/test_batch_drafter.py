"""Batched drafting, compared with single-sequence drafting and with transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import BadInput, ModelError
from testbed.llama import group
from testbed.llama.group import LlamaGroup
from testbed.ue.llama.batch_drafter import BatchDrafter
from testbed.ue.llama.drafter import LlamaDrafter
from tests.support.models import TOKENS
from tests.support.reference import Reference
from tests.support.refusals import refuse

PLACES, CONTEXT = 5, 200
KIND = "qwen2-padded"
"""A model with padded rows that must never be drafted."""


@pytest.fixture(scope="module")
def batched(random_ggufs: dict[str, Path]) -> Iterator[BatchDrafter]:
    drafter = BatchDrafter(random_ggufs[KIND], TOKENS, context=CONTEXT, sequences=PLACES, threads=1, kv_type="f32")
    yield drafter
    drafter.close()


@pytest.fixture(scope="module")
def single(random_ggufs: dict[str, Path]) -> Iterator[LlamaDrafter]:
    drafter = LlamaDrafter(
        random_ggufs[KIND], TOKENS, context=CONTEXT, sequences=PLACES, threads=1, kv_type="f32", flash_attention=False
    )  # fmt: skip
    yield drafter
    drafter.close()


def prompts(seed: int, lengths: list[int]) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, TOKENS, length).tolist() for length in lengths]


@settings(max_examples=25)
@given(data=st.data(), seed=st.integers(0, 2**16))
def test_a_batch_drafts_what_each_task_drafts_alone(
    batched: BatchDrafter, single: LlamaDrafter, data: st.DataObject, seed: int
) -> None:
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=PLACES), label="prompts")
    texts = prompts(seed, lengths)
    alone = [single.open(text) for text in texts]
    for task, text in enumerate(texts):
        batched.open(task, text)
    try:
        for _ in range(data.draw(st.integers(1, 4), label="rounds")):
            chosen = st.lists(st.sampled_from(range(len(texts))), min_size=1, unique=True)
            batch, window = data.draw(chosen, label="batch"), data.draw(st.integers(1, 6), label="window")
            drafted = batched.draft(batch, window)
            assert drafted.shape == (len(batch), window) and drafted.max() < TOKENS
            if data.draw(st.booleans(), label="again"):
                assert np.array_equal(batched.draft(batch, window), drafted)
            for task, row in zip(batch, drafted.tolist(), strict=True):
                assert row == [alone[task].draft_one().id for _ in range(window)]
                accepted, token = data.draw(st.integers(0, window)), data.draw(st.integers(0, TOKENS - 1))
                batched.commit(task, accepted, token)
                alone[task].commit(accepted, token)
                assert batched.length(task) == alone[task].length
    finally:
        for task in range(len(texts)):
            batched.release(task)
        for sequence in alone:
            sequence.close()


def test_drafts_are_those_of_transformers(batched: BatchDrafter, references: dict[str, Reference]) -> None:
    texts = prompts(3, [1, 9, 33])
    for task, text in enumerate(texts):
        batched.open(task, text)
    drafted = batched.draft([2, 0, 1], 5)
    for task in range(3):
        batched.release(task)
    for task, row in zip([2, 0, 1], drafted.tolist(), strict=True):
        assert row == references[KIND].greedy(texts[task], 5)


def test_prompts_of_several_passes(
    random_ggufs: dict[str, Path], single: LlamaDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[list[int]] = []
    plain = LlamaGroup._together

    def watched(self: LlamaGroup, rows: list[group.SequenceInput], *, outputs: bool) -> None:
        sizes.append([len(row.ids) for row in rows])
        plain(self, rows, outputs=outputs)

    monkeypatch.setattr(group, "MAX_BATCH", 64)
    monkeypatch.setattr(LlamaGroup, "_together", watched)
    drafter = BatchDrafter(random_ggufs[KIND], TOKENS, context=CONTEXT, sequences=4, threads=1, kv_type="f32")
    texts = prompts(5, [150, 3, 90, 41])
    for task, text in enumerate(texts):
        drafter.open(task, text)
    drafted = drafter.draft(range(4), 3)
    drafter.close()
    assert all(sum(one) <= 64 and len(set(one)) == 1 for one in sizes)
    assert sum(map(sum, sizes)) == sum(map(len, texts)) + 2 * 4
    for text, row in zip(texts, drafted.tolist(), strict=True):
        sequence = single.open(text)
        assert row == [sequence.draft_one().id for _ in range(3)]
        sequence.close()


def test_what_is_refused(batched: BatchDrafter, random_ggufs: dict[str, Path]) -> None:
    refuse(lambda: batched.open(0, []), BadInput, "has 0 ids", "1 to 200")
    refuse(lambda: batched.open(0, [TOKENS]), BadInput, f"below {TOKENS}")
    refuse(lambda: batched.draft([7], 1), BadInput, "unknown task 7")
    refuse(lambda: batched.draft([], 1), BadInput, "at least 1 task")
    batched.open(0, [1, 2])
    try:
        refuse(lambda: batched.open(0, [1]), BadInput, "already")
        refuse(lambda: batched.draft([0, 0], 1), BadInput, "each once")
        refuse(lambda: batched.draft([0], 0), BadInput, "1 token or more")
        refuse(lambda: batched.draft([0], CONTEXT), ModelError, "is full")
        for accepted, token in ((1, 0), (0, TOKENS), (-1, 0)):
            with pytest.raises(ValueError):
                batched.commit(0, accepted, token)
        for task in range(1, PLACES):
            batched.open(task, [1])
        refuse(lambda: batched.open(PLACES, [1]), ModelError, "sequences of the drafter are in use")
    finally:
        for task in range(PLACES):
            batched.release(task)
    refuse(lambda: BatchDrafter(random_ggufs["llama"], 5000), ModelError, "300 rows for a tokenizer of 5000 ids")
