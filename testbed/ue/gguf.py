"""Checks of a GGUF file's header, made before the file is handed to llama.cpp.

Layout (little-endian): magic, version, number of tensors, number of metadata entries; the entries; one record per
tensor (name, dimensions, type, offset); the tensors' data.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from testbed.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of each scalar metadata type."""


class _Walker:
    """A position in a file, moved over values and never beyond the file's end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 0

    def skip(self, count: int) -> None:
        if count > len(self.data) - self.at:
            raise EOFError
        self.at += count

    def number(self, layout: str) -> int:
        start = self.at
        self.skip(struct.calcsize(layout))
        return int(struct.unpack_from(layout, self.data, start)[0])

    def skip_string(self) -> None:
        self.skip(self.number("<Q"))

    def skip_value(self, kind: int) -> None:
        """Skip one metadata value. Raises ValueError: there is no such type."""
        if kind == STRING:
            self.skip_string()
        elif kind == ARRAY:
            inner, count = self.number("<I"), self.number("<Q")
            if inner == STRING:
                for _ in range(count):
                    self.skip_string()
            else:
                self.skip(count * _width(inner))
        else:
            self.skip(_width(kind))

    def skip_tensor(self) -> None:
        self.skip_string()
        self.skip(8 * self.number("<I"))
        self.skip(struct.calcsize("<IQ"))


def _width(kind: int) -> int:
    if kind not in WIDTHS:
        raise ValueError(f"metadata of unknown type {kind}")
    return WIDTHS[kind]


def check_gguf(path: Path) -> None:
    """Read a GGUF file's header to its end.

    That the data of every tensor is there is left to llama.cpp, which knows their sizes and says so.

    Raises:
        ModelError: the file is missing, is no GGUF, is of an unknown version, or ends within its header.
    """
    if not path.is_file():
        raise ModelError(f"{path}: no such file; give a drafter in GGUF format")
    with path.open("rb") as file:
        magic = file.read(len(MAGIC))
        if magic != MAGIC:
            raise ModelError(f"{path}: not a GGUF file (starts with {magic!r}); convert the model to GGUF first")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                _walk(_Walker(data))
            except EOFError:
                raise ModelError(f"{path}: the file ends within its header; copy or download it again") from None
            except ValueError as exc:
                raise ModelError(f"{path}: not a usable GGUF file ({exc})") from None


def _walk(walker: _Walker) -> None:
    walker.skip(len(MAGIC))
    version = walker.number("<I")
    if version not in VERSIONS:
        raise ValueError(f"version {version}; versions {VERSIONS[0]} and {VERSIONS[1]} are known")
    tensors, entries = walker.number("<Q"), walker.number("<Q")
    for _ in range(entries):
        walker.skip_string()
        walker.skip_value(walker.number("<I"))
    for _ in range(tensors):
        walker.skip_tensor()
