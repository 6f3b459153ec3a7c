"""GGUF files with random weights in the shapes of public models, for memory and timing measurements."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np

from testbed.errors import BadInput

KINDS = {
    "f16": gguf.GGMLQuantizationType.F16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
}
SCALE = 1e-3
"""Scale of every block, small enough for finite activations with random bits."""
POSITIONS = 32768


class DecoderShape(NamedTuple):
    """Dimensions of a decoder with tied embeddings, from its published config.json."""

    arch: str
    layers: int
    hidden: int
    heads: int
    groups: int
    """Key-value heads."""
    head_size: int
    ffn: int
    rows: int
    """Rows of the embedding."""


SHAPES = {
    "qwen2.5-0.5b": DecoderShape("qwen2", 24, 896, 14, 2, 64, 4864, 151936),
    "qwen3-0.6b": DecoderShape("qwen3", 28, 1024, 16, 8, 128, 3072, 151936),
    "llama-3.2-1b": DecoderShape("llama", 16, 2048, 32, 8, 64, 8192, 128256),
    "qwen2.5-1.5b": DecoderShape("qwen2", 28, 1536, 12, 2, 128, 8960, 151936),
    "qwen3-1.7b": DecoderShape("qwen3", 28, 2048, 16, 8, 128, 6144, 151936),
}


def write_random(path: Path, shape: DecoderShape, dtype: str = "q8_0", seed: int = 0) -> None:
    """Write a GGUF file of a shape.

    Raises:
        BadInput: an unknown dtype.
    """
    if dtype not in KINDS:
        raise BadInput(f"unknown dtype {dtype!r}; known: {', '.join(KINDS)}")
    writer = gguf.GGUFWriter(path, shape.arch)
    _describe(writer, shape)
    weights = _Weights(writer, KINDS[dtype], np.random.default_rng(seed))
    weights.matrix("token_embd.weight", shape.rows, shape.hidden)
    weights.vector("output_norm.weight", shape.hidden)
    for layer in range(shape.layers):
        _add_layer(weights, shape, f"blk.{layer}.")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class _Weights:
    """Generates random tensors and adds them to the file."""

    def __init__(self, writer: gguf.GGUFWriter, kind: gguf.GGMLQuantizationType, rng: np.random.Generator) -> None:
        self._writer, self._kind, self._rng = writer, kind, rng

    def matrix(self, name: str, rows: int, columns: int) -> None:
        if self._kind is gguf.GGMLQuantizationType.F16:
            small = self._rng.integers(-127, 128, (rows, columns), np.int8) * np.float16(SCALE)
            self._writer.add_tensor(name, small.astype(np.float16))
            return
        elements, block_bytes = gguf.GGML_QUANT_SIZES[self._kind]
        blocks = self._rng.integers(0, 256, (rows, columns // elements, block_bytes), np.uint8)
        blocks[:, :, :2] = np.frombuffer(np.float16(SCALE).tobytes(), np.uint8)  # a block starts with its scale
        self._writer.add_tensor(name, blocks.reshape(rows, -1), raw_dtype=self._kind)

    def vector(self, name: str, size: int) -> None:
        self._writer.add_tensor(name, np.ones(size, np.float32))


def _describe(writer: gguf.GGUFWriter, shape: DecoderShape) -> None:
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.groups)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(shape.rows)
    writer.add_tokenizer_model("none")


def _add_layer(weights: _Weights, shape: DecoderShape, at: str) -> None:
    hidden = shape.hidden
    outputs = {"q": shape.heads * shape.head_size, "k": shape.groups * shape.head_size}
    outputs["v"] = outputs["k"]
    for name in ("attn_norm", "ffn_norm"):
        weights.vector(f"{at}{name}.weight", hidden)
    for name, size in outputs.items():
        weights.matrix(f"{at}attn_{name}.weight", size, hidden)
        if shape.arch == "qwen2":
            weights.vector(f"{at}attn_{name}.bias", size)
        if shape.arch == "qwen3" and name != "v":
            weights.vector(f"{at}attn_{name}_norm.weight", shape.head_size)
    weights.matrix(f"{at}attn_output.weight", hidden, outputs["q"])
    weights.matrix(f"{at}ffn_gate.weight", shape.ffn, hidden)
    weights.matrix(f"{at}ffn_up.weight", shape.ffn, hidden)
    weights.matrix(f"{at}ffn_down.weight", hidden, shape.ffn)
