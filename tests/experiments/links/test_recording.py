"""Traces recorded from run directories."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from testbed.channel.csi import Csi
from testbed.channel.trace import read_trace, write_trace
from testbed.cli.channel.record import record as command
from testbed.errors import BadInput
from testbed.experiments.links.recording import record
from testbed.experiments.results import directory as results
from testbed.ue.records import RequestRecord, RoundRecord
from testbed.ue.run import Outcome
from tests.support.refusals import refuse


def round_(csi: Csi | None) -> RoundRecord:
    parts = dict.fromkeys(("draft_s", "link_s", "queue_s", "verify_s", "judge_s", "overhead_s", "gap"), 0.0)
    counts = dict.fromkeys(
        ("round", "base_len", "drafted", "accepted", "committed", "candidates", "queried", "batch_size",
         "uplink_bytes", "downlink_bytes"), 0,
    )  # fmt: skip
    return RoundRecord(protocol="greedy", csi=csi, **counts, **parts)


def write_run(directory: Path, *requests: list[Csi | None]) -> Path:
    """A run directory as written by a run, with each request's rounds in order."""
    outcomes = [
        Outcome("greedy", i, RequestRecord(1, [], "stop", 1.0, 0, 0, [round_(csi) for csi in states]))
        for i, states in enumerate(requests)
    ]
    results.write_parquet(directory / "rounds.parquet", results.round_rows(outcomes))
    return directory


def state(time_s: float, mbps: float, **more: Any) -> Csi:
    return Csi(mbps, 2 * mbps, 50.0, time_s=time_s, source=more.pop("source", "passive"), **more)


def test_medians_of_each_interval_by_hand(tmp_path: Path) -> None:
    first: list[Csi | None] = [state(10.0, 5.0), state(10.4, 9.0), None, state(10.9, 6.0), state(11.0, 20.0)]
    # the second request ran beside the first; it alone goes on, after a pause
    second: list[Csi | None] = [state(11.5, 40.0, snr_db=12.0), state(14.2, 7.0, per_up=0.25, source="probe")]
    found = record(write_run(tmp_path, first, second))
    trace = found.trace
    assert trace.t_s.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert trace.uplink_mbps.tolist() == [6.0, 30.0, 30.0, 30.0, 7.0]
    assert trace.downlink_mbps.tolist() == [12.0, 60.0, 60.0, 60.0, 14.0]
    assert trace.rtt_ms.tolist() == [50.0] * 5
    assert trace.per_up.tolist() == [0.0, 0.0, 0.0, 0.0, 0.25]
    assert [None if math.isnan(v) else v for v in trace.snr_db.tolist()] == [None, 12.0, 12.0, 12.0, None]
    assert found.gaps == ((2.0, 4.0),)
    assert (found.rounds, found.without, found.sources) == (6, 1, ("passive", "probe"))
    assert found.header[0] == "recorded from 6 rounds, median of each 1 s; 1 gaps held, 2 s in total"


def test_edges_belong_to_the_interval_that_begins_there(tmp_path: Path) -> None:
    found = record(write_run(tmp_path, [state(0.1 * i, 1.0 + i) for i in range(50)]), 0.1)
    assert found.trace.uplink_mbps.tolist() == [1.0 + i for i in range(50)]
    assert not found.gaps


def test_a_state_that_never_changed_is_one_sample(tmp_path: Path) -> None:
    found = record(write_run(tmp_path, [Csi(20.0, 30.0, 50.0)] * 4))
    assert (len(found.trace), found.rounds, found.sources) == (1, 4, ("assumed",))
    assert found.trace.csi(0.0).downlink_mbps == 30.0


def test_a_recording_is_a_trace_that_replays_what_was_seen(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    times_s = np.cumsum(rng.exponential(0.2, 300)).tolist()
    states: list[Csi | None] = [state(t, float(rng.uniform(1, 50))) for t in times_s]
    found = record(write_run(tmp_path, states), 0.5)
    write_trace(tmp_path / "out.csv", found.trace, found.header)
    replayed = read_trace(tmp_path / "out.csv")
    for i in range(len(replayed)):
        seen = [s.uplink_mbps for s in states if s and 0.5 * i <= s.time_s - times_s[0] < 0.5 * (i + 1)]
        if seen:
            assert replayed.csi(0.5 * i + 0.25).uplink_mbps == pytest.approx(np.median(seen))
        else:
            assert any(a <= 0.5 * i < b for a, b in found.gaps)


def test_what_is_no_run_or_knew_no_channel(tmp_path: Path) -> None:
    refuse(lambda: record(tmp_path / "none"), BadInput, "is not a run directory", "rounds.parquet")
    (tmp_path / "rounds.parquet").write_bytes(b"not a table")
    refuse(lambda: record(tmp_path), BadInput, "cannot read")
    write_run(tmp_path, [None, None])
    refuse(lambda: record(tmp_path), BadInput, "has no channel state", "--csi")
    results.write_parquet(tmp_path / "rounds.parquet", [{"method": "greedy", "csi_uplink_mbps": 1.0}])
    refuse(lambda: record(tmp_path), BadInput, "lacks", "csi_time_s")
    columns = {f"csi_{name}": None for name in Csi.__struct_fields__}
    row = {**columns, "csi_uplink_mbps": "fast", "csi_time_s": 0.0, "csi_source": "probe"}
    results.write_parquet(tmp_path / "rounds.parquet", [row])
    refuse(lambda: record(tmp_path), BadInput, "not numeric")
    row = {**columns, "csi_uplink_mbps": 1.0, "csi_time_s": 0.0, "csi_source": "probe"}
    results.write_parquet(tmp_path / "rounds.parquet", [row])
    table, late = pq.read_table(tmp_path / "rounds.parquet"), pa.array([2**62], pa.timestamp("us"))
    at = table.column_names.index("csi_time_s")
    pq.write_table(table.set_column(at, "csi_time_s", late), tmp_path / "rounds.parquet")
    refuse(lambda: record(tmp_path), BadInput, "not numeric")  # such a time was a traceback


def test_intervals_that_make_no_sense(tmp_path: Path) -> None:
    write_run(tmp_path, [state(0.0, 1.0), state(1000.0, 1.0)])
    for interval_s in (0.0, -1.0, math.nan, math.inf):
        refuse(lambda i=interval_s: record(tmp_path, i), BadInput, "must be positive and finite")
    refuse(lambda: record(tmp_path, 1e-4), BadInput, "the limit is 1000000")
    write_run(tmp_path, [state(0.0, 1.0), state(1e19, 1.0)])
    refuse(lambda: record(tmp_path), BadInput, "the limit is 1000000")


def test_the_command_writes_and_does_not_overwrite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, [state(0.0, 1.0), None, state(3.0, 2.0)])
    command(tmp_path, None, 1.0, False, False)
    output = capsys.readouterr()
    assert "4 samples of 1 s from 2 rounds" in output.out
    assert output.err == "no round from 1 to 3 s: the state before is held\n1 rounds knew nothing of their channel\n"
    assert read_trace(tmp_path / "trace.csv").uplink_mbps.tolist() == [1.0, 1.0, 1.0, 2.0]
    refuse(lambda: command(tmp_path, None, 2.0, False, False), BadInput, "--force")
    command(tmp_path, None, 2.0, True, False)
    assert len(read_trace(tmp_path / "trace.csv")) == 2


def test_a_run_that_was_resumed_goes_on_in_time(tmp_path: Path) -> None:
    """Each process counts from its own begin: both parts lay over each other, without a gap."""

    def part(clock_unix_s: float, clock_s: float, mbps: float, request: int) -> Outcome:
        rounds = [
            msgspec.structs.replace(
                round_(state(float(i), mbps)), begin_s=clock_s + i, verdict_s=clock_s + i, end_s=clock_s + i
            )
            for i in range(3)
        ]
        return Outcome("greedy", request, RequestRecord(1, [], "stop", 1.0, 0, 0, rounds, clock_unix_s=clock_unix_s))

    for second in ((1000.001, 60.0), (1060.0, 1.0)):  # of the same machine, and after it was started again
        outcomes = [part(1000.0, 50.0, 5.0, 0), part(*second, 9.0, 1)]
        results.write_parquet(tmp_path / "rounds.parquet", results.round_rows(outcomes))
        rows = [{"method": o.method, "request": o.request, "clock_unix_s": o.record.clock_unix_s} for o in outcomes]
        results.write_parquet(tmp_path / "requests.parquet", rows)
        found = record(tmp_path)
        after = 10 if second[0] < 1010 else 11
        assert found.trace.uplink_mbps.tolist() == [5.0] * after + [9.0] * 3
        assert found.gaps == ((3.0, float(after)),)


@pytest.mark.parametrize("damage", ["cut", "lists"])
def test_requests_that_are_damaged_are_one_line(damage: str, tmp_path: Path) -> None:
    """They were a traceback."""
    test_a_run_that_was_resumed_goes_on_in_time(tmp_path)
    path = tmp_path / "requests.parquet"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    else:
        results.write_parquet(path, [{"method": [1], "request": 0, "clock_unix_s": 1.0}])
    with pytest.raises(BadInput, match=r"cannot read requests\.parquet"):
        record(tmp_path)
