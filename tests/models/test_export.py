"""GGUF export, compared with transformers in float32."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from testbed.errors import BadInput, ModelError, TestbedError
from testbed.models import export
from testbed.models.bundle import bundled
from testbed.models.export import DTypeName, export_gguf, rope_factors
from testbed.models.real import parity as parity_of
from testbed.models.real.parity import TOLERANCES, export_and_prove, prove_parity
from testbed.ue.llama.drafter import LlamaDrafter
from tests.support.models import KINDS, TOKENS, edit_config, make_model
from tests.support.reference import Reference

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def refuse(call: Callable[[], object], *words: str) -> None:
    """Expect a one-line ModelError that contains the words."""
    with pytest.raises(ModelError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.fixture
def llama(random_models: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the random Llama that tests may change."""
    return shutil.copytree(random_models["llama"], tmp_path / "llama-copy")


def change_weights(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Rewrite a directory's tensors."""
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("kind", KINDS)
def test_every_architecture_computes_as_transformers(
    kind: str, random_models: dict[str, Path], random_ggufs: dict[str, Path]
) -> None:
    parity = prove_parity(random_models[kind], random_ggufs[kind])
    assert parity.ok
    assert parity.positions == 128
    assert parity.argmax_agreement == 1.0
    assert parity.logits_diff < 1e-3 < 1 < parity.logits_scale
    assert parity.hidden_diff < 1e-3 < 1 < parity.hidden_scale


@pytest.mark.parametrize("dtype", ["f16", "q8_0"])
@pytest.mark.parametrize("kind", ["llama", "qwen2-tied", "qwen3"])
def test_smaller_types_stay_within_their_tolerance(
    kind: str, dtype: DTypeName, random_models: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "deep" / "small.gguf"
    parity = export_and_prove(random_models[kind], out, dtype)
    assert parity.tolerance == TOLERANCES[dtype]
    assert parity.ok
    assert parity.argmax_agreement > 0.85
    assert [p.name for p in out.parent.iterdir()] == ["small.gguf"]
    types = {t.name: t.tensor_type for t in gguf.GGUFReader(out).tensors}
    assert types["blk.0.attn_q.weight"] == export.DTYPES[dtype][0]
    assert types["blk.0.attn_norm.weight"] == gguf.GGMLQuantizationType.F32
    drafter = LlamaDrafter(out, threads=1)
    token = drafter.open([5, 6, 7]).draft_one()
    drafter.close()
    hidden = Reference(random_models[kind], TOKENS).outputs([5, 6, 7])[1][-1]
    np.testing.assert_allclose(token.hidden, hidden, atol=TOLERANCES[dtype] * parity.hidden_scale)


VARIANTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # name: architecture, configuration, changes to config.json as written by older versions
    "many heads": ("llama", {"num_key_value_heads": 4, "num_attention_heads": 4}, {}),
    "one key head, wide": ("llama", {"num_key_value_heads": 1, "head_dim": 64}, {}),
    "head size from hidden size": ("llama", {}, {"head_dim": None}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}, {}),
    "norm epsilon": ("qwen2", {"rms_norm_eps": 0.05}, {}),
    "rope theta": ("qwen3", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}, {}),
    "rope theta, old": ("llama", {}, {"rope_parameters": None, "rope_theta": 500.0}),
    "linear": ("qwen2", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}, {}),
    "linear, old": ("llama", {}, {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 4.0}}),
    "llama3": ("llama", {"rope_parameters": {**LLAMA3, "rope_theta": 1e4}}, {}),
    "llama3, old": ("llama", {}, {"rope_parameters": None, "rope_theta": 1e3, "rope_scaling": LLAMA3}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_compute_as_transformers(name: str, tmp_path: Path) -> None:
    architecture, config, old = VARIANTS[name]
    directory = make_model(architecture, tmp_path / "model", 21, **config)
    plain = make_model(architecture, tmp_path / "plain", 21)
    edit_config(directory, **old)
    parity = export_and_prove(directory, tmp_path / "model.gguf")
    assert parity.logits_diff < 1e-3
    changed = Reference(directory, TOKENS).outputs([3, 1, 4, 1, 5] * 20)[0]
    unchanged = Reference(plain, TOKENS).outputs([3, 1, 4, 1, 5] * 20)[0]
    assert name == "head size from hidden size" or np.abs(changed - unchanged).max() > 0.1


def test_llama3_factors_are_those_of_transformers(tmp_path: Path) -> None:
    directory = make_model("llama", tmp_path / "model", 0, rope_parameters={**LLAMA3, "rope_theta": 1e4})
    config = AutoConfig.from_pretrained(directory)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 1e4 ** (-np.arange(0, 32, 2) / 32)
    factors = rope_factors(config)
    assert factors is not None
    assert len(set(factors.tolist())) > 2
    np.testing.assert_allclose(factors, plain / scaled.numpy(), rtol=1e-5)


def test_sharded_and_bfloat16_weights(random_models: dict[str, Path], llama: Path, tmp_path: Path) -> None:
    sharded = make_model("qwen2", tmp_path / "sharded", 3, max_shard_size="100KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    assert export_and_prove(sharded, tmp_path / "sharded.gguf").ok
    change_weights(llama, lambda tensors: tensors.update({k: v.bfloat16() for k, v in tensors.items()}))
    assert export_and_prove(llama, tmp_path / "bfloat16.gguf").ok


def test_a_tied_head_that_is_stored_too_is_left_out(random_models: dict[str, Path], tmp_path: Path) -> None:
    directory = shutil.copytree(random_models["llama-tied"], tmp_path / "tied")
    change_weights(directory, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    out = tmp_path / "tied.gguf"
    assert export_and_prove(directory, out).ok
    assert "output.weight" not in {t.name for t in gguf.GGUFReader(out).tensors}


def test_the_proof_sees_a_small_difference(random_ggufs: dict[str, Path], llama: Path) -> None:
    change_weights(llama, lambda tensors: tensors["model.layers.1.mlp.down_proj.weight"].mul_(1.02))
    parity = prove_parity(llama, random_ggufs["llama"])
    assert not parity.ok
    assert "logits within" in str(parity)


def test_the_proof_sees_other_hidden_states_behind_the_same_logits(random_ggufs: dict[str, Path], llama: Path) -> None:
    def move_scale(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"].mul_(2.0)
        tensors["lm_head.weight"].div_(2.0)

    change_weights(llama, move_scale)
    parity = prove_parity(llama, random_ggufs["llama"])
    assert parity.logits_diff < 1e-3
    assert not parity.ok


def test_the_proof_sees_other_logits_behind_the_same_hidden_states(random_ggufs: dict[str, Path], llama: Path) -> None:
    change_weights(llama, lambda tensors: tensors["lm_head.weight"].mul_(1.02))
    parity = prove_parity(llama, random_ggufs["llama"])
    assert parity.hidden_diff < 1e-3
    assert not parity.ok


def test_the_proof_refuses_another_shape(random_models: dict[str, Path], random_ggufs: dict[str, Path]) -> None:
    refuse(lambda: prove_parity(random_models["qwen2-padded"], random_ggufs["qwen2"]), "shape")


def test_a_quantised_file_is_judged_by_its_tokens_on_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its logits may be further off than the tolerance, if greedy tokens agree as often as a drafter's have to."""
    monkeypatch.setitem(parity_of.TOLERANCES, "q8_0", 0.0)
    model = bundled().require("target")
    parity = export_and_prove(model, tmp_path / "drafter.gguf", "q8_0")
    assert parity.on_text and parity.ok and parity.argmax_agreement >= 0.9 and parity.logits_diff > 0
    assert "positions of text" in str(parity)
    with pytest.raises(BadInput, match="min-agreement is a share"):
        export_and_prove(model, tmp_path / "b.gguf", "q8_0", 1.5)


def test_a_drafter_that_agrees_less_often_is_kept_on_request(
    random_models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(parity_of.TOLERANCES, "q4_0", 0.0)
    out, model = tmp_path / "drafter.gguf", random_models["llama"]
    refuse(lambda: export_and_prove(model, out, "q4_0", 1.0), "not kept", "--min-agreement")
    parity = export_and_prove(model, out, "q4_0", 0.0)
    assert parity.ok and 0.2 < parity.argmax_agreement < 1 and not parity.on_text
    kinds = {tensor.tensor_type for tensor in gguf.GGUFReader(out).tensors}
    assert gguf.GGMLQuantizationType.Q4_0 in kinds


@pytest.mark.parametrize("dtype", ["f32", "q8_0"])
def test_a_wrong_export_is_not_kept(
    dtype: DTypeName, random_models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_read", lambda checkpoint, arch, source: checkpoint.load(source))
    out = tmp_path / "model.gguf"
    out.write_bytes(b"the last good one")
    refuse(lambda: export_and_prove(random_models["llama"], out, dtype), "something else", "not kept")
    assert [p.name for p in tmp_path.iterdir()] == ["model.gguf"]
    assert out.read_bytes() == b"the last good one"


def test_a_failed_write_leaves_what_was_there(
    random_models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "model.gguf"
    out.write_bytes(b"the last good one")
    written = []

    def full_disk(array: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
        if len(written) == 3:
            raise OSError("No space left on device")
        written.append(kind)
        return array

    monkeypatch.setattr(gguf, "quantize", full_disk)
    with pytest.raises(TestbedError, match="No space"):
        export_gguf(random_models["llama"], out)
    assert [p.name for p in tmp_path.iterdir()] == ["model.gguf"]
    assert out.read_bytes() == b"the last good one"


def test_the_file_has_no_tokenizer_and_all_rows(random_ggufs: dict[str, Path]) -> None:
    reader = gguf.GGUFReader(random_ggufs["qwen2-padded"])
    assert reader.fields["tokenizer.ggml.model"].contents() == "none"
    assert reader.fields["qwen2.vocab_size"].contents() == TOKENS + 20
    assert reader.fields["general.architecture"].contents() == "qwen2"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"architectures": ["MistralForCausalLM"]}, "MistralForCausalLM"),
        ({"architectures": None}, "none"),
        ({"model_type": "no-such-type"}, "config.json"),
        ({"hidden_act": "gelu"}, "activation gelu"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantized weights"),
        ({"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope scaling dynamic"),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "partial rotary",
        ),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": "a"}}, "factor 'a'"),
        ({"rope_parameters": None, "rope_scaling": {**LLAMA3, "low_freq_factor": -1.0}}, "low_freq_factor -1.0"),
        ({"num_hidden_layers": 3}, "9 tensors are missing"),
        ({"num_hidden_layers": 1}, "no place for tensor model.layers.1."),
    ],
)
def test_configurations_that_cannot_be_exported(
    fields: dict[str, Any], words: str, llama: Path, tmp_path: Path
) -> None:
    edit_config(llama, **fields)
    refuse(lambda: export_gguf(llama, tmp_path / "out.gguf"), words, str(llama))
    assert not list(tmp_path.glob("out*"))


def test_sliding_windows_and_foreign_scalings_are_refused(tmp_path: Path) -> None:
    sliding = make_model("qwen2", tmp_path / "sliding", 0, use_sliding_window=True, sliding_window=32)
    refuse(lambda: export_gguf(sliding, tmp_path / "out.gguf"), "sliding-window")
    unused = make_model("qwen2", tmp_path / "unused", 0, use_sliding_window=False, sliding_window=32)
    assert export_and_prove(unused, tmp_path / "unused.gguf").ok
    scaled = make_model("qwen3", tmp_path / "scaled", 0, rope_parameters={**LLAMA3, "rope_theta": 1e4})
    refuse(lambda: export_gguf(scaled, tmp_path / "out.gguf"), "rope scaling llama3")
    narrow = make_model("llama", tmp_path / "narrow", 0, intermediate_size=80)
    refuse(lambda: export_gguf(narrow, tmp_path / "out.gguf", "q8_0"), "Q8_0", "32", "down_proj")
    assert export_and_prove(narrow, tmp_path / "narrow.gguf", "f16").ok


def test_directories_without_a_model_are_refused(llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    refuse(lambda: export_gguf(tmp_path / "nowhere", out), "config.json", "No such file")
    weights = llama / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-100])
    refuse(lambda: export_gguf(llama, out), "model.safetensors", "not usable")
    weights.unlink()
    refuse(lambda: export_gguf(llama, out), "no model.safetensors")
    (llama / "config.json").write_text("{")
    refuse(lambda: export_gguf(llama, out), "config.json", "JSON")
    assert not out.exists()


def test_missing_tensors_are_named(llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    change_weights(llama, lambda tensors: tensors.pop("lm_head.weight"))
    refuse(lambda: export_gguf(llama, out), "1 tensors are missing", "output.weight")
    sharded = make_model("llama", tmp_path / "sharded", 3, max_shard_size="100KB")
    index_path = sharded / "model.safetensors.index.json"
    index = json.loads(index_path.read_text())
    files = {name: file for name, file in index["weight_map"].items() if name != "lm_head.weight"}
    index_path.write_text(json.dumps(index | {"weight_map": files}))
    refuse(lambda: export_gguf(sharded, out), "1 tensors are missing", "output.weight")
    index_path.write_text(json.dumps(index))
    next(sharded.glob("*-00002-*.safetensors")).unlink()
    refuse(lambda: export_gguf(sharded, out), "-00002-", "not the name of")
    assert not list(tmp_path.glob("out*"))
