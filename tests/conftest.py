"""Fixtures that several folders of tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.models import TOKENS, make_model
from tests.support.reference import Reference

KINDS = ("llama", "llama-tied", "qwen2", "qwen2-tied", "qwen3", "qwen3-tied", "qwen2-padded")
PADDED_ROWS = 20


@pytest.fixture(scope="session")
def random_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Hugging Face directories of tiny random models, by kind."""
    root = tmp_path_factory.mktemp("random-models")
    models = {}
    for seed, kind in enumerate(KINDS):
        architecture, _, variant = kind.partition("-")
        rows = TOKENS + (PADDED_ROWS if variant == "padded" else 0)
        models[kind] = make_model(
            architecture, root / kind, seed, vocab_size=rows, tie_word_embeddings=variant == "tied"
        )
    return models


@pytest.fixture(scope="session")
def random_ggufs(random_models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same models as f32 GGUF files."""
    from testbed.models.export import export_gguf

    root = tmp_path_factory.mktemp("random-ggufs")
    ggufs = {kind: root / f"{kind}.gguf" for kind in random_models}
    for kind, path in ggufs.items():
        export_gguf(random_models[kind], path)
    return ggufs


@pytest.fixture(scope="session")
def references(random_models: dict[str, Path]) -> dict[str, Reference]:
    """The same models under transformers."""
    return {kind: Reference(path, TOKENS) for kind, path in random_models.items()}
