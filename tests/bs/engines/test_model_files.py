"""Checks of a target's files before an engine loads them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testbed.bs.engines.model_files import ModelFiles, check_files
from testbed.errors import BadInput, ModelError
from tests.support.models import TOKENS, edit_config


def checked(model: str | Path, **changes: Any) -> ModelFiles:
    return check_files(model, **{"dtype": "float32", "vocab_size": None, "max_model_len": None, **changes})


@pytest.fixture
def copy(random_models: dict[str, Path], tmp_path: Path) -> Path:
    """A model's directory that a test may damage."""
    return Path(shutil.copytree(random_models["qwen2-padded"], tmp_path / "model"))


def test_what_is_read(random_models: dict[str, Path], copy: Path) -> None:
    assert checked(copy) == ModelFiles(str(copy), copy, "Qwen2ForCausalLM", 128, 32, TOKENS + 20, 512)
    files = checked(copy, vocab_size=TOKENS, max_model_len=100, dtype="bfloat16")
    assert (files.vocab_size, files.max_positions) == (TOKENS, 100)
    assert checked(random_models["qwen3"]).head_size == 32, "not 96 / 4"


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda path: shutil.rmtree(path), "no model at"),
        (lambda path: (path / "config.json").unlink(), "no config.json"),
        (lambda path: (path / "config.json").write_text("{"), "not JSON"),
        (lambda path: (path / "model.safetensors").rename(path / "model.bin"), "no .*safetensors"),
        (
            lambda path: edit_config(path, architectures=["MambaForCausalLM"]),
            "MambaForCausalLM .* Qwen3MoeForCausalLM are",
        ),
        (lambda path: edit_config(path, architectures=None), "none .* not supported"),
        (lambda path: edit_config(path, hidden_size=None), "lacks hidden_size"),
    ],
)
def test_unusable_files(copy: Path, damage: Callable[[Path], Any], complaint: str) -> None:
    damage(copy)
    with pytest.raises(ModelError, match=complaint) as caught:
        checked(copy)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "error", "complaint"),
    [
        ({"dtype": "int4"}, BadInput, "float32, bfloat16"),
        ({"vocab_size": TOKENS + 21}, ModelError, "321 tokens, but .* 320 rows"),
        ({"vocab_size": 1}, ModelError, "1 tokens"),
        ({"max_model_len": 513}, BadInput, "between 2 and the model's 512, got 513"),
        ({"max_model_len": 0}, BadInput, "got 0"),
    ],
)
def test_arguments_that_do_not_fit(copy: Path, changes: dict[str, Any], error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        checked(copy, **changes)
