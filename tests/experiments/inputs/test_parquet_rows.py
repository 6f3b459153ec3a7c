"""Rows of Parquet files, against those that were written, and of files that would take all memory or all time."""

from __future__ import annotations

import datetime as dt
import io
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from testbed.errors import BadInput
from testbed.experiments.inputs import parquet_rows as reader
from testbed.experiments.inputs.datasets import load_dataset
from testbed.experiments.inputs.parquet_rows import parquet_rows
from testbed.files import MOST_BYTES
from tests.support.refusals import refuse


def rows_of(path: Path) -> list[dict[str, Any]]:
    return list(parquet_rows(path))


def children() -> list[int]:
    """Processes that read."""
    found = map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
    return [pid for pid in found if reader.__name__.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_rows_are_those_of_every_writer(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    rows = [
        {"q": f"question {i % 3}", "m": [{"role": "user", "content": "x" * i}], "l": [["a"], []], "n": i, "none": None}
        for i in range(600)
    ]
    table = pa.Table.from_pylist(rows)
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        pq.write_table(table.set_column(0, "q", table["q"].cast(kind)), path)
        assert rows_of(path) == rows
    pq.write_table(table, path, use_dictionary=False, data_page_version="2.0", row_group_size=100)
    assert rows_of(path) == rows
    pl.DataFrame(rows, schema_overrides={"none": pl.String}).write_parquet(path)
    assert rows_of(path) == rows


def test_conversations_over_several_row_groups(tmp_path: Path) -> None:
    """They were refused, since Arrow has no dictionaries within lists there."""
    path, n = tmp_path / "chat.parquet", 900
    talks = [[{"role": "user", "content": f"hello {i}"}, {"role": "assistant", "content": "hi"}] for i in range(n)]
    columns = {"question": [f"{i} + 1?" for i in range(n)], "messages": talks}
    pq.write_table(pa.table(columns), path, row_group_size=100)
    assert [row["messages"] for row in rows_of(path)] == talks


def test_kinds_of_values(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    columns: dict[str, Any] = {
        "bytes": pa.array([b"\xff\x00"]), "map": pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string())),
        "decimal": pa.array([1], pa.decimal128(9, 2)), "float": [float("inf")], "null": pa.nulls(1),
        "struct": [{"a": {"b": [1]}}], "bool": [True],
    }  # fmt: skip
    pq.write_table(pa.table(columns), path)
    assert rows_of(path) == [
        {
            "bytes": b"\xff\x00", "map": [["a", "b"]], "decimal": "1.00", "float": float("inf"), "null": None,
            "struct": {"a": {"b": [1]}}, "bool": True,
        }
    ]  # fmt: skip


def test_columns_of_times_are_left_out(tmp_path: Path) -> None:
    """One beyond the year 9999 was a traceback, one of nanoseconds was refused."""
    path = tmp_path / "data.parquet"
    columns = {"question": ["2 + 2?"], "answer": ["4"]}
    for kind in (pa.timestamp("us"), pa.timestamp("ns"), pa.duration("ns"), pa.time64("ns")):
        pq.write_table(pa.table({**columns, "at": pa.array([2**55 + 1], kind)}), path)
        assert rows_of(path) == [{name: values[0] for name, values in columns.items()}]
    fine = pa.StructArray.from_arrays([pa.array([2**55 + 1], pa.timestamp("ns"))], ["at"])
    pq.write_table(pa.table({**columns, "meta": fine}), path)
    assert rows_of(path) == [{name: values[0] for name, values in columns.items()}]
    pq.write_table(pa.table({**columns, "meta": [{"timestamp": "noon", "duration": 3}]}), path)
    assert rows_of(path)[0]["meta"] == {"timestamp": "noon", "duration": 3}
    far = pa.StructArray.from_arrays([pa.array([2**62], pa.timestamp("us", "UTC"))], ["at"])
    pq.write_table(pa.table({**columns, "meta": far, "timestamps": ["a"]}), path)
    assert rows_of(path) == [{"question": "2 + 2?", "answer": "4", "timestamps": "a"}]


@pytest.mark.parametrize("whole", [True, False])
def test_times_within_lists_are_left_out_alone(tmp_path: Path, whole: bool) -> None:
    """Conversations with a time for each turn were left out whole."""
    path, at = tmp_path / "data.parquet", dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
    turn = pa.struct({"content": pa.string(), "header": pa.struct({"a": pa.string()}), "timestamp": pa.timestamp("us")})
    said = [{"content": "2 + 2?", "header": {"a": "b"}, "timestamp": at}, {"content": "4", "header": None}]
    lists = (pa.list_(turn), pa.large_list(turn), pa.list_(turn, 2))
    columns: dict[str, Any] = {f"list {n}": pa.array([said], kind) for n, kind in enumerate(lists)}
    columns["times"] = pa.array([[at]], pa.list_(pa.timestamp("ns")))
    columns["map"] = pa.array([[("a", at)]], pa.map_(pa.string(), pa.timestamp("us")))
    columns["map of turns"] = pa.array([[("a", said[0])]], pa.map_(pa.string(), turn))
    columns["date32 x"] = [{"time32 y": 1}]
    columns["gap"] = pa.array([{"s": 5, "n": 1}], pa.struct({"s": pa.duration("s"), "n": pa.int8()}))
    columns["id"] = pa.array(["a"], pa.string()).dictionary_encode()
    pq.write_table(pa.table(columns), path, store_schema=whole)
    kept = [{"content": "2 + 2?", "header": {"a": "b"}}, {"content": "4", "header": None}]
    expected = {f"list {n}": kept for n in range(3)} | {"date32 x": {"time32 y": 1}, "gap": {"n": 1}, "id": "a"}
    if not whole:  # a duration is a number without Arrow's schema
        expected["gap"] = {"s": 5, "n": 1}
    assert rows_of(path) == [expected]


def test_what_takes_too_much_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a kilobyte of `list` took 6.3 GB, one of `text` 4 GB."""
    monkeypatch.setattr(reader, "MOST_MEMORY_BYTES", 2**30)
    path, count = tmp_path / "data.parquet", 10_000_000
    flags = pa.StructArray.from_arrays([pa.array(np.zeros(count, bool))], ["a"])
    lists = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), flags)
    pq.write_table(pa.table({"question": ["x"], "list": lists}), path, compression="zstd", store_schema=False)
    refuse(lambda: rows_of(path), BadInput, reader.MEMORY)
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 200, pa.int32()), pa.array([b"x" * 2 * 10**7], pa.binary()))
    pq.write_table(pa.table({"text": text}), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 10_000
    rows = parquet_rows(path)
    assert len(next(rows)["text"]) == 2 * 10**7  # rows share it
    rows.close()
    assert not children()


def test_a_row_has_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"text": ["a", "x" * MOST_BYTES]}), path, compression="zstd")
    refuse(lambda: rows_of(path), BadInput, f"a row has more than {MOST_BYTES} bytes")
    assert len(load_dataset(str(_questions(tmp_path)), 1)) == 1


def _questions(folder: Path) -> Path:
    pq.write_table(pa.table({"question": ["a", "b"], "answer": ["1", "2"]}), folder / "questions.parquet")
    return folder / "questions.parquet"


def test_its_process_ends_with_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"text": ["x" * 1000] * 5000}), path)
    rows = parquet_rows(path)
    next(rows)
    assert len(children()) == 1
    rows.close()
    assert not children()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_dies_or_stops_is_told(how: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"text": [f"{i}" * 1000 for i in range(5000)]}), path)
    rows = parquet_rows(path)
    next(rows)
    os.kill(children()[0], how)
    if how == signal.SIGSTOP:
        monkeypatch.setattr(reader, "WAIT_S", 1.0)
    refuse(lambda: list(rows), BadInput, "ended by SIGKILL" if how == signal.SIGKILL else "take more than 1 s")
    assert not children()


def test_damaged_files_and_none(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    refuse(lambda: load_dataset(str(path), 1), BadInput, "cannot read the data set")
    path.write_bytes(b"PAR1" + bytes(99))
    refuse(lambda: load_dataset(str(path), 1), BadInput, "cannot read ")
    pq.write_table(pa.Table.from_arrays([pa.array([1])] * 2, ["a", "a"]), path)
    refuse(lambda: load_dataset(str(path), 1), BadInput, "more than once")
    os.mkfifo(tmp_path / "pipe.parquet")
    refuse(lambda: load_dataset(str(tmp_path / "pipe.parquet"), 1), BadInput, "not a regular file")


def test_messages_are_one_line_of_bounded_length(tmp_path: Path) -> None:
    out = io.BytesIO()
    reader.read(tmp_path / ("n" * 250 + "\n"), out)
    said = out.getvalue()[reader.HEAD :]
    assert b"\n" not in said and 0 < len(said) <= reader.MOST_REASON_BYTES


def test_readers_in_several_threads(tmp_path: Path) -> None:
    path = _questions(tmp_path)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(len(rows_of(path)))) for _ in range(4)]
    start_s = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [2] * 4 and time.monotonic() - start_s < 60
