"""Parquet files of a run: types, and compatibility with older and newer versions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.channel.csi import Csi
from testbed.errors import BadInput
from testbed.experiments.results.files import (
    MARK,
    read_requests,
    read_rounds,
    request_columns,
    round_columns,
    write_requests,
    write_rounds,
)  # fmt: skip
from testbed.ue.records import RequestRecord, RoundRecord
from testbed.ue.run import Outcome
from tests.support.refusals import refuse

WHOLE = st.integers(0, 2**31)
TIME = st.floats(0, 1e3)
RATE = st.floats(1e-3, 1e3)
CSIS = st.none() | st.builds(Csi, RATE, RATE, TIME, st.floats(0, 0.9), st.floats(0, 0.9), st.none() | TIME)
ROUNDS = st.builds(
    RoundRecord, round=WHOLE, protocol=st.sampled_from(["greedy", "fh"]), base_len=WHOLE, drafted=WHOLE, accepted=WHOLE,
    committed=WHOLE, candidates=WHOLE, queried=WHOLE, batch_size=WHOLE, draft_s=TIME, link_s=TIME, queue_s=TIME,
    verify_s=TIME, judge_s=TIME, overhead_s=TIME, uplink_bytes=WHOLE, downlink_bytes=WHOLE, gap=TIME, csi=CSIS,
)  # fmt: skip
RECORDS = st.builds(
    RequestRecord, prompt_len=WHOLE, token_ids=st.lists(WHOLE, max_size=4), finish_reason=st.just("stop"),
    latency_s=TIME, uplink_bytes=WHOLE, downlink_bytes=WHOLE, rounds=st.lists(ROUNDS, max_size=3),
)  # fmt: skip


@settings(max_examples=30)
@given(records=st.lists(RECORDS, max_size=4))
def test_what_was_written_comes_back(records: list[RequestRecord], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("run")
    outcomes = [Outcome("fh", i, record, i % 2 == 0 or None) for i, record in enumerate(records)]
    write_rounds(folder, outcomes)
    write_requests(folder, outcomes, {("fh", i): f"text {i}" for i in range(0, len(records), 2)})
    rounds, requests = read_rounds(folder), read_requests(folder)
    assert rounds.column_names == list(round_columns())
    assert requests.column_names == list(request_columns())
    every = [(i, r) for i, record in enumerate(records) for r in record.rounds]
    assert [(row["request"], row["link_s"], row["csi_rtt_ms"]) for row in rounds.to_pylist()] == [
        (i, r.link_s, r.csi and r.csi.rtt_ms) for i, r in every
    ]
    assert [(row["token_ids"], row["lossless"], row["text"]) for row in requests.to_pylist()] == [
        (record.token_ids, i % 2 == 0 or None, None if i % 2 else f"text {i}") for i, record in enumerate(records)
    ]
    assert sorted(p.name for p in folder.iterdir()) == ["requests.parquet", "rounds.parquet"]


def test_columns_have_their_type_even_where_nothing_is_known(tmp_path: Path) -> None:
    write_rounds(tmp_path, [])
    schema = pq.read_schema(tmp_path / "rounds.parquet")
    assert (schema.field("csi_snr_db").type, schema.field("drafted").type) == (pa.float64(), pa.int64())
    assert schema.metadata[MARK] == b"1"


def table(**more: Any) -> Any:
    return pa.table({"method": ["fh"], "request": [0], "drafted": [4], "accepted": [2], **more})


def test_an_older_run_has_nulls_for_what_it_did_not_write(tmp_path: Path) -> None:
    pq.write_table(table(csi_snr_db=pa.nulls(1)), tmp_path / "rounds.parquet")
    row = read_rounds(tmp_path).to_pylist()[0]
    assert row == dict.fromkeys(round_columns()) | {"method": "fh", "request": 0, "drafted": 4, "accepted": 2}


def test_a_newer_run_of_the_same_schema_loses_what_is_not_known_here(tmp_path: Path) -> None:
    pq.write_table(table(phase_of_moon=[0.5]), tmp_path / "rounds.parquet")
    assert "phase_of_moon" not in read_rounds(tmp_path).column_names


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot read"),
        (b"PAR1 no more", "cannot read"),
        (table().replace_schema_metadata({MARK: b"2"}), "has schema 2; this version reads up to 1"),
        (pa.table({"a": [math.pi]}), "lacks method, request"),
        (table(link_s=["long"]), "column link_s is not double"),
    ],
)
def test_what_cannot_be_read_is_refused(content: Any, words: str, tmp_path: Path) -> None:
    if isinstance(content, bytes):
        (tmp_path / "rounds.parquet").write_bytes(content)
    elif content is not None:
        pq.write_table(content, tmp_path / "rounds.parquet")
    refuse(lambda: read_rounds(tmp_path), BadInput, words)


def test_a_file_of_others_unpacks_to_no_more_than_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.unpacked.parquet.MOST_UNPACKED_BYTES", 2**20)
    columns = {"method": ["fh"] * 2000, "request": [0] * 2000}
    pq.write_table(pa.table({**columns, "unknown": ["a" * 1000] * 2000}), tmp_path / "rounds.parquet")
    assert read_rounds(tmp_path).num_rows == 2000
    pq.write_table(pa.table({**columns, "protocol": ["a" * 1000] * 2000}), tmp_path / "rounds.parquet")
    refuse(lambda: read_rounds(tmp_path), BadInput, "rounds.parquet unpacks to more than 1048576 bytes")
