"""Checks of a target's config.json, before an engine loads the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from testbed.assets.model_directory import check_regular
from testbed.bs.engines.target import Size, fields_of, find
from testbed.errors import BadInput, ModelError
from testbed.files import json_object

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM")
"""Architectures whose verification is tested against transformers."""
DTYPES = ("float32", "bfloat16")


class _ModelConfig(msgspec.Struct):
    """The fields of config.json that every supported architecture has."""

    vocab_size: Size
    hidden_size: Size
    num_attention_heads: Size
    max_position_embeddings: Size
    head_dim: Size | None = None


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
        ModelError: no such model, no config.json or safetensors in it, an architecture that is not supported, or a
            head with fewer rows than the vocabulary has tokens.
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
    _check_weights(directory)
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
        head_size=config.head_dim or config.hidden_size // config.num_attention_heads,
        vocab_size=vocab_size or rows,
        max_positions=max_model_len or made_for,
    )


def _check_weights(directory: Path) -> None:
    """Check that weight files are whole, by their headers."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise ModelError(f"no *.safetensors in {directory}: convert the weights with transformers' save_pretrained")
    for path in files:
        _check_file(path)


def _check_file(path: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy"):
            pass
    except (SafetensorError, OSError) as exc:
        raise ModelError(f"{path}: not usable as safetensors ({exc})") from exc


def _config(directory: Path) -> tuple[str, _ModelConfig]:
    """Architecture and fields of config.json."""
    path = directory / "config.json"
    if not path.is_file():
        raise ModelError(f"no config.json in {directory}: is it a Hugging Face model?")
    config = json_object(path)
    architecture = next(iter(config.get("architectures") or []), "none")
    if architecture not in ARCHITECTURES:
        raise ModelError(f"architecture {architecture} of {directory} is not supported: {', '.join(ARCHITECTURES)} are")
    if missing := [name for name in _ModelConfig.__struct_fields__[:4] if name not in config]:
        raise ModelError(f"{path} lacks {', '.join(missing)}")
    return architecture, fields_of(config, _ModelConfig, path)
