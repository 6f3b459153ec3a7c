"""Sizes of a Parquet file's pages, against the footers that pyarrow writes, and files whose footer lies."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from testbed.errors import BadInput
from testbed.unpacked.pages import page_sizes
from testbed.unpacked.parquet import parquet_table
from tests.support.refusals import refuse


def sizes(path: Path) -> list[int]:
    about = pq.read_metadata(path)
    return [size for _, size in page_sizes(path, about, range(about.num_columns))]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "zstd", "snappy"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_pages_have_the_values_of_the_footer(version: str, compression: str, dictionary: bool, tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    path, n = tmp_path / "rounds.parquet", 5000
    lists = [list(range(i % 7)) for i in range(n)]
    columns: dict[str, Any] = {
        "a": generator.integers(0, 9, n), "b": generator.normal(size=n), "c": lists, "d": [None, "text"] * (n // 2),
    }  # fmt: skip
    pq.write_table(
        pa.table(columns), path, compression=compression, use_dictionary=dictionary, data_page_version=version,
        data_page_size=1000, row_group_size=2000, write_batch_size=100,
    )  # fmt: skip
    about = pq.read_metadata(path)
    for i in range(about.num_columns):
        chunks = [about.row_group(group).column(i) for group in range(about.num_row_groups)]
        found = [size for _, size in page_sizes(path, about, [i])]
        values = sum(chunk.num_values for chunk in chunks) * (24 if "list" in chunks[0].path_in_schema else 8)
        assert len(found) > (2 if i == 1 else 0) * len(chunks)
        assert values <= sum(found) <= values + sum(chunk.total_uncompressed_size for chunk in chunks)


def hiding(path: Path, values: int, stated: int) -> None:
    """Write one row with a list of `values` equal numbers, of which the footer states `stated`."""
    numbers = pa.array(np.full(values, 7, np.int64))
    offsets = pa.array(np.array([0, values], np.int32))
    columns = {"method": pa.array(["greedy"]), "token_ids": pa.ListArray.from_arrays(offsets, numbers)}
    pq.write_table(
        pa.table(columns), path, compression="zstd", write_statistics=False, data_page_size=2**30, store_schema=False,
        write_batch_size=2**20,
    )  # fmt: skip
    content = path.read_bytes()
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    wide = varint(2 * values)
    small = bytearray(varint(2 * stated))
    while len(small) < len(wide):
        small[-1] |= 128
        small.append(0)
    assert content.count(wide, begin) in (1, 2)
    path.write_bytes(content[:begin] + content[begin:].replace(wide, bytes(small)))


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def test_a_page_with_more_values_than_the_footer_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a file of 1.4 kB took 3.3 GB."""
    monkeypatch.setattr("testbed.unpacked.parquet.MOST_UNPACKED_BYTES", 2**20)
    path = tmp_path / "requests.parquet"
    hiding(path, 500_000, 10)
    assert path.stat().st_size < 3000
    assert max(sizes(path)) == 24 * 500_000
    refuse(lambda: parquet_table(path, lambda name: True, 10), BadInput, "unpacks to more than")


@pytest.mark.parametrize(
    "header",
    [
        b"\x15\x00\x15\x02\x15\x02\x05\x04\x02\x00",
        b"\x15\x00\x15\x01\x15\x02\x00",
        b"\x15\x00\x19\xf5\xff\xff\xff\xff\x0f\x00",
        b"\x05\x84\x80\x08\x02\x00",
        b"\x1c" * 20,
        b"\x15" + b"\xff" * 12,
        b"\x15\x00\x18\x02\x00",
        b"\x15\x00\x15\x02\x15\x82\x80\x80\x80\x20\x00",
        b"\x15\x00\x15\x02\x16" + b"\x82" + b"\x80" * 8 + b"\x02\x00",
    ],
    ids=[
        "field twice",
        "negative",
        "list",
        "field of 17 bits",
        "deep",
        "endless number",
        "size that is text",
        "size of 33 bits",
        "size of 65 bits",
    ],
)
def test_headers_that_readers_may_take_differently(header: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": list(range(99))}), path, use_dictionary=False)
    about, content = pq.read_metadata(path), bytearray(path.read_bytes())
    at = about.row_group(0).column(0).data_page_offset
    content[at : at + len(header)] = header
    path.write_bytes(content)
    refuse(lambda: list(page_sizes(path, about, [0])), BadInput, f"a damaged footer or page at byte {at}")


@pytest.mark.parametrize(
    "changed", [b"parquet-mr version 1.2.8 (build 1)", b"parquet-mr", b"PARQUET-MR version 1.12.3 "]
)
def test_a_writer_whose_chunks_have_no_certain_end(changed: bytes, tmp_path: Path) -> None:
    """Readers look 100 bytes beyond its chunks, where there is room for a page."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    content = path.read_bytes()
    writer = content[content.index(b"parquet-cpp-arrow") :][:32]
    path.write_bytes(content.replace(writer, changed[:32].ljust(32)))
    refuse(lambda: sizes(path), BadInput, "whose files cannot be checked")
    path.write_bytes(content.replace(writer, b"parquet-mr version 1.13.10000000"))
    assert sizes(path)


def test_columns_whose_names_have_dots_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.unpacked.parquet.MOST_UNPACKED_BYTES", 2**10)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a.b": [1] * 999, "c": [{"d": 1}] * 999}), path)
    for name in ("a.b", "c"):
        refuse(lambda name=name: parquet_table(path, name.__eq__, 999), BadInput, "unpacks to more")  # type: ignore[misc]


def test_a_column_twice(tmp_path: Path) -> None:
    """It was a traceback."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array([1])] * 2, ["a", "a"]), path)
    refuse(lambda: parquet_table(path, lambda name: True, 10), BadInput, "a column more than once")


def test_a_dictionary_counts_in_each_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch keeps a copy of it, whether its values are used or not: 17 kB took 8.8 GB."""
    monkeypatch.setattr("testbed.unpacked.parquet.MOST_UNPACKED_BYTES", 2**22)
    path, rows = tmp_path / "rounds.parquet", 300_000
    method = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["a", "x" * 2**20]))
    pq.write_table(pa.table({"method": method}), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 5000
    refuse(lambda: parquet_table(path, lambda name: True, rows), BadInput, "unpacks to more than 4194304 bytes")


def test_names_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"naming": [1]}), path)
    path.write_bytes(path.read_bytes().replace(b"naming", b"nam\xffng"))
    refuse(lambda: parquet_table(path, lambda name: True, 10), BadInput, "is damaged")


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(at=st.integers(4, 400), byte=st.integers(0, 255))
@example(at=4, byte=0)
def test_a_changed_byte_is_refused_or_read(at: int, byte: int, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [[1, 2], [3]], "b": ["x", "y"]}), path)
    about, content = pq.read_metadata(path), bytearray(path.read_bytes())
    content[min(at, len(content) - 9)] = byte
    path.write_bytes(content)
    with contextlib.suppress(BadInput):
        assert all(size >= 0 for _, size in page_sizes(path, about, range(about.num_columns)))
