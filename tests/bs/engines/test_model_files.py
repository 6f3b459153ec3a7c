"""Checks of a target's files before an engine loads them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from testbed.bs.engines.model_files import ARCHITECTURES, ModelFiles, check_files
from testbed.bs.engines.tensor_shapes import DEFAULTS, MODEL_TYPES, ModelConfig
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
        ({"rope_scaling": {"attention_factor": float("inf")}}, "attention_factor"),
        ({"rope_parameters": {"low_freq_factor": 4.0, "high_freq_factor": 4.0}}, "high_freq_factor must differ"),
        ({"num_hidden_layers": 10**9}, "layers"),
        ({"num_labels": 2 * 10**7}, "num_labels 20000000 is not between 0 and 10000"),
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


@pytest.mark.parametrize("quantised", [True, "x", 1, []])
def test_a_quantization_config_is_an_object(copy: Path, quantised: Any) -> None:
    """The message was "'bool' object has no attribute 'to_dict'", without a file."""
    edit_config(copy, quantization_config=quantised)
    with pytest.raises(ModelError, match=r"config\.json: .*quantization_config"):
        checked(copy)


def test_quantised_weights_have_the_layers_of_their_config(copy: Path) -> None:
    """transformers made 3,000 layers of a file without any, in 5.8 GB, before it missed them."""
    save_file({name: one for name, one in stored(copy).items() if "layers" not in name}, copy / "model.safetensors")
    edit_config(copy, quantization_config={"quant_method": "x"}, num_hidden_layers=3000)
    with pytest.raises(ModelError, match=r"config\.json says 3000 layers, the weights have 0"):
        checked(copy)


@pytest.mark.parametrize("base", [0, 0.0, -5.0, float("nan"), float("inf")])
def test_a_rotary_base_without_angles_is_refused(copy: Path, base: float) -> None:
    for changes in (
        {"rope_theta": base},
        {"rope_scaling": {"rope_theta": base}},
        {"rope_parameters": {"rope_theta": base}},
    ):
        edit_config(copy, **{"rope_theta": None, "rope_scaling": None, "rope_parameters": None, **changes})
        with pytest.raises(ModelError, match=r"config\.json: .*rope_theta"):
            checked(copy)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_defaults_are_those_of_transformers(architecture: str) -> None:
    """A good Qwen3 without head_dim, which is then 128, was refused: it counted as hidden_size / heads."""
    import transformers

    kind = transformers.models.auto.configuration_auto.CONFIG_MAPPING[MODEL_TYPES[architecture]]
    needed = {
        "vocab_size": 32, "hidden_size": 1536, "num_attention_heads": 8, "num_hidden_layers": 2,
        "max_position_embeddings": 64,
    }  # fmt: skip
    theirs = kind.from_dict(needed)
    ours = msgspec.convert({**DEFAULTS[architecture], **needed}, ModelConfig)
    assert needed.keys() == set(ModelConfig.__struct_fields__[:5])
    assert ours.intermediate_size == theirs.intermediate_size
    assert ours.head_size == (getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads)
    assert (ours.num_key_value_heads or ours.num_attention_heads) == theirs.num_key_value_heads
    assert ours.experts == getattr(theirs, "num_experts", 0)
    for name in ("moe_intermediate_size", "decoder_sparse_step", "attention_bias", "mlp_bias", "tie_word_embeddings"):
        if hasattr(theirs, name):
            assert (getattr(ours, name) or 0) == getattr(theirs, name), name


@pytest.mark.parametrize(
    ("kind", "left_out"),
    [
        ("qwen3", {"head_dim": 128}),
        ("qwen2", {"num_key_value_heads": 32, "num_attention_heads": 64}),
        ("qwen3-moe", {"num_key_value_heads": 4, "moe_intermediate_size": 768, "head_dim": 32}),
    ],
)
def test_what_config_json_leaves_out_has_its_default(tmp_path: Path, kind: str, left_out: dict[str, Any]) -> None:
    directory = make_model(kind, tmp_path / "model", 0, **left_out)
    kept = ("num_attention_heads", "head_dim") if kind != "qwen3" else ()
    edit_config(directory, **{name: None for name in left_out if name not in kept})
    checked(directory)


def test_the_model_type_is_the_architectures(copy: Path) -> None:
    """transformers picks the class by `model_type`, vLLM by `architectures`."""
    edit_config(copy, model_type="llama")
    with pytest.raises(ModelError, match=r"config\.json: model_type of Qwen2ForCausalLM is 'qwen2', not 'llama'"):
        checked(copy)
