"""Validation of a drafter's GGUF header, since llama.cpp trusts many of its entries and aborts on invalid ones."""

from __future__ import annotations

import math
from pathlib import Path

from testbed.errors import ModelError
from testbed.llama.gguf import FLOAT32, STRING, UINT32, Header, Scalar, read_header

ARCHITECTURES = (
    "llama", "qwen2", "qwen3", "qwen3moe", "gemma", "gemma2", "gemma3", "granite", "olmo2", "phi2", "phi3", "smollm3",
    "stablelm", "starcoder2", "mamba",
)  # fmt: skip
"""Architectures whose entries are known. llama.cpp may still refuse one, and the drafter those whose cache cannot be
rolled back."""
WITHOUT_ATTENTION = ("mamba",)
BOUNDS = {
    "block_count": (1, 512),
    "context_length": (1, 2**26),
    "embedding_length": (1, 2**17),
    "feed_forward_length": (0, 2**20),
    "attention.head_count": (1, 1024),
    "attention.head_count_kv": (1, 1024),
    "attention.key_length": (1, 2**12),
    "attention.value_length": (1, 2**12),
    "attention.sliding_window": (0, 2**26),
    "rope.dimension_count": (2, 2**12),
    "rope.scaling.original_context_length": (0, 2**26),
    "expert_count": (0, 256),
    "expert_used_count": (0, 256),
    "expert_feed_forward_length": (0, 2**20),
    "expert_shared_feed_forward_length": (0, 2**20),
    "expert_shared_count": (0, 256),
    "expert_group_count": (0, 256),
    "expert_group_used_count": (0, 256),
    "leading_dense_block_count": (0, 512),
    "vocab_size": (1, 2**22),
    "ssm.conv_kernel": (1, 2**10),
    "ssm.inner_size": (1, 2**18),
    "ssm.state_size": (1, 2**14),
    "ssm.time_step_rank": (1, 2**14),
    "ssm.group_count": (0, 2**10),
}
"""Smallest and largest value of integer entries, also of those given per layer."""
NEEDED = ("block_count", "context_length", "embedding_length")
ATTENTION = ("attention.head_count",)
SCALING = ("none", "linear", "yarn", "longrope")
TOKENIZERS = ("none", "no_vocab", "llama", "gpt2")
LARGEST = 1e12
"""Upper limit of floating-point entries."""
FLOAT32_TENSOR = 0
"""Required type of norms and biases: ggml has no kernels for others, and aborts when it computes with them."""
FLOAT_TENSORS = (FLOAT32_TENSOR, 1, 30)
"""float32, float16 and bfloat16."""
NO_TOKEN = 2**32 - 1
EMBEDDING = "token_embd.weight"


def check_gguf(path: Path) -> Header:
    """Read and validate a drafter's header.

    Raises:
        ModelError: as `read_header`; or an unknown architecture, or entries that are missing, of a wrong type, out of
            range or inconsistent.
    """
    header = read_header(path)
    try:
        _check(header)
    except ValueError as exc:
        raise ModelError(f"{path}: not a usable drafter ({exc})") from None
    return header


def is_float32(header: Header) -> bool:
    """Whether all weights are float32; only then llama.cpp computes in float32."""
    return all(tensor.kind == FLOAT32_TENSOR for tensor in header.tensors.values())


def is_float(header: Header) -> bool:
    """Whether no weight is quantised."""
    return all(tensor.kind in FLOAT_TENSORS for tensor in header.tensors.values())


def _check(header: Header) -> None:
    family = header.scalars.get("general.architecture")
    if family not in ARCHITECTURES:
        raise ValueError(f"unknown model architecture {str(family)[:40]!r}; known: {', '.join(ARCHITECTURES)}")
    if header.scalars.get("split.count", 0) not in (0, 1) or "split.count" in header.arrays:
        raise ValueError("a part of several files; merge them with llama-gguf-split first")
    prefix = f"{family}."
    _check_reals(header)
    _check_numbers(header, prefix)
    if family not in WITHOUT_ATTENTION:
        _check_heads(header, prefix)
    if (scaling := header.scalars.get(f"{prefix}rope.scaling.type", SCALING[0])) not in SCALING:
        raise ValueError(f"rope scaling {str(scaling)[:40]!r}; known: {', '.join(SCALING)}")
    _check_tokenizer(header, prefix)
    for name, tensor in header.tensors.items():
        if len(tensor.shape) == 1 and tensor.kind != FLOAT32_TENSOR:
            raise ValueError(f"tensor {name!r} of one dimension is not of 32-bit numbers")


def _check_reals(header: Header) -> None:
    """Refuse NaN, infinity, and negative epsilons."""
    for key, value in header.scalars.items():
        if isinstance(value, float) and not abs(value) <= LARGEST:
            raise ValueError(f"{key[:80]!r} of {value}")
        if key.endswith("epsilon") and not (isinstance(value, float) and value >= 0):
            raise ValueError(f"{key[:80]!r} of {value!r}")
    for key, array in header.arrays.items():
        if any(isinstance(value, float) and not math.isfinite(value) for value in array.values):
            raise ValueError(f"{key[:80]!r} with numbers that are not finite")


def _check_numbers(header: Header, prefix: str) -> None:
    for name, (least, most) in BOUNDS.items():
        key = prefix + name
        if name.startswith("attention.head") and prefix[:-1] in WITHOUT_ATTENTION:
            least = 0
        if key in header.arrays:
            array = header.arrays[key]
            if array.length != _number(header, f"{prefix}block_count") or len(array.values) != array.length:
                raise ValueError(f"{key} of {array.length} layers")
            values: tuple[Scalar, ...] = array.values
        elif key in header.scalars:
            values = (header.scalars[key],)
        elif name in NEEDED or (name in ATTENTION and prefix[:-1] not in WITHOUT_ATTENTION):
            raise ValueError(f"{key} is missing")
        else:
            continue
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise ValueError(f"{key} of {str(value)[:40]}; {least} to {most}")


def _number(header: Header, key: str) -> int:
    value = header.scalars.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{key} of {str(value)[:40]!r}, no number")
    return value


def _check_heads(header: Header, prefix: str) -> None:
    """Check the numbers of attention heads and experts against each other."""
    heads = _layers(header, f"{prefix}attention.head_count")
    groups = _layers(header, f"{prefix}attention.head_count_kv") or heads
    for count in heads:
        if any(count % group for group in groups):
            raise ValueError(f"{count} heads over {groups[0]} of keys and values")
    width = _number(header, f"{prefix}embedding_length")
    size = header.scalars.get(f"{prefix}attention.key_length")
    if size is None:
        if width % heads[0]:
            raise ValueError(f"{heads[0]} heads in an embedding of {width}")
        size = width // heads[0]
    turned = header.scalars.get(f"{prefix}rope.dimension_count", 0)
    if int(turned) > int(size) or int(turned) % 2:
        raise ValueError(f"{prefix}rope.dimension_count of {turned} in heads of {size}")
    experts, used = (int(header.scalars.get(f"{prefix}expert_{name}", 0)) for name in ("count", "used_count"))
    if not min(experts, 1) <= used <= experts:
        raise ValueError(f"{used} of {experts} experts are used")


def _layers(header: Header, key: str) -> list[int]:
    """An entry's values per layer, or its single value; empty if the key is missing."""
    if key in header.arrays:
        return [int(value) for value in header.arrays[key].values]
    return [_number(header, key)] if key in header.scalars else []


def _check_tokenizer(header: Header, prefix: str) -> None:
    """Check the tokenizer's arrays against the embedding: llama.cpp reads them up to the embedding's number of rows."""
    embedding = header.tensors.get(EMBEDDING)
    if embedding is None or len(embedding.shape) != 2:
        raise ValueError(f"no tensor {EMBEDDING} of two dimensions")
    rows = embedding.shape[1]
    if (named := header.scalars.get(f"{prefix}vocab_size", rows)) != rows:
        raise ValueError(f"{prefix}vocab_size of {named}; {EMBEDDING} has {rows} rows")
    kind = header.scalars.get("tokenizer.ggml.model")
    if kind not in TOKENIZERS:
        raise ValueError(f"tokenizer {str(kind)[:40]!r}; known: {', '.join(TOKENIZERS)}")
    arrays = {"tokens": STRING, "scores": FLOAT32, "token_type": 5, "merges": STRING}
    for name, wanted in arrays.items():
        key = f"tokenizer.ggml.{name}"
        if key in header.scalars or (key in header.arrays and header.arrays[key].kind != wanted):
            raise ValueError(f"{key} of a wrong type")
        counted = name != "merges" and key in header.arrays
        if counted and header.arrays[key].length != rows:
            raise ValueError(f"{key} of {header.arrays[key].length} tokens; {EMBEDDING} has {rows} rows")
    if kind in TOKENIZERS[2:] and "tokenizer.ggml.tokens" not in header.arrays:
        raise ValueError("a tokenizer without tokens")
    for key, value in header.scalars.items():
        names_token = key.startswith("tokenizer.ggml.") and key.endswith("_id") and header.kinds[key] == UINT32
        if names_token and value != NO_TOKEN and not 0 <= int(value) < rows:
            raise ValueError(f"{key[:80]} of {value}; there are {rows} tokens")
