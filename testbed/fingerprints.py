"""Fingerprints of model weights: what a decision head or a predictor was trained for, told from what it is given."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import BinaryIO

from testbed.errors import BadInput

SMALL_BYTES = 64 * 2**20
"""Files up to this size are read whole; of larger ones both ends and blocks between them."""
END_BYTES = 2**20
BLOCK_BYTES = 64 * 2**10
BLOCKS = 16
"""Read from a large file, evenly spaced."""
SYNTHETIC = "synthetic"
"""Stands for the fingerprint of the synthetic pair, which has no files."""


def model_fingerprint(path: Path) -> str:
    """16 hex digits that name a model's weights, in well under a second whatever their size.

    Names of files do not count, their contents and sizes do.

    Args:
        path: a GGUF file, or a directory with config.json and *.safetensors.

    Raises:
        BadInput: neither, or it cannot be read.
    """
    files = [path]
    if path.is_dir():
        files = [path / "config.json", *sorted(path.glob("*.safetensors"))]
        if len(files) == 1:
            raise BadInput(f"{path} holds no *.safetensors: give a GGUF file, or a directory of a model")
    digest = hashlib.blake2b(digest_size=8)
    try:
        for file in files:
            with file.open("rb") as stream:
                _add(digest, stream)
    except OSError as exc:
        raise BadInput(f"{exc.filename or path} cannot be read: {exc.strerror or exc}") from exc
    return digest.hexdigest()


def _add(digest: hashlib.blake2b, stream: BinaryIO) -> None:
    """Add a file's size and what of its contents counts."""
    size = stream.seek(0, os.SEEK_END)
    digest.update(size.to_bytes(8, "little"))
    for start, length in _pieces(size):
        stream.seek(start)
        digest.update(stream.read(length))


def _pieces(size: int) -> list[tuple[int, int]]:
    """(start, length) of what is read of a file."""
    if size <= SMALL_BYTES:
        return [(0, size)]
    between = [(i * size // (BLOCKS + 1), BLOCK_BYTES) for i in range(1, BLOCKS + 1)]
    return [(0, END_BYTES), *between, (size - END_BYTES, END_BYTES)]
