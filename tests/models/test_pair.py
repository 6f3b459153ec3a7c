"""Training and export of the pair from a seed, with recipes of two steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

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
