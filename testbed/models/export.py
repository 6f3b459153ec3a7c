"""Export of Hugging Face models (Llama, Qwen2, Qwen3) to GGUF files for llama.cpp.

The files contain no tokenizer (`tokenizer.ggml.model = "none"`): llama.cpp runs on token ids, and the UE reads the
tokenizer from the model directory.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
from numpy.typing import NDArray

from testbed.assets.fingerprints import model_fingerprint
from testbed.errors import ModelError
from testbed.files import whole_file
from testbed.llama.origin import DIFFERENCE, NOT_COMPARED, SOURCE
from testbed.models.checkpoint import Checkpoint

ROTARY = {"rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
"""Parameters of rotary embeddings that are positive numbers."""
ARCHITECTURES = {
    "LlamaForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "Qwen2ForCausalLM": gguf.MODEL_ARCH.QWEN2,
    "Qwen3ForCausalLM": gguf.MODEL_ARCH.QWEN3,
}
DTypeName = Literal["f32", "f16", "q8_0", "q4_0"]
DTYPES = {
    "f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "q4_0": (gguf.GGMLQuantizationType.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
}
LAYER_WEIGHTS = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
EXTRA_WEIGHTS = {
    gguf.MODEL_ARCH.QWEN2: ("attn_q.bias", "attn_k.bias", "attn_v.bias"),
    gguf.MODEL_ARCH.QWEN3: ("attn_q_norm.weight", "attn_k_norm.weight"),
}


@dataclass(frozen=True)
class _Entry:
    """One tensor of the GGUF file; `read` returns it as float32."""

    name: str
    shape: tuple[int, ...]
    kind: gguf.GGMLQuantizationType
    read: Callable[[], NDArray[np.float32]]

    @property
    def nbytes(self) -> int:
        return math.prod(gguf.quant_shape_to_byte_shape(self.shape, self.kind))


def export_gguf(model_dir: Path, out: Path, dtype: DTypeName = "f32") -> None:
    """Write a model directory as a GGUF file, atomically and with one tensor in memory at a time. Vectors are f32.

    Raises:
        ModelError: missing files, or a feature of the model that llama.cpp computes differently or not at all.
        BadInput, TestbedError: as `whole_file`.
    """
    if dtype not in DTYPES:
        raise ModelError(f"unknown dtype {dtype!r}; known: {', '.join(DTYPES)}")
    checkpoint = Checkpoint(model_dir)
    arch = architecture_of(checkpoint)
    entries = _entries(checkpoint, arch, DTYPES[dtype][0])
    out.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(None, gguf.MODEL_ARCH_NAMES[arch])
    with whole_file(out) as part, contextlib.closing(writer):
        _describe(writer, checkpoint, rows=next(e.shape[0] for e in entries if e.name == "token_embd.weight"))
        writer.add_file_type(DTYPES[dtype][1])
        writer.add_string(SOURCE, model_fingerprint(model_dir))
        writer.add_float32(DIFFERENCE, NOT_COMPARED)
        for entry in entries:
            writer.add_tensor_info(entry.name, entry.shape, np.dtype(np.float32), entry.nbytes, raw_dtype=entry.kind)
        writer.write_header_to_file(part)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for entry in entries:
            writer.write_tensor_data(gguf.quantize(entry.read(), entry.kind))


def architecture_of(checkpoint: Checkpoint) -> gguf.MODEL_ARCH:
    """Architecture of the model, after checking that llama.cpp supports its configuration."""
    arch = ARCHITECTURES.get(checkpoint.architecture)
    if arch is None:
        known = ", ".join(ARCHITECTURES)
        raise ModelError(f"{checkpoint.directory}: cannot export {checkpoint.architecture}; known are {known}")
    config = checkpoint.config
    rope = config.rope_parameters
    kind = rope.get("rope_type", "default")
    llama = arch is gguf.MODEL_ARCH.LLAMA
    refusals = {
        "sliding-window attention": getattr(config, "use_sliding_window", False),
        f"activation {config.hidden_act}": config.hidden_act != "silu",
        "quantized weights": getattr(config, "quantization_config", None),
        "partial rotary embedding": rope.get("partial_rotary_factor", 1.0) != 1.0,
        f"rope scaling {kind}": kind not in ("default", "linear", "llama3") or (kind == "llama3" and not llama),
    }
    for name in ROTARY & rope.keys():
        refusals[f"{name} {rope[name]!r}"] = not (isinstance(rope[name], int | float) and 0 < rope[name] < math.inf)
    for what, refused in refusals.items():
        if refused:
            raise ModelError(f"{checkpoint.directory}: cannot export a model with {what}")
    return arch


def _entries(checkpoint: Checkpoint, arch: gguf.MODEL_ARCH, kind: gguf.GGMLQuantizationType) -> list[_Entry]:
    layers = checkpoint.config.num_hidden_layers
    names = gguf.get_tensor_name_map(arch, layers)
    entries = []
    for source in checkpoint.names:
        if source.endswith("rotary_emb.inv_freq") or (_tied(checkpoint) and source == "lm_head.weight"):
            continue
        name = names.get_name(source, try_suffixes=(".weight", ".bias"))
        if name is None:
            raise ModelError(f"{checkpoint.directory}: {checkpoint.architecture} has no place for tensor {source}")
        shape = checkpoint.shape(source)
        width = gguf.GGML_QUANT_SIZES[kind][0]
        if len(shape) > 1 and shape[-1] % width:
            raise ModelError(f"{checkpoint.directory}: {kind.name} needs rows of {width}s, unlike {source} {shape}")
        stored = kind if len(shape) > 1 else gguf.GGMLQuantizationType.F32
        entries.append(_Entry(name, shape, stored, functools.partial(_read, checkpoint, arch, source)))
    missing = sorted(_required(arch, layers, _tied(checkpoint)) - {entry.name for entry in entries})
    if missing:
        raise ModelError(f"{checkpoint.directory}: {len(missing)} tensors are missing, the first is {missing[0]}")
    factors = rope_factors(checkpoint.config)
    if factors is not None:
        entries.append(_Entry("rope_freqs.weight", factors.shape, gguf.GGMLQuantizationType.F32, lambda: factors))
    return entries


def _tied(checkpoint: Checkpoint) -> bool:
    return bool(checkpoint.config.tie_word_embeddings)


def _required(arch: gguf.MODEL_ARCH, layers: int, tied: bool) -> set[str]:
    """Names of the tensors that llama.cpp requires."""
    inner = {f"{name}.weight" for name in LAYER_WEIGHTS} | set(EXTRA_WEIGHTS.get(arch, ()))
    outer = {"token_embd.weight", "output_norm.weight"} | (set() if tied else {"output.weight"})
    return outer | {f"blk.{layer}.{name}" for layer in range(layers) for name in inner}


def _read(checkpoint: Checkpoint, arch: gguf.MODEL_ARCH, source: str) -> NDArray[np.float32]:
    """Read a tensor in llama.cpp's layout: Llama's rotary pairs are adjacent, in transformers halves of a head."""
    array = checkpoint.load(source)
    config = checkpoint.config
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(source.split(".")[-2])
    if heads is None or arch is not gguf.MODEL_ARCH.LLAMA:
        return array
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape)


def head_dim(config: Any) -> int:
    """Dimension of an attention head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def rope_factors(config: Any) -> NDArray[np.float32] | None:
    """Divisors [head_dim / 2] of the rotary frequencies under Llama 3's scaling; None without it.

    With L the positions of the original training, wavelengths below L/high_freq_factor are kept, those above
    L/low_freq_factor are scaled by `factor`, and those between are interpolated.
    """
    rope = config.rope_parameters
    if rope.get("rope_type") != "llama3":
        return None
    dims = head_dim(config)
    frequencies = float(rope["rope_theta"]) ** (-np.arange(0, dims, 2, dtype=np.float64) / dims)
    turns = rope["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    divisors: NDArray[np.float32] = (1.0 / ((1.0 - kept) / rope["factor"] + kept)).astype(np.float32)
    return divisors


def _describe(writer: gguf.GGUFWriter, checkpoint: Checkpoint, rows: int) -> None:
    """Write the metadata that llama.cpp needs to run the model on token ids."""
    config = checkpoint.config
    rope = config.rope_parameters
    writer.add_name(checkpoint.directory.name)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(rows)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim(config))
    writer.add_value_length(head_dim(config))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(head_dim(config))
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    writer.add_tokenizer_model("none")
