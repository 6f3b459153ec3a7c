"""Checks of a target's config.json, before an engine loads the model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from testbed.assets.model_directory import StoredTensor, check_regular, stored_tensors
from testbed.bs.engines.target import fields_of, find
from testbed.bs.engines.tensor_shapes import (
    DEFAULTS,
    MODEL_TYPES,
    MOST_POSITIONS,
    ModelConfig,
    Shape,
    expected_tensors,
)
from testbed.errors import BadInput, ModelError
from testbed.files import json_object

ARCHITECTURES = tuple(MODEL_TYPES)
"""Architectures whose verification is tested against transformers."""
LAYER = re.compile(r"model\.layers\.(\d{1,9})\.")
EXPERT = re.compile(r"model\.layers\.\d{1,9}\.mlp\.experts\.(\d{1,9})\.")
DTYPES = ("float32", "bfloat16")
STORED = ("F64", "F32", "F16", "BF16")
"""Types of weights in a safetensors file that are the numbers themselves."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A target that an engine can load."""

    name: str
    directory: Path
    architecture: str
    hidden_size: int
    head_size: int
    vocab_size: int
    """Real tokens; rows of the output head beyond them are padding."""
    max_positions: int


def check_files(model: str | Path, *, dtype: str, vocab_size: int | None, max_model_len: int | None) -> ModelFiles:
    """Find a target and check that an engine can load it.

    Args:
        model: a directory or a Hugging Face id.
        dtype: one of `DTYPES`.
        vocab_size: real tokens, the tokenizer's count; None: all rows of the head.
        max_model_len: positions of a sequence; None: the model's own limit.

    Raises:
        ModelError: no such model, no config.json, weights that `stored_tensors` refuses or that are not those of
            config.json, an architecture that is not supported, or a head with fewer rows than the vocabulary has
            tokens.
        BadInput: an unknown dtype, or more positions than the model's limit.
    """
    if dtype not in DTYPES:
        raise BadInput(f"unknown dtype {dtype!r}: known are {', '.join(DTYPES)}")
    directory = find(str(model))
    if directory.is_file():
        raise ModelError(
            f"{directory} is a file, and this engine takes a Hugging Face directory; GGUF is for engine llama"
        )
    check_regular(directory)
    architecture, config = _config(directory)
    tensors = stored_tensors(directory)
    if not config.quantization_config:
        _check_types(tensors)
    check_shapes(directory, architecture, {name: one.shape for name, one in tensors.items()}, config)
    if config.scaled_positions > MOST_POSITIONS:
        raise ModelError(f"{directory}: config.json makes tables for {config.scaled_positions:.3g} positions")
    rows, made_for = config.vocab_size, config.max_position_embeddings
    if not 2 <= (rows if vocab_size is None else vocab_size) <= rows:
        raise ModelError(f"the vocabulary has {vocab_size} tokens, but the head of {directory} {rows} rows")
    if not 2 <= (made_for if max_model_len is None else max_model_len) <= made_for:
        raise BadInput(f"max_model_len must be between 2 and the model's {made_for}, got {max_model_len}")
    return ModelFiles(
        name=str(model),
        directory=directory,
        architecture=architecture,
        hidden_size=config.hidden_size,
        head_size=config.head_size,
        vocab_size=vocab_size or rows,
        max_positions=max_model_len or made_for,
    )


def check_shapes(directory: Path, architecture: str, shapes: Mapping[str, Shape], config: ModelConfig) -> None:
    """Check that the weights are those of config.json: engines make room for them by config.json alone, and vLLM serves
    whatever is in the memory of a tensor that is missing. Weights with a `quantization_config` have other tensors,
    which are the engine's matter.

    Raises:
        ModelError: another number of layers or experts, a tensor that is missing, or one of another shape.
    """
    layers = {int(found[1]) for name in shapes if (found := LAYER.match(name))}
    experts = {int(found[1]) for name in shapes if (found := EXPERT.match(name))}
    counts = (("layers", layers, config.num_hidden_layers), ("experts", experts, config.experts))
    for what, numbers, count in counts:
        if (numbers or what == "layers") and not len(numbers) == max(numbers, default=-1) + 1 == count:
            raise ModelError(f"{directory}: config.json says {count} {what}, the weights have {len(numbers)}")
    if config.quantization_config:
        return
    for name, shape in expected_tensors(architecture, config):
        if name not in shapes:
            raise ModelError(f"{directory}: the weights lack {name}")
        if shapes[name] != shape:
            raise ModelError(f"{directory}: {name} has the shape {shapes[name]}; config.json says {shape}")


def _check_types(tensors: Mapping[str, StoredTensor]) -> None:
    for name, one in tensors.items():
        if one.dtype not in STORED:
            raise ModelError(f"{one.file}: {name} is {one.dtype}, and config.json has no quantization_config")


def _config(directory: Path) -> tuple[str, ModelConfig]:
    """Architecture and fields of config.json."""
    path = directory / "config.json"
    if not path.is_file():
        raise ModelError(f"no config.json in {directory}: is it a Hugging Face model?")
    config = json_object(path)
    named = config.get("architectures")
    architecture = named[0] if isinstance(named, list) and named else "none"
    if architecture not in ARCHITECTURES:
        raise ModelError(f"architecture {architecture} of {directory} is not supported: {', '.join(ARCHITECTURES)} are")
    if missing := [name for name in ModelConfig.__struct_fields__[:5] if name not in config]:
        raise ModelError(f"{path} lacks {', '.join(missing)}")
    known, kind = MODEL_TYPES[architecture], config.get("model_type")
    if kind != known:  # transformers picks the class by it, vLLM does not
        raise ModelError(f"{path}: model_type of {architecture} is {known!r}, not {kind!r:.80}")
    return architecture, fields_of({**DEFAULTS[architecture], **config}, ModelConfig, path)
