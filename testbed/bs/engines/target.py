"""Description of a target model's files: vocabulary, end tokens, context."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union

import msgspec

from testbed.assets.hub import may_download
from testbed.assets.model_directory import weight_files
from testbed.errors import ModelError
from testbed.files import json_object
from testbed.llama.gguf_rules import EMBEDDING, NO_TOKEN, check_gguf
from testbed.protocols.vocabulary import fingerprint, read_tokenizer, tokenizer_directory

MOST_END_IDS = 256
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

    @property
    def weights_bytes(self) -> int:
        """Size of the files with its weights.

        Raises:
            ModelError: see `weight_files`.
        """
        files = [self.path] if self.path.is_file() else weight_files(self.path)
        return sum(file.stat().st_size for file in files)


def find(model: str) -> Path:
    """Path of a model given as a directory, a GGUF file or a Hugging Face id (from the local cache, or downloaded
    if that is allowed).

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
        return Path(snapshot_download(model, allow_patterns=list(WANTED_FILES), local_files_only=not may_download()))
    except Exception as exc:  # the hub's client has no common base for "not there" and "no network"
        if not may_download():
            raise ModelError(
                f"no model at {model}: neither a directory nor in the hub's cache on this machine"
            ) from exc
        reason = str(exc).splitlines()[0] if str(exc) else type(exc).__name__
        raise ModelError(f"no model at {model}: no such directory, and the hub says: {reason}") from exc


def describe(model: str) -> Target:
    """Read a target model's files.

    Raises:
        ModelError: no such model, or a file that cannot be read.
    """
    path = find(model)
    end_ids, rows, max_positions = _gguf(path) if path.is_file() else _directory(path)
    if len(end_ids) > MOST_END_IDS or not all(0 <= token < rows for token in end_ids):
        raise ModelError(f"{path}: end tokens are at most {MOST_END_IDS} ids of the {rows} rows")
    has_tokenizer = (tokenizer_directory(path) / "tokenizer.json").exists()
    ids = vocabulary(path) if has_tokenizer else rows
    if ids > rows:
        raise ModelError(f"{path}: the tokenizer has {ids} ids, the model only {rows} rows")
    return Target(path, fingerprint(path) if has_tokenizer else "", ids, end_ids, max_positions)


EndId = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
Size = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
F = TypeVar("F", bound=msgspec.Struct)


class _Generation(msgspec.Struct):
    eos_token_id: Union[EndId, list[EndId], None] = None  # noqa: UP007 (msgspec reads it at run time, on 3.10 too)


class _TargetConfig(msgspec.Struct):
    vocab_size: Size
    max_position_embeddings: Size = 2048
    eos_token_id: Union[EndId, list[EndId], None] = None  # noqa: UP007


def fields_of(document: dict[str, Any], kind: type[F], path: Path) -> F:
    """The fields of a model's file that `kind` names.

    Raises:
        ModelError: one is missing, of a wrong type or out of range.
    """
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as exc:
        raise ModelError(f"{path}: {exc}") from exc


def _directory(directory: Path) -> tuple[tuple[int, ...], int, int]:
    """End tokens, rows of the head and positions of a Hugging Face model."""
    path = directory / "config.json"
    config = json_object(path)
    text = fields_of(config.get("text_config", config), _TargetConfig, path)
    ends = _generation(directory)
    return _end_ids(text.eos_token_id if ends is None else ends), text.vocab_size, text.max_position_embeddings


def _gguf(path: Path) -> tuple[tuple[int, ...], int, int]:
    """End tokens, rows of the head and positions of a GGUF file; its own end token counts where no
    generation_config.json beside it names any.
    """
    header = check_gguf(path)
    ends = _generation(path.parent)
    if ends is None:
        own = header.scalars.get("tokenizer.ggml.eos_token_id", NO_TOKEN)
        ends = None if own == NO_TOKEN else own if type(own) is int else -1
    positions = header.scalars[f"{header.scalars['general.architecture']}.context_length"]
    return _end_ids(ends), header.tensors[EMBEDDING].shape[1], int(positions)


def _generation(directory: Path) -> int | list[int] | None:
    """End tokens in generation_config.json; None: it names none."""
    path = directory / "generation_config.json"
    return fields_of(json_object(path), _Generation, path).eos_token_id if path.exists() else None


def _end_ids(ends: int | list[int] | None) -> tuple[int, ...]:
    return tuple(ends) if isinstance(ends, list) else () if ends is None else (ends,)


def vocabulary(model: Path) -> int:
    """Vocabulary size of a model's tokenizer: its largest id plus one."""
    return 1 + max(read_tokenizer(model).get_vocab().values())
