"""Reader of GGUF headers, which checks sizes and offsets before the file is given to llama.cpp, which is native code.

Layout (little-endian): magic, version, number of tensors, number of metadata entries; the entries; one record per
tensor (name, dimensions, type, offset); padding to the alignment; the tensors' data. `gguf_rules` checks the values of
the entries.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from testbed.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
UINT32, FLOAT32, STRING, ARRAY = 4, 6, 8, 9
LAYOUTS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", UINT32: "<I", 5: "<i", FLOAT32: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
"""`struct` formats of the scalar metadata types."""
BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84),
    11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 16: (256, 66), 17: (256, 74), 18: (256, 98),
    19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip
"""Elements and bytes per block of the tensor types used for weights (ggml's `type_traits`)."""
MOST_STRINGS = 2**22
"""Strings of an array, at most."""
MOST_ENTRIES, MOST_TENSORS = 2**14, 2**16
MOST_DIMENSIONS = 4
MOST_NAME, MOST_KEY = 63, 2**16 - 1
"""Largest size in bytes of a tensor's name, and of an entry's key."""
ALIGNMENT = "general.alignment"
DEFAULT_ALIGNMENT, MOST_ALIGNMENT = 32, 2**16
KEPT = 2**16
"""Largest size in bytes of a string whose value is kept."""

Scalar = str | int | float | bool


class GgufArray(NamedTuple):
    """An array in the metadata; only short numeric arrays have `values`, others stay in the file."""

    kind: int
    length: int
    values: tuple[Scalar, ...]


class Tensor(NamedTuple):
    """Shape, type and position of a tensor."""

    shape: tuple[int, ...]
    """Fastest dimension first."""
    kind: int
    offset: int
    """Relative to the start of the data."""
    size_bytes: int


@dataclass
class Header:
    """Content of a file's header."""

    scalars: dict[str, Scalar] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    """Types of the scalars."""
    arrays: dict[str, GgufArray] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)


class _Cursor:
    """A position in a file that advances over values and never moves past the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 0

    def skip(self, count: int) -> int:
        """Advance by `count` bytes; returns the position before."""
        before = self.at
        if count > len(self.data) - before:
            raise EOFError
        self.at = before + count
        return before

    def scalar(self, layout: str) -> Scalar:
        start = self.skip(struct.calcsize(layout))
        value: Scalar = struct.unpack_from(layout, self.data, start)[0]
        return value

    def number(self, layout: str) -> int:
        return int(self.scalar(layout))

    def string(self, most: int) -> str:
        """A string of at most `most` bytes. Raises ValueError if it is longer or not text."""
        length = self.number("<Q")
        start = self.skip(length)
        if length > most:
            raise ValueError(f"a name of {length} bytes; at most {most}")
        text = self.data[start : self.at].decode("utf-8", "strict")
        if "\0" in text:
            raise ValueError("a name with a zero byte")
        return text

    def text(self) -> str:
        """A string of any length; empty if longer than `KEPT`."""
        length = self.number("<Q")
        start = self.skip(length)
        return self.data[start : self.at].decode("utf-8", "replace") if length <= KEPT else ""


def read_header(path: Path) -> Header:
    """Read a GGUF file's header, and check that all tensor data are within the file.

    Raises:
        ModelError: the file is missing, not GGUF, of an unknown version, truncated within the header, or has invalid
            values.
    """
    if not path.is_file():
        raise ModelError(f"{path}: no such file; give a drafter in GGUF format")
    with path.open("rb") as file:
        magic = file.read(len(MAGIC))
        if magic != MAGIC:
            raise ModelError(f"{path}: not a GGUF file (starts with {magic!r}); convert the model to GGUF first")
        try:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as exc:  # larger than the address space that this process may have
            raise ModelError(f"{path} cannot be read: {exc.strerror or exc}") from exc
        with mapped as data:
            try:
                return _read_all(_Cursor(data))
            except EOFError:
                raise ModelError(f"{path}: the file ends within its header; copy or download it again") from None
            except ValueError as exc:
                raise ModelError(f"{path}: not a usable GGUF file ({exc})") from None


def _read_all(cursor: _Cursor) -> Header:
    cursor.skip(len(MAGIC))
    version = cursor.number("<I")
    if version not in VERSIONS:
        raise ValueError(f"version {version}; versions {VERSIONS[0]} and {VERSIONS[1]} are known")
    tensors, entries = cursor.number("<Q"), cursor.number("<Q")
    header = Header()
    for _ in range(_count(entries, MOST_ENTRIES, "metadata entries", cursor)):
        _read_entry(cursor, header)
    alignment = _alignment(header)
    for _ in range(_count(tensors, MOST_TENSORS, "tensors", cursor)):
        _read_tensor(cursor, header, alignment)
    data_bytes = len(cursor.data) - -(-cursor.at // alignment) * alignment
    for name, tensor in header.tensors.items():
        if tensor.offset + tensor.size_bytes > data_bytes:
            raise ValueError(f"the data of tensor {name!r} are not within the file bounds")
    return header


def _count(count: int, most: int, what: str, cursor: _Cursor) -> int:
    """Check a number of items, each of which takes at least a byte of the rest of the file."""
    if count > len(cursor.data) - cursor.at:
        raise EOFError
    if count > most:
        raise ValueError(f"{count} {what}; at most {most}")
    return count


def _read_entry(cursor: _Cursor, header: Header) -> None:
    key, kind = cursor.string(MOST_KEY), cursor.number("<I")
    if key in header.scalars or key in header.arrays:
        raise ValueError(f"{key!r} twice")
    if kind == ARRAY:
        header.arrays[key] = _array(cursor)
        return
    header.scalars[key] = cursor.text() if kind == STRING else cursor.scalar(_layout(kind))
    header.kinds[key] = kind


def _array(cursor: _Cursor) -> GgufArray:
    kind, count = cursor.number("<I"), cursor.number("<Q")
    if kind == STRING:
        if count > MOST_STRINGS:
            raise ValueError(f"an array of {count} strings; at most {MOST_STRINGS}")
        for _ in range(count):
            cursor.skip(cursor.number("<Q"))
        return GgufArray(kind, count, ())
    layout = _layout(kind)
    start = cursor.skip(count * struct.calcsize(layout))
    short = count <= MOST_ENTRIES
    values = struct.unpack_from(f"<{count}{layout[1]}", cursor.data, start) if short else ()
    return GgufArray(kind, count, values)


def _layout(kind: int) -> str:
    if kind not in LAYOUTS:
        raise ValueError(f"metadata of unknown type {kind}")
    return LAYOUTS[kind]


def _alignment(header: Header) -> int:
    value = header.scalars.get(ALIGNMENT, DEFAULT_ALIGNMENT)
    power = isinstance(value, int) and 0 < value <= MOST_ALIGNMENT and value & (value - 1) == 0
    if not power or header.kinds.get(ALIGNMENT, UINT32) != UINT32 or ALIGNMENT in header.arrays:
        raise ValueError(f"{ALIGNMENT} of {value!r}")
    return int(value)


def _read_tensor(cursor: _Cursor, header: Header, alignment: int) -> None:
    name = cursor.string(MOST_NAME)
    dimensions = cursor.number("<I")
    if not 1 <= dimensions <= MOST_DIMENSIONS:
        raise ValueError(f"tensor {name!r} of {dimensions} dimensions; 1 to {MOST_DIMENSIONS}")
    shape = tuple(cursor.number("<Q") for _ in range(dimensions))
    kind, offset = cursor.number("<I"), cursor.number("<Q")
    if name in header.tensors:
        raise ValueError(f"tensor {name!r} twice")
    if kind not in BLOCKS:
        raise ValueError(f"tensor {name!r} of unknown type {kind}")
    elements, block_bytes = BLOCKS[kind]
    if 0 in shape or shape[0] % elements:
        raise ValueError(f"tensor {name!r} of shape {shape}; the first must be a multiple of {elements}")
    if offset % alignment:
        raise ValueError(f"tensor {name!r} begins at {offset}, no multiple of {alignment}")
    header.tensors[name] = Tensor(shape, kind, offset, math.prod(shape) // elements * block_bytes)
