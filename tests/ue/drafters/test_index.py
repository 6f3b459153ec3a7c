"""Indices against brute force, with a real target in virtual time, and under the rejection test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.channel.spec import ChannelSpec
from testbed.errors import BadInput, ModelError
from testbed.experiments.inputs.profile import LinearDraft, LinearVerify, Profile
from testbed.protocols.sampling import Sampling
from testbed.ue.drafters.base import IndexedSequence
from testbed.ue.drafters.index import IndexDrafter, IndexRule
from testbed.ue.drafters.lookup import Lookup, NgramLookup, SuffixLookup
from testbed.ue.drafters.text_memory import TextMemory
from testbed.ue.load_drafter import (
    DrafterOptions,
    check_states,
    drafter_and_tokenizer,
    drafter_kind,
    load_drafter,
    needs_target,
)  # fmt: skip
from tests.support.refusals import refuse
from tests.support.sampled import Ids, chances, p_value, sample
from tests.support.virtual import VOCAB, decode, synthetic_models

RULE = IndexRule(floor=2, reach=2)
PROFILE = Profile(
    name="bare", about="", source="", draft=LinearDraft(per_token_s=0.01, prefill_per_token_s=0.001),
    verify=LinearVerify(base_s=0.03, per_drafted_s=0.004, undrafted_s=0.02),
)  # fmt: skip
LINK = ChannelSpec(kind="virtual", uplink_mbps=2, downlink_mbps=1, rtt_ms=30)


def drafter(kind: str = "suffix", vocab_size: int = VOCAB, rule: IndexRule = RULE, memory: int = 0) -> IndexDrafter:
    kept = TextMemory(memory)

    def lookup() -> Lookup:
        return SuffixLookup(kept) if kind == "suffix" else NgramLookup(5, 2)

    return IndexDrafter(vocab_size, 4000, kind, lookup, rule, kept)


def window(sequence: IndexedSequence) -> list[int]:
    ids = []
    while sequence.ready():
        ids.append(sequence.draft_one().id)
    return ids


def copied(text: list[int], longest: int) -> list[int]:
    """What follows the latest earlier occurrence of the longest suffix of at most `longest` tokens."""
    for length in range(min(len(text) - 1, longest), RULE.floor - 1, -1):
        for end in range(len(text) - 1, length - 1, -1):
            if text[end - length : end] == text[-length:]:
                grown = list(text)
                for at in range(RULE.reach * length):
                    grown.append(grown[end + at])
                return grown[len(text) :]
    return []


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["ngram", "suffix"]),
    st.lists(st.integers(0, 2), min_size=1, max_size=15),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2)), max_size=8),
)
def test_windows_are_what_followed_before(kind: str, prompt: list[int], rounds: list[tuple[int, int]]) -> None:
    sequence, text = drafter(kind).open(prompt), list(prompt)
    for most, token in [*rounds, (0, 0)]:
        drafted = window(sequence)
        assert drafted == copied(text, 5 if kind == "ngram" else len(text))
        accepted = min(most, len(drafted))
        sequence.commit(accepted, token)
        text += [*drafted[:accepted], token]
        assert sequence.length == len(text)
        assert sequence.passes() == (0, 0)


def test_earlier_requests_are_copied_from() -> None:
    source = drafter(memory=100)
    first = source.open([1, 2, 3, 4, 5, 6])
    assert window(first) == []
    first.close()
    first.close()
    later = source.open([9, 2, 3, 4])
    assert window(later) == [5, 6]  # and no further: the request ended there
    assert window(drafter(memory=0).open([9, 2, 3, 4])) == []


def test_bad_requests_are_refused() -> None:
    refuse(lambda: drafter().open([]), BadInput, "empty")
    refuse(lambda: drafter().open([VOCAB]), BadInput, "vocabulary")
    refuse(lambda: drafter().open([1] * 4001), BadInput, "context")
    refuse(drafter().open([1, 2, 3]).draft_one, ModelError, "nothing to draft")
    full = drafter().open([1] * 3998)
    assert [full.draft_one().id for _ in range(2)] == [1, 1]
    refuse(full.draft_one, ModelError, "full")
    for accepted, token in ((3, 1), (-1, 1), (0, VOCAB), (0, -1)):
        with pytest.raises(ValueError):
            full.commit(accepted, token)


def test_names() -> None:
    assert isinstance(load_drafter("ngram", DrafterOptions(vocab_size=10)), IndexDrafter)
    refuse(lambda: load_drafter("suffix", DrafterOptions()), BadInput, "--tokenizer")


@pytest.mark.parametrize(("name", "told"), [("ngram", True), ("synthetic", True), ("suffix", False)])
def test_a_memory_that_a_drafter_does_not_look_in_is_told(
    name: str, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    load_drafter(name, DrafterOptions(vocab_size=10, memory_tokens=100)).close()
    assert ("remembers no earlier requests" in caplog.text) == told
    caplog.clear()
    load_drafter(name, DrafterOptions(vocab_size=10)).close()
    assert not caplog.records
    refuse(lambda: drafter_kind("suffix+nothing"), BadInput, "smollm2", "bundled")
    bundle = Path("own.gguf"), Path("own")
    assert drafter_and_tokenizer("suffix", None, bundle) == ("suffix", Path("own"))
    assert drafter_and_tokenizer("ngram+bundled", None, bundle) == ("ngram+own.gguf", Path("own"))
    assert drafter_and_tokenizer("suffix+other.gguf", None, bundle) == ("suffix+other.gguf", None)
    assert [needs_target(name) for name in ("suffix", "suffix+bundled", "suffix+a.gguf", "a.gguf")] == [0, 0, 1, 1]


@pytest.mark.parametrize("name", ["ngram", "suffix", "suffix+bundled"])
def test_states_are_refused_before_anything_is_loaded(name: str) -> None:
    for method in ("fh", "sh", "auto"):
        refuse(lambda method=method: check_states(name, ("greedy", method)), BadInput, name, method)
    refuse(lambda: check_states(name, ("greedy",), "after"), BadInput, "--states")
    check_states(name, ("greedy", "rejection", "split", "target-only", "colocated"))


@pytest.mark.parametrize("kind", ["greedy", "rejection", "split", "coupled"])
def test_sessions_are_lossless_and_drafting_takes_no_time(kind: str) -> None:
    models = synthetic_models()
    own = decode(LINK, PROFILE, models, methods=("target-only",), temperature=0.0)
    source = drafter(memory=4000)
    random = np.random.default_rng(5)
    for outcome in own:  # texts that are right in four of five places
        right = random.random(len(outcome.record.token_ids)) < 0.8
        ids = [token if ok else (token + 1) % VOCAB for token, ok in zip(outcome.record.token_ids, right, strict=True)]
        source.memory.add(ids)  # type: ignore[union-attr]
    models = type(models)(models.engine, source, models.offer)
    outcomes = decode(LINK, PROFILE, models, methods=(kind,), temperature=0.0)
    rounds = [one for outcome in outcomes for one in outcome.record.rounds]
    assert {o.request: o.record.token_ids for o in outcomes} == {o.request: o.record.token_ids for o in own}
    assert sum(r.accepted for r in rounds) > 20 and any(r.drafted > r.accepted for r in rounds)
    assert any(r.drafted == 0 for r in rounds)
    assert all(r.draft_s == 0 for r in rounds)


def test_coupled_samples_are_the_targets_own() -> None:
    """An index drafts guesses without noise; they are compared with the target's samples."""
    models, how = synthetic_models(), {"temperature": 0.9, "sampling": "coupled"}
    own = decode(LINK, PROFILE, models, methods=("target-only",), **how)
    source = drafter(memory=4000)
    for outcome in own[:2]:  # the third prompt's output is unknown
        source.memory.add(outcome.record.token_ids)  # type: ignore[union-attr]
    models = type(models)(models.engine, source, models.offer)
    outcomes = decode(LINK, PROFILE, models, methods=("coupled",), **how)
    assert {o.request: o.record.token_ids for o in outcomes} == {o.request: o.record.token_ids for o in own}
    assert all(o.lossless for o in outcomes)
    assert sum(r.accepted for o in outcomes for r in o.record.rounds) > 20


@pytest.mark.parametrize("kind", ["rejection", "split"])
def test_point_masses_keep_the_targets_distribution(kind: str) -> None:
    tables = np.random.default_rng(3).normal(size=(6, 6))
    logprobs = np.log(np.exp(tables) / np.exp(tables).sum(axis=1, keepdims=True)).astype(np.float32)
    prompt: Ids = (0, 1, 2, 0, 1)
    source = drafter(vocab_size=6, rule=IndexRule(1, 4))

    def indexed(prefix: Ids) -> np.ndarray:
        sequence = source.open(prefix, distributions=True)
        if not sequence.ready():
            return np.eye(6, dtype=np.float32)[0]
        probs = sequence.draft_one().probs
        assert probs is not None
        return probs

    def target(prefix: Sequence[int]) -> np.ndarray:
        return logprobs[prefix[-1]]

    counts = sample(kind, target, indexed, prompt, Sampling(), count=1500, length=3, window=2)
    assert p_value(counts, chances(target, prompt, Sampling(), 3)) > 1e-4
