"""Tables from Parquet files, which unpack to more than their size: bounded by what they unpack to."""

from __future__ import annotations

from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from testbed.errors import BadInput
from testbed.files import regular_bytes
from testbed.unpacked.pages import page_sizes

MOST_UNPACKED_BYTES = 2**30
"""Largest size of the columns that are read."""


def parquet_table(path: Path, wanted: Callable[[str], bool], most_rows: int) -> Any:
    """The columns of a Parquet file whose names are wanted, as a pyarrow table in which text is in dictionaries.

    Raises:
        BadInput: more rows, a column twice, text within lists, damaged pages, or more than `MOST_UNPACKED_BYTES`, which
            a few kilobytes may unpack to.
        OSError: it cannot be read, or is no regular file.
        pyarrow.ArrowException: not a Parquet file, or a damaged one.
    """
    try:
        return _table(path, wanted, most_rows)
    except UnicodeDecodeError as exc:  # in names
        raise BadInput(f"{path} is damaged: {exc}") from exc


def _table(path: Path, wanted: Callable[[str], bool], most_rows: int) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    regular_bytes(path)
    about = pq.read_metadata(path)
    if about.num_rows > most_rows:
        raise BadInput(f"{path} has {about.num_rows} rows; at most {most_rows} are read")
    schema = about.schema.to_arrow_schema()
    names = [name for name in schema.names if wanted(name)]
    if len(known := set(names)) < len(names):
        raise BadInput(f"{path} has a column more than once")
    text = [name for name in names if pa.types.is_string(schema.field(name).type)]
    numbers = [i for i in range(about.num_columns) if _within(about.schema.column(i).path, known)]
    columns = [about.schema.column(i) for i in numbers]
    if any("BYTE_ARRAY" in one.physical_type and one.path not in text for one in columns):
        raise BadInput(f"{path} has text or bytes in another form than a column of strings")
    size = sum(size for _, size in page_sizes(path, about, numbers))
    batches, unpacked = [], 0
    with pq.ParquetFile(path, read_dictionary=text) as file:
        for batch in file.iter_batches(columns=names, use_threads=False) if size <= MOST_UNPACKED_BYTES else ():
            batches.append(batch)
            unpacked += sum(map(_unpacked_bytes, batch.columns))
            if unpacked > MOST_UNPACKED_BYTES:
                break
    if max(size, unpacked) > MOST_UNPACKED_BYTES:
        raise BadInput(f"{path} unpacks to more than {MOST_UNPACKED_BYTES} bytes")
    found = batches[0].schema if batches else pa.schema([schema.field(name) for name in names])
    return pa.Table.from_batches(batches, found).replace_schema_metadata(schema.metadata)


def _within(path: str, names: Container[str]) -> bool:
    """Whether a column of a Parquet file is one of these, or part of one; names may have dots. Long ones count, too."""
    parts = path.split(".") if len(path) < 1000 else ()
    return not parts or any(".".join(parts[:i]) in names for i in range(1, len(parts) + 1))


def _unpacked_bytes(column: Any) -> int:
    """Size of a column's values, those of a dictionary counted each time, but at least the dictionary's."""
    from pyarrow import DictionaryArray, FixedSizeListArray, LargeListArray, ListArray, MapArray, StructArray, compute

    if isinstance(column, MapArray):
        return _unpacked_bytes(column.keys) + _unpacked_bytes(column.items)
    if isinstance(column, StructArray):
        return sum(map(_unpacked_bytes, column.flatten()))
    if isinstance(column, ListArray | LargeListArray | FixedSizeListArray):
        return _unpacked_bytes(column.flatten())
    if not isinstance(column, DictionaryArray):
        return int(column.nbytes)
    used = compute.sum(compute.binary_length(column.dictionary).take(column.indices)).as_py() or 0
    return max(int(used), int(column.dictionary.nbytes))  # each batch has a copy of it
