"""Description of a target model's files: vocabulary, end tokens, context."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.errors import ModelError
from testbed.llama.gguf_rules import EMBEDDING, NO_TOKEN, check_gguf
from testbed.protocols.vocabulary import fingerprint, tokenizer_directory

WANTED_FILES = ("*.json", "*.safetensors", "*.txt", "*.jinja")


@dataclass(frozen=True)
class Target:
    """A target model on disk."""

    path: Path
    """Hugging Face directory, or GGUF file with the tokenizer beside it."""
    tokenizer: str
    """Fingerprint; empty: there is no tokenizer."""
    vocab_size: int
    """Real tokens: the tokenizer's count, or the head's rows if there is no tokenizer."""
    end_ids: tuple[int, ...]
    max_positions: int


def find(model: str) -> Path:
    """Path of a model given as a directory, a GGUF file or a Hugging Face id (downloaded, or from the local cache).

    Raises:
        ModelError: none of them.
    """
    path = Path(model).expanduser()
    if path.exists():
        return path
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", model) or model.startswith((".", "/")):
        raise ModelError(
            f"no model at {model}: give a directory with config.json, a GGUF file, or a Hugging Face id (org/name)"
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, allow_patterns=list(WANTED_FILES)))
    except Exception as exc:  # the hub's client has no common base for "not there" and "no network"
        reason = str(exc).splitlines()[0] if str(exc) else type(exc).__name__
        raise ModelError(f"no model at {model}: no such directory, and the hub says: {reason}") from exc


def describe(model: str) -> Target:
    """Read a target model's files.

    Raises:
        ModelError: no such model, or a file that cannot be read.
    """
    path = find(model)
    end_ids, rows, max_positions = _gguf(path) if path.is_file() else _directory(path)
    has_tokenizer = (tokenizer_directory(path) / "tokenizer.json").exists()
    ids = vocabulary(path) if has_tokenizer else rows
    if ids > rows:
        raise ModelError(f"{path}: the tokenizer has {ids} ids, the model only {rows} rows")
    return Target(path, fingerprint(path) if has_tokenizer else "", ids, end_ids, max_positions)


def _directory(directory: Path) -> tuple[tuple[int, ...], int, int]:
    """End tokens, rows of the head and positions of a Hugging Face model."""
    config = _read(directory / "config.json")
    text: dict[str, Any] = config.get("text_config", config)
    ends = _generation(directory).get("eos_token_id", text.get("eos_token_id"))
    return _end_ids(ends), int(text["vocab_size"]), int(text.get("max_position_embeddings", 2048))


def _gguf(path: Path) -> tuple[tuple[int, ...], int, int]:
    """End tokens, rows of the head and positions of a GGUF file; its own end token counts where no
    generation_config.json beside it names any.
    """
    header = check_gguf(path)
    ends = _generation(path.parent).get("eos_token_id", header.scalars.get("tokenizer.ggml.eos_token_id"))
    positions = header.scalars[f"{header.scalars['general.architecture']}.context_length"]
    return _end_ids(ends), header.tensors[EMBEDDING].shape[1], int(positions)


def _generation(directory: Path) -> dict[str, Any]:
    path = directory / "generation_config.json"
    return _read(path) if path.exists() else {}


def _end_ids(ends: Any) -> tuple[int, ...]:
    return tuple(ends) if isinstance(ends, list) else () if ends in (None, NO_TOKEN) else (int(ends),)


def vocabulary(model: Path) -> int:
    """Vocabulary size of a model's tokenizer: its largest id plus one."""
    from tokenizers import Tokenizer

    return 1 + max(Tokenizer.from_file(str(tokenizer_directory(model) / "tokenizer.json")).get_vocab().values())


def _read(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ModelError(f"{path} cannot be read: {exc}") from exc
    return document
