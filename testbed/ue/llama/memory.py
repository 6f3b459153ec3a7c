"""What a drafter takes of a device's memory, from its GGUF header: known before the file is copied to a board."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from testbed.errors import ModelError
from testbed.ue.llama.context import MAX_BATCH, MAX_DEFAULT_CONTEXT, LlamaOptions
from testbed.ue.llama.gguf import Header
from testbed.ue.llama.gguf_rules import EMBEDDING, WITHOUT_ATTENTION, check_gguf

OUTPUT = "output.weight"
CELLS = 256
"""llama.cpp rounds the positions of a sequence up to a multiple of so many."""
REPACKED = (2, 12, 20)
"""Tensor types (Q4_0, Q4_K, IQ4_NL) that llama.cpp copies into the order that AVX2 or NEON with dot products want."""
KV_BYTES = {"f16": 2, "f32": 4}
FLOAT_BYTES = 4


class Memory(NamedTuple):
    """Parts of what llama.cpp takes, in bytes; the process around it comes on top.

    Attributes:
        weights_bytes: the tensors, which are mapped from the file: the system may drop and read again what is not used.
        copied_bytes: second copies of matrices, at most: a CPU without those instructions needs none.
        kv_bytes: keys and values for every position of all sequences, from the start.
        compute_bytes: intermediate results of one pass over a full batch that sees the whole context; less of it is
            touched while prompts are short.
    """

    weights_bytes: int
    copied_bytes: int
    kv_bytes: int
    compute_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return sum(self)


def expected(path: Path, options: LlamaOptions | None = None) -> Memory:
    """What a GGUF file takes on a CPU, by its header alone.

    Args:
        options: context, sequences and precision of the cache; None: the defaults.

    Raises:
        ModelError: the file is missing or unusable, or a model without attention, or fewer positions than asked for.
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
    tied = OUTPUT not in header.tensors  # then the embedding is the output head too, which is a product
    return Memory(
        weights_bytes=sum(tensor.size_bytes for tensor in header.tensors.values()),
        copied_bytes=sum(
            tensor.size_bytes
            for weight, tensor in header.tensors.items()
            if tensor.kind in REPACKED and len(tensor.shape) == 2 and (weight != EMBEDDING or tied)
        ),
        kv_bytes=_kv_width(header, name) * KV_BYTES[options.kv_type] * cells * options.sequences,
        compute_bytes=_compute_width(header, name, cells) * FLOAT_BYTES * MAX_BATCH,
    )


def _kv_width(header: Header, name: str) -> int:
    """Numbers that one position puts into the cache, over all layers."""
    layers = int(header.scalars[f"{name}.block_count"])
    heads = _each(header, f"{name}.attention.head_count", layers)
    groups = _each(header, f"{name}.attention.head_count_kv", layers) or heads
    size = int(header.scalars[f"{name}.embedding_length"]) // max(heads[0], 1)
    key, value = (int(header.scalars.get(f"{name}.attention.{part}_length", size)) for part in ("key", "value"))
    return sum(groups) * (key + value)


def _compute_width(header: Header, name: str, cells: int) -> int:
    """Numbers that one token of a batch needs at once, the mask of its attention among them.

    The larger of attention to every position and of a feed-forward layer's three products, with the vectors of the
    hidden size around them as llama.cpp's own figures have them, rounded up.
    """
    heads = max(_each(header, f"{name}.attention.head_count", 1))
    hidden, ffn = (int(header.scalars.get(f"{name}.{part}_length", 0)) for part in ("embedding", "feed_forward"))
    return cells + max(heads * cells + 6 * hidden, 3 * ffn + 4 * hidden)


def _each(header: Header, key: str, layers: int) -> Sequence[int]:
    """A value of each layer; one for all stands for every layer. Empty where the key is not there."""
    if key in header.arrays:
        return [int(value) for value in header.arrays[key].values]
    return [int(header.scalars[key])] * layers if key in header.scalars else []
