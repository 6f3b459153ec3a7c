"""Kept passes: the same answers as the models themselves, and no pass twice."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.bs.engines.base import VerifyRequest, VerifyResult
from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.errors import BadInput
from testbed.experiments.runs.memo import MemoEngine
from testbed.experiments.runs.memo_drafter import MemoDrafter, depends_on_passes
from testbed.models.bundle import bundled
from testbed.models.export import export_gguf
from testbed.ue.drafters.base import Drafter
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.llama.drafter import LlamaDrafter

VOCAB = 16
ids = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4)


def request(prefix: list[int], draft: list[int], **more: bool) -> VerifyRequest:
    return VerifyRequest("s", np.array(prefix, np.int32), np.array(draft, np.int32), **more)


def same(a: VerifyResult, b: VerifyResult) -> bool:
    return all(np.array_equal(getattr(a, n), getattr(b, n)) for n in ("argmax", "margin", "draft_gap"))


@given(st.lists(st.tuples(ids, st.lists(st.integers(0, VOCAB - 1), max_size=4)), min_size=1, max_size=30))
def test_results_are_the_engines_own(requests: list[tuple[list[int], list[int]]]) -> None:
    engine = SyntheticEngine(vocab_size=VOCAB)
    memo = MemoEngine(engine)
    for prefix, draft in requests:
        batch = [request(prefix, draft), request(prefix, draft[:1])]
        for found, own in zip(memo.verify(batch), engine.verify(batch), strict=True):
            assert same(found, own)


def test_what_was_asked_before_costs_no_pass() -> None:
    memo = MemoEngine(SyntheticEngine(vocab_size=VOCAB))
    memo.verify([request([1, 2], [3, 4, 5])])
    memo.verify([request([1, 2], [3, 4, 5]), request([1, 2, 3], [4])])  # part of what was seen
    assert (memo.asked, memo.passed) == (3, 1)
    memo.verify([request([1, 2], [3, 4, 6])])  # the gap to another draft was never computed
    assert memo.passed == 2


def test_distributions_are_never_taken_from_memory() -> None:
    memo = MemoEngine(SyntheticEngine(vocab_size=VOCAB))
    memo.verify([request([1], [2])])
    (with_distributions,) = memo.verify([request([1], [2], logprobs=True)])
    assert with_distributions.logprobs is not None


@given(st.lists(st.tuples(ids, st.lists(st.integers(0, VOCAB - 1), max_size=4)), min_size=1, max_size=30))
def test_hidden_states_that_a_judge_sees_are_the_engines_own(requests: list[tuple[list[int], list[int]]]) -> None:
    engine = SyntheticEngine(vocab_size=VOCAB)
    memo = MemoEngine(engine)
    for prefix, draft in requests * 2:
        (found,) = memo.verify([request(prefix, draft, hidden=True)])
        (own,) = engine.verify([request(prefix, draft, hidden=True)])
        assert same(found, own)
        assert found.hidden is not None and own.hidden is not None and found.hidden.shape == own.hidden.shape
        missed = np.flatnonzero(np.array(draft, np.int64) != own.argmax[:-1])
        for rows in (missed, missed + 1):
            np.testing.assert_array_equal(found.hidden[rows], own.hidden[rows])
    assert memo.passed <= len(requests)


@pytest.mark.parametrize("ahead", [False, True])
def test_hidden_states_cost_a_pass_where_no_pass_brought_them(ahead: bool) -> None:
    memo = MemoEngine(SyntheticEngine(vocab_size=VOCAB), hidden=ahead)
    wrong = 1 + int(memo.verify([request([1], [])])[0].argmax[0]) % (VOCAB - 1)
    memo.verify([request([1], [wrong])])
    memo.verify([request([1], [wrong], hidden=True)])
    assert memo.passed == (2 if ahead else 3)
    memo.verify([request([1], [wrong], hidden=True)])
    assert memo.passed == (2 if ahead else 3)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6), st.integers(0, VOCAB - 1)), max_size=12), st.booleans())
def test_drafts_are_the_drafters_own(rounds: list[tuple[int, int, int]], twice: bool) -> None:
    def drafter() -> SyntheticDrafter:
        return SyntheticDrafter(vocab_size=VOCAB, alpha=0.5)

    memo = MemoDrafter(drafter())
    for _ in range(2 if twice else 1):
        own, kept = drafter().open([1, 2, 3]), memo.open([1, 2, 3])
        for window, accepted, token in rounds:
            drafted = [(own.draft_one().id, kept.draft_one().id) for _ in range(window)]
            assert all(a == b for a, b in drafted)
            own.commit(min(accepted, window), token)
            kept.commit(min(accepted, window), token)
            assert own.length == kept.length
        kept.close()
    if twice:
        assert memo.asked >= 2 * memo.drafted


def test_what_was_drafted_before_is_not_drafted_again() -> None:
    memo = MemoDrafter(SyntheticDrafter(vocab_size=VOCAB, alpha=0.5, max_sequences=1))
    long = memo.open([5])
    first = [long.draft_one().id for _ in range(8)]
    long.close()
    again = memo.open([5])
    assert [again.draft_one().id for _ in range(8)] == first
    assert (memo.asked, memo.drafted) == (16, 8)
    again.draft_one()
    assert memo.drafted == 9


def test_prompts_that_cannot_be_are_the_drafters_to_refuse() -> None:
    memo = MemoDrafter(SyntheticDrafter(vocab_size=VOCAB, alpha=0.5, context=4))
    with pytest.raises(BadInput, match="empty"):
        memo.open([])
    with pytest.raises(BadInput, match="context"):
        memo.open([1, 2, 3, 4])
    sequence = memo.open([1])
    sequence.draft_one()
    with pytest.raises(ValueError, match="accepted of 1 drafted"):
        sequence.commit(2, 0)
    with pytest.raises(ValueError, match="vocabulary"):
        sequence.commit(0, VOCAB)


def test_a_sequence_whose_tokens_are_chosen_is_the_drafters_own() -> None:
    memo = MemoDrafter(SyntheticDrafter(vocab_size=64, alpha=0.5))
    for token in (2, 3):
        sequence = memo.open([1, 2, 3], choose=lambda _, __, token=token: token)
        assert [sequence.draft_one().id for _ in range(2)] == [token, token]
        sequence.close()
    assert memo.asked == 0 and not memo.tokens


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled drafter at 4 bits."""
    path = tmp_path_factory.mktemp("drafter") / "q4.gguf"
    export_gguf(bundled().require("drafter_hf"), path, "q4_0")
    return path


def drafts(drafter: Drafter, prompt: list[int], choices: list[tuple[int, int, int]]) -> list[tuple[int, bytes]]:
    """Ids and hidden states of windows, each with some drafts accepted and a token after them."""
    sequence, found = drafter.open(prompt), []
    for window, accepted, token in choices:
        tokens = [sequence.draft_one() for _ in range(window)]
        found += [(one.id, one.hidden.tobytes()) for one in tokens]
        sequence.commit(min(accepted, window), token)
    sequence.close()
    return found


def test_a_quantised_drafter_drafts_in_memory_what_it_drafts_in_a_real_run(quantised: Path) -> None:
    """Its numbers depend on the passes of the ids before, on many CPUs: the prefix is not enough."""
    assert depends_on_passes(str(quantised)) and not depends_on_passes("synthetic")
    assert not depends_on_passes(str(bundled().require("drafter")))
    prompt, rng = list(range(20, 43)), random.Random(7)
    runs = [
        [(window, rng.choice([1, window, window, window]), rng.randrange(300)) for _ in range(30)] for window in (5, 4)
    ]
    drafter = LlamaDrafter(quantised, threads=1)
    own = [drafts(drafter, prompt, choices) for choices in runs]
    memo = MemoDrafter(drafter, by_passes=True)
    for _ in range(2):
        assert [drafts(memo, prompt, choices) for choices in runs] == own
    asked, drafted = memo.asked, memo.drafted
    assert asked == 2 * sum(map(len, own)) and drafted <= asked / 2
    memo.close()
