"""Checks of a target's config.json, before an engine loads the model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.bs.engines.target import find
from testbed.errors import BadInput, ModelError

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM")
"""Architectures whose verification is tested against transformers."""
DTYPES = ("float32", "bfloat16")
_FIELDS = ("vocab_size", "hidden_size", "num_attention_heads", "max_position_embeddings")


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
    config = _config(directory)
    if not any(directory.glob("*.safetensors")):
        raise ModelError(f"no *.safetensors in {directory}: convert the weights with transformers' save_pretrained")
    rows, made_for = int(config["vocab_size"]), int(config["max_position_embeddings"])
    if not 2 <= (rows if vocab_size is None else vocab_size) <= rows:
        raise ModelError(f"the vocabulary has {vocab_size} tokens, but the head of {directory} {rows} rows")
    if not 2 <= (made_for if max_model_len is None else max_model_len) <= made_for:
        raise BadInput(f"max_model_len must be between 2 and the model's {made_for}, got {max_model_len}")
    return ModelFiles(
        name=str(model),
        directory=directory,
        architecture=str(config["architectures"][0]),
        hidden_size=int(config["hidden_size"]),
        head_size=int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]),
        vocab_size=vocab_size or rows,
        max_positions=max_model_len or made_for,
    )


def _config(directory: Path) -> dict[str, Any]:
    """config.json, checked for the fields of every supported architecture."""
    path = directory / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ModelError(f"no config.json in {directory}: is it a Hugging Face model?") from exc
    except ValueError as exc:
        raise ModelError(f"{path} is not JSON: {exc}") from exc
    architecture = (config.get("architectures") or ["none"])[0]
    if architecture not in ARCHITECTURES:
        raise ModelError(f"architecture {architecture} of {directory} is not supported: {', '.join(ARCHITECTURES)} are")
    if missing := [field for field in _FIELDS if field not in config]:
        raise ModelError(f"{path} lacks {', '.join(missing)}")
    return config
