"""Drafters with another vocabulary: the target's ids outside, their own inside, and outputs that stay the target's."""

from __future__ import annotations

import functools
import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.errors import ModelError
from testbed.protocols import protocol
from testbed.protocols.codec import AnyArray
from testbed.protocols.sampling import Sampling
from testbed.ue.drafters.mapped import FILLER, IdMap, MappedDrafter
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.llama.drafter import LlamaDrafter
from testbed.ue.load_drafter import DrafterOptions, load_drafter
from testbed.ue.session import DecodingSession
from testbed.ue.target_only import decode_remotely
from testbed.ue.windows.fixed import FixedWindow
from tests.support.models import TOKENS
from tests.support.sampled import Ids, chances, p_value, rows, sample
from tests.support.stations import VOCAB, client, station

OWN = {"a": 0, "b": 1, "ab": 2, "<end>": 3, "d": 4}
TARGET = {"b": 0, "a": 1, "abba": 2, "xyz": 3, "d": 4, "aéb": 5}
IDS = IdMap(OWN, TARGET)


# ---------------------------------------------------------------- ids


def test_a_map_by_hand() -> None:
    assert (IDS.own_size, IDS.target_size, IDS.share) == (5, 6, 0.5)
    assert dict(zip(IDS.target_ids.tolist(), IDS.own_ids.tolist(), strict=True)) == {1: 0, 0: 1, 4: 4}
    assert [IDS.pieces(token) for token in range(6)] == [[1], [0], [2, 1, 0], [FILLER], [4], [0, 1]]
    assert IDS.pieces(17) == [FILLER]
    with pytest.raises(ModelError, match="no token in common"):
        IdMap({"a": 0}, {"b": 0})


def partial(vocab: int, known: int, alpha: float = 0.6, context: int = 4096) -> MappedDrafter:
    """A drafter of `vocab` ids that knows the first `known` of the target's, by other numbers."""
    own = {f"w{(i * 7) % known}": i for i in range(known)} | {f"other{i}": i for i in range(known, vocab)}
    target = {f"w{i}": i for i in range(vocab)}
    drafter = SyntheticDrafter(vocab_size=vocab, alpha=alpha, context=context, max_sequences=1)
    return MappedDrafter(drafter, IdMap(own, target))


@given(
    known=st.sampled_from([3, 8, 30]),
    context=st.sampled_from([5, 8, 4096]),
    rounds=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 29)), max_size=8),
)
def test_drafts_are_the_most_likely_common_tokens_after_the_mapped_text(
    known: int, context: int, rounds: list[tuple[int, int, int]]
) -> None:
    drafter, text = partial(30, known, context=context), [5, 1, 2]
    plain, ids = SyntheticDrafter(vocab_size=30, alpha=0.6), drafter.ids
    sequence = drafter.open(text, distributions=True)
    for most, kept, token in rounds:
        drafted: list[int] = []
        for _ in range(most):
            own = [piece for one in [*text, *drafted] for piece in ids.pieces(one)]
            while len(own) >= context:
                own = own[context // 2 :]
            probs = plain.predict(tuple(own), True).probs
            assert probs is not None
            expected = {t: float(probs[o]) for t, o in zip(ids.target_ids, ids.own_ids, strict=True)}
            found = sequence.draft_one()
            assert expected[found.id] == max(expected.values()) and found.id < known
            assert found.probs is not None and found.probs.shape == (30,)
            wanted = np.array([expected.get(i, 0.0) for i in range(30)])
            np.testing.assert_allclose(found.probs, wanted / wanted.sum(), rtol=1e-5)
            drafted.append(found.id)
        accepted = min(kept, len(drafted))
        sequence.commit(accepted, token)
        text += [*drafted[:accepted], token]
        assert sequence.length == len(text)
    with pytest.raises(ValueError, match="accepted of 0 drafted"):
        sequence.commit(1, 0)
    with pytest.raises(ValueError, match="outside the vocabulary of 30"):
        sequence.commit(0, 30)


# ---------------------------------------------------------------- outputs


@pytest.mark.parametrize("known", [40, VOCAB - 1])
@pytest.mark.parametrize(
    ("kind", "sampling"),
    [("greedy", Sampling(0.0)), ("fh", Sampling(0.0)), ("coupled", Sampling(1.2, coupled=True))],
)
async def test_outputs_are_the_targets_own(kind: str, sampling: Sampling, known: int) -> None:
    prompt = [3, 1, 4, 1, 5]
    async with station() as (_, address), client(address) as connection:
        session = DecodingSession(
            connection, partial(VOCAB, known), protocol(kind), FixedWindow(5), sampling=sampling, seed=4
        )
        record = await session.decode(prompt, 60, ())
        own = await decode_remotely(connection, prompt, 60, (), sampling=sampling, seed=4)
    assert record.token_ids == own.token_ids
    assert sum(r.drafted for r in record.rounds) > 60


@pytest.mark.parametrize("kind", ["rejection", "split"])
def test_continuations_are_distributed_as_the_targets_own(kind: str) -> None:
    """A drafter that knows three of five tokens."""
    target, drafter = rows(SyntheticEngine(vocab_size=5)), partial(5, 3, alpha=0.3)

    @functools.cache
    def drafts(prefix: Ids) -> AnyArray:
        sequence = drafter.open(prefix, distributions=True)
        probs = sequence.draft_one().probs
        sequence.close()
        assert probs is not None and np.count_nonzero(probs) == 3
        return probs

    counts = sample(kind, target, drafts, (3, 1, 4), Sampling(1.3), count=2000, length=3, window=2)
    assert p_value(counts, chances(target, (3, 1, 4), Sampling(1.3), 3)) > 1e-4


# ---------------------------------------------------------------- loading


def tokenizer(directory: Path, tokens: list[str]) -> Path:
    """A directory with a tokenizer of these tokens."""
    directory.mkdir(exist_ok=True)
    model = {"type": "WordLevel", "vocab": {token: i for i, token in enumerate(tokens)}, "unk_token": tokens[0]}
    document = {"version": "1.0", "added_tokens": [], "model": model}
    (directory / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    return directory


def test_a_file_with_another_tokenizer_beside_it_is_mapped(
    tmp_path: Path, random_ggufs: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    words = [f"w{i}" for i in range(TOKENS)]
    own = tokenizer(tmp_path / "own", words)
    gguf = own / "drafter.gguf"
    shutil.copy(next(iter(random_ggufs.values())), gguf)
    half = tokenizer(tmp_path / "half", [*words[: TOKENS // 2][::-1], *(f"x{i}" for i in range(TOKENS // 2))])
    same = tokenizer(tmp_path / "same", words)

    def load(directory: Path | None) -> object:
        drafter = load_drafter(str(gguf), DrafterOptions(TOKENS, 64, threads=1, tokenizer=directory))
        try:
            if isinstance(drafter, MappedDrafter):
                sequence = drafter.open([TOKENS - 1, 5, 7])
                assert all(sequence.draft_one().id < TOKENS // 2 for _ in range(4))
            return type(drafter)
        finally:
            drafter.close()

    assert [load(directory) for directory in (None, own, same)] == [LlamaDrafter] * 3
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert load(half) is MappedDrafter
    assert "it drafts the 150 tokens that both know, 50.0 % of the target's" in caplog.text
    with pytest.raises(ModelError, match="no token in common"):
        load(tokenizer(tmp_path / "other", ["x"]))
