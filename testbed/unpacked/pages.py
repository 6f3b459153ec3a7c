"""What the pages of a Parquet file unpack to, by their own headers: the footer's counts bound nothing, since a reader
decodes each page whole.

Footer and headers are structs of Thrift's compact protocol (parquet-format, `FileMetaData` and `PageHeader`). pyarrow's
objects for column chunks are not used: damaged statistics abort the process there, and are an error where it reads.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from testbed.errors import BadInput

Fields: TypeAlias = dict[int, Any]
"""Fields of a struct that are wanted, by number: counts (None), structs and lists of structs, with their own fields."""

ROW_GROUPS, CHUNKS, ROWS, ABOUT, LENGTH, FIRST_DATA, FIRST_DICTIONARY = 4, 1, 3, 3, 7, 9, 11
"""Fields of the footer, of a row group, of a column's chunk, and of what is said about it."""
FOOTER: Fields = {
    ROW_GROUPS: [{CHUNKS: [{ABOUT: {LENGTH: None, FIRST_DATA: None, FIRST_DICTIONARY: None}}], ROWS: None}]
}
UNPACKED, PACKED, VALUES, KINDS = 2, 3, 1, (5, 7, 8)
"""Fields of a page's header: its size as it is unpacked, that in the file, its number of values, and what it is in, by
kind of page."""
PAGE: Fields = {UNPACKED: None, PACKED: None, **{kind: {VALUES: None} for kind in KINDS}}

BOOLEANS, BYTE, INTEGERS, DOUBLE, BINARY, LISTS, STRUCT = (1, 2), 3, {4: 16, 5: 32, 6: 64}, 7, 8, (9, 10), 12
"""Types; bits of integers. Readers cut off further bits."""
SIZE_BITS = 31
DEEPEST = 12
"""Structs and lists within each other, at most."""
MOST_PAGES = 100_000
MOST_FOOTER_BYTES, MOST_HEADER_BYTES = 2**23, 2**16
OLD_WRITER, WELL_KNOWN = (
    "parquet-mr",
    re.compile(r"parquet-mr version ([2-9]|1\.([3-9]|[1-9]\d))\.\d+( \(build [0-9a-f]*\))?"),
)
"""A writer of which old versions state chunks as too short, so that readers look for pages beyond; and newer ones."""


def page_sizes(path: Path, about: Any, columns: Collection[int]) -> Iterator[tuple[int, int]]:
    """Column of each page of some columns, and the memory that it takes as it is decoded [bytes].

    Args:
        about: the file's metadata, of pyarrow.
        columns: indices of the columns.

    Raises:
        BadInput: a damaged footer or header, too many pages, or a writer whose chunks have no certain end.
        OSError: the file cannot be read.
    """
    if OLD_WRITER in (writer := about.created_by.lower()) and not WELL_KNOWN.fullmatch(writer):
        raise BadInput(f"{path} was written by {writer!r}, whose files cannot be checked")
    leaves = {i: about.schema.column(i) for i in columns}
    levels = {i: leaf.max_repetition_level + leaf.max_definition_level for i, leaf in leaves.items()}
    widths = {i: max(8, leaf.length or 0) for i, leaf in leaves.items()}
    count = 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        groups, left = _row_groups(path, content, about.num_rows), len(content)
        for i, chunk in (
            (i, chunk) for group in groups for i, chunk in enumerate(group.get(CHUNKS, ())) if i in columns
        ):
            for header, size_bytes in _pages(path, content, chunk.get(ABOUT, {})):
                count, left = count + 1, left - size_bytes
                if count > MOST_PAGES or left < 0:
                    raise BadInput(f"{path} has more than {MOST_PAGES} pages, or pages that overlap")
                values = sum(header[kind].get(VALUES, 0) for kind in KINDS if kind in header)
                yield i, max(header.get(UNPACKED, 0), values * (widths[i] + 8 * max(0, levels[i] - 2)))


def _row_groups(path: Path, content: mmap.mmap, rows: int) -> list[dict[int, Any]]:
    """The row groups of a file with this number of rows.

    Raises:
        BadInput: a damaged footer.
    """
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    if not 0 <= begin <= len(content) - 8 <= begin + MOST_FOOTER_BYTES:
        raise BadInput(f"{path} has a footer of more than {MOST_FOOTER_BYTES} bytes, or a damaged one")
    footer, _ = _read(path, content, begin, FOOTER)
    groups: list[dict[int, Any]] = footer.get(ROW_GROUPS, [])
    if sum(group.get(ROWS, 0) for group in groups) != rows:
        raise BadInput(f"{path} has other rows in its row groups than in all")
    return groups


def _pages(path: Path, content: mmap.mmap, chunk: dict[int, int]) -> Iterator[tuple[dict[int, Any], int]]:
    """Headers of the pages of a chunk, and the sizes of header and page in the file [bytes].

    Raises:
        BadInput: a damaged header.
    """
    at = chunk.get(FIRST_DATA, 0)
    if 0 < chunk.get(FIRST_DICTIONARY, 0) < at:
        at = chunk[FIRST_DICTIONARY]
    end = at + chunk.get(LENGTH, 0)
    while at < end:
        begin = at
        header, at = _read(path, content, begin, PAGE)
        if at > begin + MOST_HEADER_BYTES:
            raise BadInput(f"{path} has a page whose header is larger than {MOST_HEADER_BYTES} bytes")
        at += header.get(PACKED, 0)
        yield header, at - begin


def _read(path: Path, content: mmap.mmap, at: int, wanted: Fields) -> tuple[dict[int, Any], int]:
    """A struct, and the place after it.

    Raises:
        BadInput: it is none, or has a wanted number below 0.
    """
    try:
        return _struct(content, at, wanted, DEEPEST)
    except (IndexError, ValueError) as exc:
        raise BadInput(f"{path} has a damaged footer or page at byte {at}") from exc


def _struct(content: mmap.mmap, at: int, wanted: Fields, depth: int) -> tuple[dict[int, Any], int]:
    """The wanted fields of a struct by number, and the place after it; what readers may take differently is refused."""
    fields, seen, number = dict[int, Any](), set[int](), 0
    while (head := content[at]) & 15:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            coded, at = _varint(content, at, 16)
            number = _signed(coded)
        if number in seen or not 0 < number < 2**15:
            raise ValueError("a field twice, or with a number of more than 16 bits")
        seen.add(number)
        if head & 15 in BOOLEANS:  # the type is the value
            continue
        value, at = _value(content, at, head & 15, wanted.get(number), depth)
        if number in wanted:
            fields[number] = _checked(value, wanted[number])
    return fields, at + 1


def _checked(value: Any, wanted: Any) -> Any:
    """A wanted value, which must be of its type, and no negative number."""
    if type(value) is not (int if wanted is None else type(wanted)) or (wanted is None and value < 0):
        raise ValueError("a field of another type, or a negative number")
    return value


def _value(content: mmap.mmap, at: int, kind: int, wanted: Any, depth: int) -> tuple[Any, int]:
    """A number, a struct, or a list of structs, or None, and the place after it."""
    if not depth or at >= len(content):
        raise ValueError("too deep, or cut off")
    if kind == STRUCT:
        return _struct(content, at, wanted if isinstance(wanted, dict) else {}, depth - 1)
    if kind in LISTS:
        return _list(content, at, wanted[0] if isinstance(wanted, list) else None, depth - 1)
    if kind in (*BOOLEANS, BYTE, DOUBLE):
        return None, at + (8 if kind == DOUBLE else 1)
    if kind != BINARY and kind not in INTEGERS:
        raise ValueError("no Parquet file has such a field")
    coded, at = _varint(content, at, INTEGERS.get(kind, SIZE_BITS))
    return (None, at + coded) if kind == BINARY else (_signed(coded), at)


def _list(content: mmap.mmap, at: int, wanted: Fields | None, depth: int) -> tuple[list[Any], int]:
    """The structs of a list, if they are wanted, and the place after it."""
    head, at = content[at], at + 1
    count, at = _varint(content, at, SIZE_BITS) if head >> 4 == 15 else (head >> 4, at)
    found = list[Any]()
    for _ in range(count):
        value, at = _value(content, at, head & 15, wanted, depth)
        if wanted is not None:
            found.append(_checked(value, wanted))
    return found, at


def _varint(content: mmap.mmap, at: int, bits: int) -> tuple[int, int]:
    """An unsigned number of at most `bits` bits, and the place after it. Each byte has seven bits, the lowest first."""
    number = shift = 0
    while True:
        number |= (content[at] & 127) << shift
        if number >> bits or shift > 63:
            raise ValueError(f"a number of more than {bits} bits")
        if content[at] < 128:
            return number, at + 1
        at, shift = at + 1, shift + 7


def _signed(coded: int) -> int:
    """The number that is coded in zigzag."""
    return (coded >> 1) ^ -(coded & 1)
