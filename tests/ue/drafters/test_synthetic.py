"""The synthetic drafter against the synthetic language."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import BadInput, ModelError
from testbed.synthetic import WINDOW, next_token, noise, runner_up, uniform
from testbed.ue.drafters.base import Drafter, DraftToken
from testbed.ue.drafters.synthetic import SyntheticDrafter

VOCAB = 50


def drafter(alpha: float = 0.7, **changes: int) -> SyntheticDrafter:
    return SyntheticDrafter(**{"vocab_size": VOCAB, "hidden_size": 16, **changes}, alpha=alpha)


def draft(source: Drafter, prompt: list[int], count: int, *, distributions: bool = False) -> list[DraftToken]:
    sequence = source.open(prompt, distributions=distributions)
    tokens = [sequence.draft_one() for _ in range(count)]
    sequence.close()
    return tokens


@given(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40), st.integers(0, 2**40))
def test_the_language_is_a_function_of_length_and_the_last_tokens(prefix: list[int], seed: int) -> None:
    token, other = next_token(prefix, VOCAB, seed), runner_up(prefix, VOCAB, seed)
    assert 0 <= token < VOCAB and 0 <= other < VOCAB and token != other
    assert next_token(np.array(prefix, np.int32), VOCAB, seed) == token
    assert next_token([0] * (len(prefix) - WINDOW) + prefix[-WINDOW:], VOCAB, seed) == token
    assert 0.0 <= uniform(prefix, seed, "x") < 1.0


def test_the_language_is_varied() -> None:
    """Every token comes up about as often, and length, content and seed all matter."""
    prefixes = [[5] * length for length in range(1, 5001)]
    counts = np.bincount([next_token([*prefix[-20:], i % 7], VOCAB, i) for i, prefix in enumerate(prefixes)])
    assert counts.shape == (VOCAB,) and counts.min() > 60 and counts.max() < 140
    assert len({next_token([1] * n, 10**6, 0) for n in range(1, 50)}) == 49
    assert len({next_token([n, 1], 10**6, 0) for n in range(50)}) == 50
    draws = [uniform([i], 0, "x") for i in range(4000)]
    assert abs(np.mean(draws) - 0.5) < 0.02 and abs(np.var(draws) - 1 / 12) < 0.01
    states = noise([1], 0, "x", 4000)
    assert abs(states.mean()) < 0.06 and abs(states.std() - 1.0) < 0.05


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 1.0])
def test_acceptance_rate(alpha: float) -> None:
    """Counted as the UE will see it: along windows, until the first mismatch."""
    source, faced, agreed = drafter(alpha, target_seed=9), 0, 0
    sequence = source.open([1, 2, 3])
    ids = [1, 2, 3]
    while faced < 3000:
        accepted = 0
        for _ in range(5):
            token = sequence.draft_one().id
            wanted = next_token(ids, VOCAB, 9)
            faced += 1
            if token != wanted:
                break
            agreed, accepted = agreed + 1, accepted + 1
            ids.append(token)
        correction = next_token(ids, VOCAB, 9)
        sequence.commit(accepted, correction)
        ids.append(correction)
    assert abs(agreed / faced - alpha) < 4 * (alpha * (1 - alpha) / faced) ** 0.5 + 1e-9


def test_replays_agree() -> None:
    """What is drafted depends on the prefix alone, not on how it came about."""
    sequence = drafter().open([1, 2])
    first = [sequence.draft_one() for _ in range(4)]
    sequence.commit(2, 7)
    again = draft(drafter(), [1, 2, first[0].id, first[1].id, 7], 3)
    for one, other in zip([sequence.draft_one() for _ in range(3)], again, strict=True):
        assert (one.id, one.top1, one.entropy) == (other.id, other.top1, other.entropy)
        assert one.hidden.tolist() == other.hidden.tolist()
    assert [t.id for t in draft(drafter(seed=1), [1, 2], 20)] != [t.id for t in draft(drafter(), [1, 2], 20)]


@pytest.mark.parametrize("vocab", [4, 50, 3000])
def test_statistics_are_those_of_the_distribution(vocab: int) -> None:
    for token in draft(drafter(vocab_size=vocab), [1], 50, distributions=True):
        assert token.probs is not None and token.probs.dtype == np.float32
        probs = token.probs.astype(np.float64)
        ordered = np.sort(probs)
        assert probs.shape == (vocab,) and abs(probs.sum() - 1) < 1e-4
        assert probs.argmax() == token.id
        np.testing.assert_allclose(token.top1, ordered[-1], rtol=1e-5)
        np.testing.assert_allclose(token.margin, ordered[-1] - ordered[-2], rtol=1e-4)
        np.testing.assert_allclose(token.entropy, -(probs * np.log(probs)).sum(), rtol=1e-3)
        np.testing.assert_allclose(token.logit_std, np.log(probs).std(), rtol=1e-3)
        assert token.hidden.shape == (16,) and token.hidden.dtype == np.float16
    assert all(token.probs is None for token in draft(drafter(), [1], 3))


def test_statistics_tell_of_agreement() -> None:
    """A predictor that stops on them has something to learn: it is surer where the target agrees."""
    right: list[float] = []
    wrong: list[float] = []
    source = drafter(0.5)
    for start in range(40):
        ids = [start]
        for token in draft(source, ids, 10):
            (right if token.id == next_token(ids, VOCAB, 0) else wrong).append(token.top1)
            ids.append(token.id)
    assert np.mean(right) > np.mean(wrong) + 0.15


def test_length_counts_committed_tokens() -> None:
    sequence = drafter().open([1, 2, 3])
    assert sequence.length == 3
    for _ in range(4):
        sequence.draft_one()
    assert sequence.length == 3
    sequence.commit(3, 0)
    assert sequence.length == 7
    sequence.commit(0, 0)
    assert sequence.length == 8


def test_commits_that_cannot_be() -> None:
    sequence = drafter().open([1])
    sequence.draft_one()
    for accepted, token in ((-1, 0), (2, 0), (1, VOCAB), (1, -1)):
        with pytest.raises(ValueError):
            sequence.commit(accepted, token)
    sequence.commit(1, VOCAB - 1)
    assert sequence.length == 3


def test_places_and_context_are_bounded() -> None:
    source = drafter(context=4, max_sequences=2)
    first, second = source.open([1, 2]), source.open([1])
    with pytest.raises(ModelError, match="2 sequences"):
        source.open([1])
    second.close()
    second.close()
    source.open([1])
    with pytest.raises(ModelError):
        source.open([1])
    first.draft_one()
    first.draft_one()
    with pytest.raises(ModelError, match="full"):
        first.draft_one()
    source.close()
    source.open([1])


@pytest.mark.parametrize(
    ("prompt", "complaint"), [([], "empty"), ([1] * 9, "context"), ([VOCAB], "outside"), ([-1], "outside")]
)
def test_prompts_it_refuses(prompt: list[int], complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        drafter(context=9).open(prompt)


def test_settings_it_refuses() -> None:
    with pytest.raises(BadInput, match=r"\[0, 1\]"):
        drafter(1.5)
    with pytest.raises(BadInput, match="4 tokens"):
        drafter(vocab_size=3)


def test_a_sequence_drafts_what_is_chosen_for_it() -> None:
    seen: list[np.ndarray] = []

    def least(probs: np.ndarray, position: int) -> int:
        seen.append(probs)
        return int(probs.argmin())

    source = drafter()
    chosen = source.open([1, 2, 3], choose=least)
    tokens = [chosen.draft_one() for _ in range(3)]
    ids = [1, 2, 3]
    for token, probs in zip(tokens, seen, strict=True):
        expected = source.predict(ids, True)
        assert expected.probs is not None and token.probs is None
        np.testing.assert_array_equal(probs, expected.probs)
        assert token.id == int(expected.probs.argmin()) != expected.id
        assert (token.top1, token.entropy) == (expected.top1, expected.entropy)
        ids.append(token.id)
    assert source.open([1, 2, 3], distributions=True, choose=least).draft_one().probs is not None
