"""Checks of a target's files before an engine loads them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from testbed.bs.engines.model_files import ModelFiles, check_files
from testbed.errors import BadInput, ModelError
from tests.support.models import TOKENS, edit_config, make_model


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


def stored(path: Path) -> dict[str, Any]:
    tensors: dict[str, Any] = load_file(path / "model.safetensors")
    return tensors


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("qwen2", {}),
        ("qwen3", {"attention_bias": True}),
        ("qwen3-moe", {}),
        ("qwen3-moe", {"num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [1]}),
    ],
)
def test_no_tensor_may_be_missing(tmp_path: Path, kind: str, changes: dict[str, Any]) -> None:
    """vLLM served whatever was in the memory of those that were, and called its outputs lossless."""
    directory = make_model(kind, tmp_path / "model", 0, **changes)
    checked(directory)
    tensors = stored(directory)
    kinds = {re.sub(r"\d+", "0", one): one for one in tensors}
    for one in kinds.values():
        save_file({key: value for key, value in tensors.items() if key != one}, directory / "model.safetensors")
        with pytest.raises(ModelError, match=re.escape(one) + "|config.json says"):
            checked(directory)


def test_a_head_that_is_not_tied_may_not_be_missing(copy: Path) -> None:
    tensors = stored(copy)
    tensors.pop("lm_head.weight", None)
    save_file(tensors, copy / "model.safetensors")
    edit_config(copy, tie_word_embeddings=False)
    with pytest.raises(ModelError, match=r"lack lm_head\.weight"):
        checked(copy)
    edit_config(copy, tie_word_embeddings=True)
    checked(copy)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"head_dim": 2**20}, "shape"),
        ({"num_key_value_heads": 2**20}, "shape"),
        ({"intermediate_size": 2**28}, "shape"),
        ({"num_attention_heads": 2**20}, "shape"),
        ({"max_position_embeddings": 10**8}, "1e\\+08 positions"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 1e5, "original_max_position_embeddings": 512}}, "positions"),
        ({"rope_scaling": {"factor": -1.0}}, "rope_scaling"),
        ({"num_hidden_layers": 10**9}, "layers"),
    ],
)
def test_a_config_may_not_ask_for_more_than_the_weights_have(
    copy: Path, changes: dict[str, Any], complaint: str
) -> None:
    """Engines made room for 50 to 400 GB."""
    edit_config(copy, **changes)
    with pytest.raises(ModelError, match=complaint):
        checked(copy)


def test_weights_that_are_no_numbers_themselves_need_a_quantization_config(copy: Path) -> None:
    tensors = stored(copy)
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = (tensors[name] * 100).to(torch.int8)
    save_file(tensors, copy / "model.safetensors")
    with pytest.raises(ModelError, match=rf"{name} is I8"):
        checked(copy)
