"""Memory that a model needs under llama.cpp, computed from its GGUF header."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from testbed.errors import ModelError
from testbed.llama.context import MAX_BATCH, MAX_DEFAULT_CONTEXT, LlamaOptions
from testbed.llama.gguf import Header
from testbed.llama.gguf_rules import EMBEDDING, WITHOUT_ATTENTION, check_gguf

OUTPUT = "output.weight"
CELLS = 256
"""llama.cpp rounds the positions of a sequence up to a multiple of this."""
REPACKED = (2, 12, 20)
"""Tensor types (Q4_0, Q4_K, IQ4_NL) that llama.cpp copies into another order for AVX2, or NEON with dot products."""
KV_BYTES = {"f16": 2, "f32": 4}
FLOAT_BYTES = 4


class Memory(NamedTuple):
    """Memory that llama.cpp allocates, in bytes, without that of the process around it.

    Attributes:
        weights_bytes: the tensors, mapped from the file, so that the system may drop and reload unused pages.
        copied_bytes: upper limit of reordered copies of matrices; a CPU without those instructions needs none.
        kv_bytes: KV cache for all positions of all sequences, allocated at the start.
        compute_bytes: intermediate results of one pass over a full batch with the whole context; less of it is used
            while prompts are short.
    """

    weights_bytes: int
    copied_bytes: int
    kv_bytes: int
    compute_bytes: int

    @property
    def total_bytes(self) -> int:
        """Sum of all parts."""
        return sum(self)


def expected(path: Path, options: LlamaOptions | None = None) -> Memory:
    """Memory that a GGUF file needs on a CPU, computed from its header only.

    Args:
        options: context, sequences and precision of the cache; None: the defaults.

    Raises:
        ModelError: the file is missing or unusable, the model has no attention, or fewer positions than requested.
    """
    options = options or LlamaOptions()
    header = check_gguf(path)
    name = str(header.scalars["general.architecture"])
    if name in WITHOUT_ATTENTION:
        raise ModelError(f"{path}: {name} has no attention; a drafter is a decoder with full attention")
    positions = int(header.scalars[f"{name}.context_length"])
    if options.context is not None and options.context > positions:
        raise ModelError(f"{path}: context {options.context} is more than the model's {positions} positions")
    context = min(options.context or MAX_DEFAULT_CONTEXT, positions)
    cells = -(-context // CELLS) * CELLS
    tied = OUTPUT not in header.tensors  # then the embedding is also the output head, a matrix that is multiplied
    return Memory(
        weights_bytes=sum(tensor.size_bytes for tensor in header.tensors.values()),
        copied_bytes=sum(
            tensor.size_bytes
            for weight, tensor in header.tensors.items()
            if tensor.kind in REPACKED and len(tensor.shape) == 2 and (weight != EMBEDDING or tied)
        ),
        kv_bytes=kv_width(header) * KV_BYTES[options.kv_type] * cells * options.sequences,
        compute_bytes=_compute_width(header, name, cells) * FLOAT_BYTES * MAX_BATCH,
    )


def kv_width(header: Header) -> int:
    """Numbers per position in the KV cache of a model with attention, over all layers."""
    name = header.scalars["general.architecture"]
    layers = int(header.scalars[f"{name}.block_count"])
    heads = _each(header, f"{name}.attention.head_count", layers)
    groups = _each(header, f"{name}.attention.head_count_kv", layers) or heads
    size = int(header.scalars[f"{name}.embedding_length"]) // max(heads[0], 1)
    key, value = (int(header.scalars.get(f"{name}.attention.{part}_length", size)) for part in ("key", "value"))
    return sum(groups) * (key + value)


def _compute_width(header: Header, name: str, cells: int) -> int:
    """Numbers that one token of a batch needs at once, including its attention mask.

    The larger of attention to all positions and of a feed-forward layer's three products, plus vectors of the hidden
    size, rounded up to match llama.cpp's own figures.
    """
    heads = max(_each(header, f"{name}.attention.head_count", 1))
    hidden, ffn = (int(header.scalars.get(f"{name}.{part}_length", 0)) for part in ("embedding", "feed_forward"))
    return cells + max(heads * cells + 6 * hidden, 3 * ffn + 4 * hidden)


def _each(header: Header, key: str, layers: int) -> Sequence[int]:
    """The value per layer, repeated if there is one for all layers; empty if the key is missing."""
    if key in header.arrays:
        return [int(value) for value in header.arrays[key].values]
    return [int(header.scalars[key])] * layers if key in header.scalars else []
