"""Columns of `rounds.parquet` and `requests.parquet`, with reading and writing that is compatible across versions.

A file carries its schema number. Columns missing in older files read as null, unknown columns are dropped, and a higher
schema number is refused.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.channel.csi import Csi
from testbed.errors import BadInput
from testbed.experiments.inputs.formats import Example
from testbed.experiments.inputs.marks import Mark
from testbed.experiments.results.directory import SCHEMA, request_rows, round_rows
from testbed.files import whole_file
from testbed.ue.records import RequestRecord, RoundRecord
from testbed.ue.run import Outcome
from testbed.unpacked.parquet import parquet_table

ROUNDS, REQUESTS, FIELD_LOG = "rounds.parquet", "requests.parquet", "log.jsonl"
MARK = b"testbed.schema"
MOST_ROWS = 2**21
"""Largest number of rows of a file: a short one may stand for billions of equal ones."""

Columns = dict[str, type]
KEYS: Columns = {"method": str, "request": int}


def round_columns() -> Columns:
    """Columns and types of `rounds.parquet`: method, request, fields of `RoundRecord`, and `csi_…` fields of `Csi`."""
    own = {name: kind for name, kind in _types(RoundRecord).items() if name != "csi"}
    return {**KEYS, **own, **{f"csi_{name}": kind for name, kind in _types(Csi).items()}}


def request_columns() -> Columns:
    """Columns and types of `requests.parquet`: method, request, fields of `RequestRecord` with counts for `tokens` and
    `rounds`, whether the output is lossless, its text, its mark, and name, category and turn of the prompt.
    """
    own = {**_types(RequestRecord), "rounds": int, "tokens": int}
    marked = {"parsed": bool, "right": bool}
    return {**KEYS, **own, "lossless": bool, "text": str, **marked, "id": str, "category": str, "turn": int}


def write_rounds(directory: Path, outcomes: Sequence[Outcome]) -> None:
    """Write one row per round.

    Raises:
        BadInput: pyarrow is missing.
        TestbedError: the file is not writable.
    """
    write_round_rows(directory, round_rows(outcomes))


def write_round_rows(directory: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows made by `round_row`, as `write_rounds` does."""
    _write(directory / ROUNDS, rows, round_columns())


def write_requests(
    directory: Path,
    outcomes: Sequence[Outcome],
    texts: Mapping[tuple[str, int], str],
    examples: Sequence[Example] = (),
    marks: Mapping[tuple[str, int], Mark | None] | None = None,
) -> None:
    """Write one row per request and method.

    Args:
        examples, marks: see `request_rows`.

    Raises:
        BadInput: pyarrow is missing.
        TestbedError: the file is not writable.
    """
    _write(directory / REQUESTS, request_rows(outcomes, texts, examples, marks), request_columns())


def read_rounds(directory: Path) -> Any:
    """Read a pyarrow table with all `round_columns`; missing columns are null.

    Raises:
        BadInput: a missing or unreadable file, a newer schema, or pyarrow is missing.
    """
    return _read(directory / ROUNDS, round_columns())


def read_requests(directory: Path) -> Any:
    """Read a pyarrow table with all `request_columns`, as `read_rounds` does."""
    return _read(directory / REQUESTS, request_columns())


# ---------------------------------------------------------------- types


def _types(struct: type) -> Columns:
    """Fields of a struct and their types, without None."""
    return {name: _bare(hint) for name, hint in typing.get_type_hints(struct).items() if name != "__struct_config__"}


def _bare(hint: Any) -> Any:
    if isinstance(hint, types.UnionType):
        return next(part for part in hint.__args__ if part is not types.NoneType)
    return list if typing.get_origin(hint) is list else hint


def _arrow() -> Any:
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ModuleNotFoundError as exc:
        raise BadInput("parquet files need pyarrow: install the extra `lab`") from exc
    return pa


def _schema(columns: Columns) -> Any:
    pa = _arrow()
    kinds = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_(), list: pa.list_(pa.int64())}
    known = [(name, kinds.get(kind, pa.string())) for name, kind in columns.items()]
    return pa.schema(known, metadata={MARK: str(SCHEMA)})


def _write(path: Path, rows: Sequence[Mapping[str, Any]], columns: Columns) -> None:
    pa = _arrow()
    with whole_file(path) as part:
        pa.parquet.write_table(pa.Table.from_pylist(list(rows), schema=_schema(columns)), part)


def _read(path: Path, columns: Columns) -> Any:
    pa, schema = _arrow(), _schema(columns)
    try:
        table = parquet_table(path, columns.__contains__, MOST_ROWS)
        table.validate(full=True)
    except (OSError, pa.ArrowException) as exc:
        raise BadInput(f"{path.parent}: cannot read {path.name} ({exc})") from exc
    mark = (table.schema.metadata or {}).get(MARK, b"1")
    if mark not in (str(number).encode() for number in range(1, SCHEMA + 1)):
        shown = mark[:20].decode(errors="replace")
        raise BadInput(f"{path} has schema {shown}; this version reads up to {SCHEMA}; use the version that wrote it")
    if len(set(table.column_names)) < table.num_columns:
        raise BadInput(f"{path} has two columns of one name")
    missing = sorted({"method", "request"} - set(table.column_names))
    if missing:
        raise BadInput(f"{path} lacks {', '.join(missing)}; it was not written by a run")
    arrays = []
    for field in schema:
        here = field.name in table.column_names
        column = table[field.name] if here else pa.nulls(table.num_rows, field.type)
        try:
            arrays.append(column.cast(field.type))
        except pa.ArrowException as exc:
            raise BadInput(f"{path}: column {field.name} is not {field.type} ({exc})") from exc
    return pa.table(arrays, schema=schema)
