"""Fingerprints of model weights: check that a decision head or predictor runs with the model it was trained for."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from testbed.assets.model_directory import INDEX, weight_files
from testbed.errors import BadInput

SMALL_BYTES = 64 * 2**20
"""Files up to this size are read completely; larger ones at both ends and in blocks between."""
END_BYTES = 2**20
BLOCK_BYTES = 64 * 2**10
BLOCKS = 16
"""Number of evenly spaced blocks read from a large file."""
MOST_BYTES = 2**30
"""Largest size of the files of a head or predictor."""
WEIGHTS = ("*.safetensors", "*.npz")
DESCRIPTIONS = (
    "config.json", "generation_config.json", INDEX, "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json", "vocab.json",
    "merges.txt", "tokenizer.model", "head.json", "predictor.json",
)  # fmt: skip
"""Files of the directory of a model, head or predictor, on which results depend beside its weights."""
SYNTHETIC = "synthetic"
"""Fingerprint of the synthetic pair, which has no files."""


def model_fingerprint(path: Path) -> str:
    """Hash of a model's weights, 16 hex digits, computed in well under a second for any size.

    It depends on the contents and sizes of the files, not on their names.

    Args:
        path: a GGUF file, or a directory with config.json and the weights in `weight_files`.

    Raises:
        BadInput: `path` is neither of these or cannot be read.
    """
    return _fingerprint([path / "config.json", *weight_files(path)] if path.is_dir() else [path])


def file_stamp(name: str) -> str | None:
    """Fingerprint of an input file, or of the directory of a model, head or predictor, computed again only after a
    change; None: it is neither.

    Raises:
        BadInput: it cannot be read.
    """
    path = Path(name)
    files = [path] if path.is_file() else [file for kind in WEIGHTS for file in sorted(path.glob(kind))]
    if not files:
        return None
    described = [file for file in (path / name for name in DESCRIPTIONS) if file.is_file()]
    stats = [(file, file.stat()) for file in (*described, *files)]
    return _stamp(tuple((file, stat.st_size, stat.st_mtime_ns) for file, stat in stats))


def directory_stamp(directory: Path) -> str:
    """Digest of all files in the directory of a head or predictor, 12 hex digits, computed again only after a change.

    Raises:
        BadInput: they are too large for one.
        OSError: one cannot be read.
    """
    stats = [(path, path.stat()) for path in sorted(directory.iterdir()) if path.is_file()]
    if sum(stat.st_size for _, stat in stats) > MOST_BYTES:
        raise BadInput(f"{directory} is no head or predictor: its files have more than {MOST_BYTES} bytes")
    return _directory_stamp(tuple((path, stat.st_size, stat.st_mtime_ns) for path, stat in stats))


@functools.lru_cache(maxsize=256)
def _directory_stamp(files: tuple[tuple[Path, int, int], ...]) -> str:
    digest = hashlib.blake2b(digest_size=6)
    for path, *_ in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


@functools.lru_cache(maxsize=256)
def _stamp(files: tuple[tuple[Path, int, int], ...]) -> str:
    return _fingerprint([file for file, *_ in files])


def _fingerprint(files: Sequence[Path]) -> str:
    """Hash of files.

    Raises:
        BadInput: one cannot be read.
    """
    digest = hashlib.blake2b(digest_size=8)
    try:
        for file in files:
            with file.open("rb") as stream:
                _add(digest, stream)
    except OSError as exc:
        raise BadInput(f"{exc.filename or files[0]} cannot be read: {exc.strerror or exc}") from exc
    return digest.hexdigest()


def _add(digest: hashlib.blake2b, stream: BinaryIO) -> None:
    """Hash a file's size and the parts of it that `_pieces` selects."""
    size = stream.seek(0, os.SEEK_END)
    digest.update(size.to_bytes(8, "little"))
    for start, length in _pieces(size):
        stream.seek(start)
        digest.update(stream.read(length))


def _pieces(size: int) -> list[tuple[int, int]]:
    """(start, length) of each part of a file that is read."""
    if size <= SMALL_BYTES:
        return [(0, size)]
    between = [(i * size // (BLOCKS + 1), BLOCK_BYTES) for i in range(1, BLOCKS + 1)]
    return [(0, END_BYTES), *between, (size - END_BYTES, END_BYTES)]
