"""Drafting with llama.cpp, compared with transformers in float32."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import BadInput, ModelError
from testbed.llama.context import LlamaContext
from testbed.ue.drafters.base import Drafter, DraftToken
from testbed.ue.llama.drafter import LlamaDrafter, LlamaSequence
from tests.support.models import KINDS, PADDED_ROWS, TOKENS, make_model
from tests.support.reference import Reference
from tests.support.refusals import refuse

PROMPT = [7, 250, 3, 3, 199, 42, 11]
EXACT: dict[str, Any] = {"kv_type": "f32", "flash_attention": False, "threads": 1}
HIDDEN_TOLERANCE = 5e-3
"""Rounding of float16 values below 8, and of sums in float32."""


@pytest.fixture(scope="module")
def drafters(random_ggufs: dict[str, Path]) -> Iterator[dict[str, LlamaDrafter]]:
    """One drafter of each kind, with four sequences and exact arithmetic."""
    loaded = {kind: LlamaDrafter(path, TOKENS, **EXACT) for kind, path in random_ggufs.items()}
    yield loaded
    for drafter in loaded.values():
        drafter.close()


def draft(sequence: LlamaSequence, count: int) -> list[DraftToken]:
    return [sequence.draft_one() for _ in range(count)]


def fresh(drafter: Drafter, prefix: list[int], count: int) -> list[DraftToken]:
    """The draft of a sequence that starts from `prefix`."""
    sequence = drafter.open(prefix)
    try:
        return [sequence.draft_one() for _ in range(count)]
    finally:
        sequence.close()


def assert_same(drafted: list[DraftToken], expected: list[DraftToken]) -> None:
    assert [t.id for t in drafted] == [t.id for t in expected]
    for token, other in zip(drafted, expected, strict=True):
        assert token.top1 == pytest.approx(other.top1, abs=1e-4)
        np.testing.assert_allclose(token.hidden, other.hidden, atol=HIDDEN_TOLERANCE)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of tokens of every computation."""
    seen: list[int] = []
    compute = LlamaContext.compute

    def counting(self: LlamaContext, sequence: int, position: int, ids: list[int], *, outputs: bool) -> None:
        seen.append(len(ids))
        compute(self, sequence, position, ids, outputs=outputs)

    monkeypatch.setattr(LlamaContext, "compute", counting)
    return seen


@pytest.mark.parametrize(("keep", "again"), [(True, 10), (False, 103)])
def test_a_conversation_that_comes_back_computes_its_new_turn(
    random_ggufs: dict[str, Path], computed: list[int], keep: bool, again: int
) -> None:
    drafter = LlamaDrafter(random_ggufs["llama"], TOKENS, sequences=2, keep=keep, **EXACT)
    plain = LlamaDrafter(random_ggufs["llama"], TOKENS, sequences=1, **EXACT)
    text = [int(i) for i in np.random.default_rng(0).integers(0, TOKENS, 90)]
    for _ in range(3):
        sequence = drafter.open(text)
        draft(sequence, 4)
        sequence.commit(2, 5)
        sequence.draft_one()
        text = [*sequence._ids[: sequence.length], *range(10)]
        sequence.close()
        fresh(drafter, text[::-1], 1)  # another conversation
        computed.clear()
        drafted = fresh(drafter, text, 1)
        assert sum(computed) == again
        assert_same(drafted, fresh(plain, text, 1))
        again += 0 if keep else 13
    for one in (drafter, plain):
        one.close()


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_transformers_greedy_tokens(
    kind: str, drafters: dict[str, LlamaDrafter], references: dict[str, Reference]
) -> None:
    ids = [t.id for t in fresh(drafters[kind], PROMPT, 32)]
    assert ids == references[kind].greedy(PROMPT, 32)


def test_padded_rows_would_be_chosen_if_they_were_not_masked(
    random_ggufs: dict[str, Path], random_models: dict[str, Path]
) -> None:
    drafter = LlamaDrafter(random_ggufs["qwen2-padded"], **EXACT)
    rows = drafter.vocab_size
    ids = [t.id for t in fresh(drafter, PROMPT, 32)]
    drafter.close()
    assert rows == TOKENS + PADDED_ROWS
    assert max(ids) >= TOKENS
    assert ids == Reference(random_models["qwen2-padded"], rows).greedy(PROMPT, 32)


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_and_states_are_those_of_transformers(
    kind: str, drafters: dict[str, LlamaDrafter], references: dict[str, Reference]
) -> None:
    sequence = drafters[kind].open(PROMPT, distributions=True)
    drafted = draft(sequence, 12)
    sequence.close()
    logits, hidden = references[kind].outputs(PROMPT + [t.id for t in drafted])
    first = len(PROMPT) - 1
    for i, token in enumerate(drafted):
        row = torch.from_numpy(logits[first + i]).double()
        probs = row.softmax(-1)
        top = probs.topk(2).values
        assert token.id == int(row.argmax())
        assert token.top1 == pytest.approx(float(top[0]), abs=1e-5)
        assert token.margin == pytest.approx(float(top[0] - top[1]), abs=1e-5)
        assert token.entropy == pytest.approx(float(torch.distributions.Categorical(probs).entropy()), abs=1e-4)
        assert token.logit_std == pytest.approx(float(row.std(correction=0)), abs=1e-4)
        assert token.probs is not None
        assert token.probs.dtype == np.float32
        np.testing.assert_allclose(token.probs, probs.numpy(), atol=1e-5)
        assert token.hidden.dtype == np.float16
        np.testing.assert_allclose(token.hidden, hidden[first + i], atol=HIDDEN_TOLERANCE)


def test_distributions_come_only_where_asked_and_keep_their_values(drafters: dict[str, LlamaDrafter]) -> None:
    sequence = drafters["llama"].open(PROMPT, distributions=True)
    first = sequence.draft_one()
    assert first.probs is not None
    kept_probs, kept_hidden = first.probs.copy(), first.hidden.copy()
    draft(sequence, 3)
    sequence.close()
    np.testing.assert_array_equal(first.probs, kept_probs)
    np.testing.assert_array_equal(first.hidden, kept_hidden)
    assert fresh(drafters["llama"], PROMPT, 1)[0].probs is None


@pytest.mark.parametrize("kind", ["llama", "qwen2-padded", "qwen3-tied"])
@pytest.mark.parametrize("accepted", range(6))
def test_rollback_continues_as_a_fresh_sequence(kind: str, accepted: int, drafters: dict[str, LlamaDrafter]) -> None:
    drafter = drafters[kind]
    sequence = drafter.open(PROMPT)
    window = [t.id for t in draft(sequence, 5)]
    token = next(i for i in (17, 18) if i not in window)
    sequence.commit(accepted, token)
    prefix = [*PROMPT, *window[:accepted], token]
    assert sequence.length == len(prefix)
    continued = draft(sequence, 6)
    sequence.close()
    assert_same(continued, fresh(drafter, prefix, 6))


rounds = st.lists(
    st.tuples(st.integers(0, 6), st.floats(0, 1), st.integers(0, TOKENS - 1)),
    min_size=1,
    max_size=8,
)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(rounds=rounds)
def test_any_history_of_commits_leaves_the_state_of_its_prefix(
    drafters: dict[str, LlamaDrafter], references: dict[str, Reference], rounds: list[tuple[int, float, int]]
) -> None:
    """Windows of any length, rounds without a draft, everything accepted, nothing accepted."""
    sequence = drafters["llama"].open(PROMPT)
    prefix = list(PROMPT)
    for window, share, token in rounds:
        drafted = [t.id for t in draft(sequence, window)]
        accepted = round(share * window)
        sequence.commit(accepted, token)
        prefix += [*drafted[:accepted], token]
        assert sequence.length == len(prefix)
    drafted_now = draft(sequence, 3)
    sequence.close()
    logits, hidden = references["llama"].outputs(prefix + [t.id for t in drafted_now])
    for i, drafted_token in enumerate(drafted_now):
        assert drafted_token.id == int(logits[len(prefix) - 1 + i].argmax())
        np.testing.assert_allclose(drafted_token.hidden, hidden[len(prefix) - 1 + i], atol=HIDDEN_TOLERANCE)


@pytest.mark.parametrize(("accepted", "computed"), [(0, [1]), (3, [1]), (4, [1]), (5, [2])])
def test_a_commit_computes_only_what_was_never_computed(
    accepted: int, computed: list[int], drafters: dict[str, LlamaDrafter], monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []
    original = LlamaContext._pass

    def counted(self: LlamaContext, sequence: int, position: int, ids: list[int], *, outputs: bool) -> None:
        passes.append(len(ids))
        original(self, sequence, position, ids, outputs=outputs)

    monkeypatch.setattr(LlamaContext, "_pass", counted)
    sequence = drafters["llama"].open(PROMPT)
    assert passes == [len(PROMPT) - 1]
    draft(sequence, 5)
    assert passes[1:] == [1] * 5
    passes.clear()
    sequence.commit(accepted, 9)
    assert passes == []
    sequence.draft_one()
    sequence.close()
    assert passes == computed


@settings(max_examples=15, deadline=None, derandomize=True)
@given(schedule=st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=4, max_size=40))
def test_interleaved_sequences_do_not_disturb_each_other(
    drafters: dict[str, LlamaDrafter], schedule: list[tuple[int, bool]]
) -> None:
    drafter = drafters["qwen3"]
    prefixes = [[place + 1, 100 + place, *PROMPT[: place + 2]] for place in range(4)]
    sequences = [drafter.open(prefix) for prefix in prefixes]
    windows: list[list[int]] = [[], [], [], []]
    for place, commits in schedule:
        if commits:
            accepted = len(windows[place]) // 2
            sequences[place].commit(accepted, 5)
            prefixes[place] += [*windows[place][:accepted], 5]
            windows[place] = []
        else:
            windows[place].append(sequences[place].draft_one().id)
    continued = [draft(sequence, 3) for sequence in sequences]
    for sequence in sequences:
        sequence.close()
    for prefix, window, tokens in zip(prefixes, windows, continued, strict=True):
        assert_same(tokens, fresh(drafter, prefix + window, 3))


def test_a_freed_place_keeps_nothing_of_its_last_sequence(drafters: dict[str, LlamaDrafter]) -> None:
    drafter = drafters["llama"]
    expected = fresh(drafter, PROMPT, 4)
    sequences = [drafter.open([i + 1] * 50) for i in range(4)]
    refuse(lambda: drafter.open(PROMPT), ModelError, "sequences of the drafter are in use")
    sequences[2].close()
    sequences[2].close()
    assert_same(fresh(drafter, PROMPT, 4), expected)
    again = drafter.open(PROMPT)
    refuse(lambda: drafter.open(PROMPT), ModelError, "sequences of the drafter are in use")
    assert_same(draft(again, 4), expected)
    for sequence in [*sequences, again]:
        sequence.close()


def test_sequences_may_be_used_from_threads(drafters: dict[str, LlamaDrafter]) -> None:
    drafter = drafters["llama"]
    prompts = [[i + 1, 2, 3] for i in range(4)]
    expected = [fresh(drafter, prompt, 25) for prompt in prompts]
    drafted: dict[int, list[DraftToken]] = {}

    def work(i: int) -> None:
        drafted[i] = fresh(drafter, prompts[i], 25)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    for i in range(4):
        assert_same(drafted[i], expected[i])


def test_a_long_prompt_is_prefilled_in_chunks(tmp_path: Path) -> None:
    from testbed.models.export import export_gguf

    directory = make_model("llama", tmp_path / "long", 9, max_position_embeddings=2048)
    export_gguf(directory, tmp_path / "long.gguf")
    prompt = np.random.default_rng(0).integers(0, TOKENS, 1100).tolist()
    drafter = LlamaDrafter(tmp_path / "long.gguf", context=1300, sequences=2, **EXACT)
    other = drafter.open(PROMPT)
    drafted = fresh(drafter, prompt, 5)
    other.close()
    drafter.close()
    reference = Reference(directory, TOKENS)
    assert [t.id for t in drafted] == reference.greedy(prompt, 5)
    np.testing.assert_allclose(drafted[0].hidden, reference.outputs(prompt)[1][-1], atol=HIDDEN_TOLERANCE)


def test_default_options_stay_near_transformers(
    random_ggufs: dict[str, Path], references: dict[str, Reference]
) -> None:
    """An f16 cache, as devices have it."""
    drafter = LlamaDrafter(random_ggufs["qwen2"], TOKENS, threads=1)
    token = fresh(drafter, PROMPT, 1)[0]
    assert (drafter.vocab_size, drafter.hidden_size, drafter.context) == (TOKENS, 128, 512)
    drafter.close()
    logits, hidden = references["qwen2"].outputs(PROMPT)
    assert token.id == int(logits[-1].argmax())
    np.testing.assert_allclose(token.hidden, hidden[-1], atol=0.05)


def test_the_context_ends_where_it_says(random_ggufs: dict[str, Path]) -> None:
    drafter = LlamaDrafter(random_ggufs["llama"], context=40, sequences=1, **EXACT)
    prompt = list(range(1, 41))
    refuse(lambda: drafter.open([*prompt, 41]), BadInput, "41 tokens", "40")
    sequence = drafter.open(prompt)
    sequence.draft_one()
    refuse(sequence.draft_one, ModelError, "40 positions", "full")
    sequence.commit(0, 5)
    assert sequence.length == 41
    refuse(sequence.draft_one, ModelError, "full")
    sequence.close()
    sequence = drafter.open(prompt[:38])
    assert_same(draft(sequence, 3), fresh_with(random_ggufs["llama"], prompt[:38], 3))
    refuse(sequence.draft_one, ModelError, "full")
    drafter.close()


def fresh_with(path: Path, prefix: list[int], count: int) -> list[DraftToken]:
    drafter = LlamaDrafter(path, sequences=1, **EXACT)
    try:
        return fresh(drafter, prefix, count)
    finally:
        drafter.close()


def test_a_failed_pass_changes_nothing(drafters: dict[str, LlamaDrafter], monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = drafters["llama"]
    sequence = drafter.open(PROMPT)
    ids = [t.id for t in draft(sequence, 2)]
    library = drafter._llama._lib
    with monkeypatch.context() as patch:
        patch.setattr(library, "llama_decode", lambda *_: 1)
        refuse(sequence.draft_one, ModelError, "failed to compute 1 tokens")
        refuse(lambda: drafter.open(PROMPT), ModelError, "failed to compute")
    with monkeypatch.context() as patch:
        patch.setattr(LlamaContext, "logits", lambda self: np.full(self.rows, np.nan, np.float32))
        refuse(sequence.draft_one, ModelError, "not numbers")
    continued = draft(sequence, 3)
    others = [drafter.open(PROMPT) for _ in range(3)]
    for each in [sequence, *others]:
        each.close()
    assert_same(continued, fresh(drafter, PROMPT + ids, 3))


def test_a_failed_second_pass_drops_what_the_first_computed(
    drafters: dict[str, LlamaDrafter], monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = drafters["llama"]
    sequence = drafter.open(PROMPT)
    for token in (4, 5, 6, 7):
        sequence.commit(0, token)
    library = drafter._llama._lib
    decode, calls = library.llama_decode, []

    def fail_second(*args: object) -> int:
        calls.append(args)
        return 1 if len(calls) == 2 else decode(*args)

    with monkeypatch.context() as patch:
        patch.setattr(library, "llama_decode", fail_second)
        refuse(sequence.draft_one, ModelError, "failed to compute")
    continued = draft(sequence, 3)
    sequence.close()
    assert len(calls) == 2
    assert_same(continued, fresh(drafter, [*PROMPT, 4, 5, 6, 7], 3))


def test_prompts_that_cannot_be_drafted_from(drafters: dict[str, LlamaDrafter]) -> None:
    drafter = drafters["qwen2-padded"]
    refuse(lambda: drafter.open([]), BadInput, "empty")
    refuse(lambda: drafter.open([1, TOKENS]), BadInput, "vocabulary of 300")
    refuse(lambda: drafter.open([-1]), BadInput, "vocabulary")
    refuse(lambda: drafter.open([1] * 513), BadInput, "513", "512")


def test_commits_that_cannot_be(drafters: dict[str, LlamaDrafter]) -> None:
    sequence = drafters["llama"].open(PROMPT)
    draft(sequence, 2)
    for accepted, token in [(-1, 0), (3, 0), (0, -1), (0, TOKENS)]:
        with pytest.raises(ValueError, match=r"accepted of 2|outside"):
            sequence.commit(accepted, token)
    assert sequence.length == len(PROMPT)
    sequence.close()
    refuse(sequence.draft_one, ModelError, "closed")
    refuse(lambda: sequence.commit(0, 1), ModelError, "closed")


def test_a_closed_drafter_is_refused_not_read(random_ggufs: dict[str, Path]) -> None:
    drafter = LlamaDrafter(random_ggufs["llama"], **EXACT)
    sequence = drafter.open(PROMPT)
    draft(sequence, 3)
    drafter.close()
    drafter.close()
    sequence.commit(0, 1)
    refuse(sequence.draft_one, ModelError, "closed")
    refuse(lambda: drafter.open(PROMPT), ModelError, "closed")
    sequence.close()


def test_a_sequence_drafts_what_is_chosen_for_it_and_goes_on_from_there(drafters: dict[str, LlamaDrafter]) -> None:
    drafter, seen = drafters["llama"], []

    def third(probs: np.ndarray, position: int) -> int:
        seen.append(probs)
        return int(np.argsort(-probs)[2])

    sequence = drafter.open(PROMPT, choose=third)
    first, second = sequence.draft_one(), sequence.draft_one()
    plain = drafter.open(PROMPT, distributions=True)
    own = plain.draft_one()
    assert own.probs is not None
    np.testing.assert_allclose(seen[0], own.probs, atol=1e-6)
    assert first.id == int(np.argsort(-own.probs)[2]) != own.id and first.probs is None
    follows = drafter.open([*PROMPT, first.id], distributions=True)
    own = follows.draft_one()
    assert own.probs is not None
    np.testing.assert_allclose(seen[1], own.probs, atol=1e-4)
    assert second.id == int(np.argsort(-own.probs)[2])
    for used in (sequence, plain, follows):
        used.close()
