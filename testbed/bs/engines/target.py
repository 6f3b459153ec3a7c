"""Description of a target model's directory: vocabulary, end tokens, context."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.errors import ModelError
from testbed.protocols.vocabulary import fingerprint

WANTED_FILES = ("*.json", "*.safetensors", "*.txt", "*.jinja")


@dataclass(frozen=True)
class Target:
    """A target model on disk."""

    directory: Path
    tokenizer: str
    """Fingerprint; empty: there is no tokenizer."""
    vocab_size: int
    """Real tokens: the tokenizer's count, or the head's rows if there is no tokenizer."""
    end_ids: tuple[int, ...]
    max_positions: int


def find(model: str) -> Path:
    """Directory of a model, given as a directory or a Hugging Face id (downloaded, or from the local cache).

    Raises:
        ModelError: neither.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", model) or model.startswith((".", "/")):
        raise ModelError(
            f"no model at {model}: give a directory with config.json, or a Hugging Face id such as org/name"
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, allow_patterns=list(WANTED_FILES)))
    except Exception as exc:  # the hub's client has no common base for "not there" and "no network"
        reason = str(exc).splitlines()[0] if str(exc) else type(exc).__name__
        raise ModelError(f"no model at {model}: no such directory, and the hub says: {reason}") from exc


def describe(model: str) -> Target:
    """Read a target model's directory.

    Raises:
        ModelError: no such model, or a file that cannot be read.
    """
    directory = find(model)
    config = _read(directory / "config.json")
    text: dict[str, Any] = config.get("text_config", config)
    generation = _read(directory / "generation_config.json") if (directory / "generation_config.json").exists() else {}
    ends = generation.get("eos_token_id", text.get("eos_token_id"))
    end_ids = tuple(ends) if isinstance(ends, list) else () if ends is None else (int(ends),)
    rows = int(text["vocab_size"])
    has_tokenizer = (directory / "tokenizer.json").exists()
    ids = vocabulary(directory) if has_tokenizer else rows
    if ids > rows:
        raise ModelError(f"{directory}: the tokenizer has {ids} ids, the model only {rows} rows")
    return Target(
        directory=directory,
        tokenizer=fingerprint(directory) if has_tokenizer else "",
        vocab_size=ids,
        end_ids=end_ids,
        max_positions=int(text.get("max_position_embeddings", 2048)),
    )


def vocabulary(directory: Path) -> int:
    """Vocabulary size of the tokenizer in a directory: its largest id plus one."""
    from tokenizers import Tokenizer

    return 1 + max(Tokenizer.from_file(str(directory / "tokenizer.json")).get_vocab().values())


def _read(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ModelError(f"{path} cannot be read: {exc}") from exc
    return document
