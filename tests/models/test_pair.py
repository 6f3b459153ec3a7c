"""Training and export of the pair from a seed, with recipes of two steps."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from testbed.errors import BadInput
from testbed.models import pair
from testbed.models.train import RECIPES
from testbed.ue.llama.drafter import LlamaDrafter
from tests.support.reference import Reference

SHORT = {role: replace(recipe, steps=2) for role, recipe in RECIPES.items()}


@pytest.mark.long
def test_training_from_a_seed_writes_files_for_every_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "RECIPES", SHORT)
    seen: list[tuple[str, int, int]] = []
    pair.make_pair(
        tmp_path / "work", tmp_path / "out", 0, lambda role, step, steps, loss: seen.append((role, step, steps))
    )
    assert seen == [(role, step, 2) for role in ("target", "drafter") for step in (1, 2)]
    again: list[object] = []
    pair.make_pair(tmp_path / "work", tmp_path / "out", 0, lambda *told: again.append(told))
    assert again == []
    drafter = LlamaDrafter(tmp_path / "out" / "drafter.gguf", context=64, kv_type="f32")
    reference = Reference(tmp_path / "out" / "drafter", drafter.vocab_size)
    sequence = drafter.open([5, 6, 7])
    assert [sequence.draft_one().id for _ in range(8)] == reference.greedy([5, 6, 7], 8)
    drafter.close()
    assert (tmp_path / "out" / "target" / "tokenizer.json").exists()


def test_a_tokenizer_is_kept_for_its_seed_and_refused_if_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of another seed was taken, and a damaged one left a traceback."""
    made: list[int] = []

    def trained(seed: int) -> Tokenizer:
        made.append(seed)
        return Tokenizer(WordLevel({str(seed): 0}, unk_token=str(seed)))

    monkeypatch.setattr(pair, "train_tokenizer", trained)
    for seed in (0, 1, 0):
        assert pair.tokenizer_of(tmp_path, seed).token_to_id(str(seed)) == 0
    assert made == [0, 1]
    gaps = Tokenizer(WordLevel({"a": 0, "b": 7}, unk_token="a")).to_str()
    for text, why in (("{", "EOF"), (gaps, "its ids do not count up from 0")):
        (tmp_path / "tokenizer-0.json").write_text(text)
        with pytest.raises(BadInput, match=rf"is damaged \(.*{why}"):
            pair.tokenizer_of(tmp_path, 0)
    (tmp_path / "tokenizer-0.json").unlink()
    os.mkfifo(tmp_path / "tokenizer-0.json")
    with pytest.raises(BadInput, match="not a regular file"):
        pair.tokenizer_of(tmp_path, 0)
