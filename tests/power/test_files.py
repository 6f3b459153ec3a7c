"""Files of samples: round trips, external meters, malformed files."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import BadInput, TestbedError
from testbed.power import files
from testbed.power.files import Log, last_sample_s, read_samples, write_parquet
from testbed.power.reading import Reading
from testbed.power.series import Samples
from tests.power import recorded
from tests.support.refusals import refuse


class Source:
    """The attributes of a source that a log needs."""

    name, mean, total, period_s = "jetson", False, "VDD_IN + VDD_X, all of it", 0.1


def log(
    path: Path, readings: list[Reading], again: bool = False, rails: tuple[str, ...] = ("VDD_IN", "VDD_SOC")
) -> Path:
    with contextlib.closing(Log(path, Source(), rails, 1000.0, again)) as written:  # type: ignore[arg-type]
        for reading in readings:
            written.take(reading)
    return path


READINGS = [
    Reading(0.0, {"VDD_IN": 5.0, "VDD_SOC": 1.25}, 5.0, 41.5, ""),
    Reading(0.1, {"VDD_IN": 6.0}, 6.0, None, None),
    Reading(0.2, {"VDD_IN": 7.0, "VDD_SOC": 1.5}, 7.0, 43.0, "over-current+thermal"),
]


def same(found: Samples) -> None:
    np.testing.assert_allclose(found.time_s, [1000.0, 1000.1, 1000.2])
    np.testing.assert_allclose(found.total_w, [5, 6, 7])
    np.testing.assert_allclose(found.rails["VDD_IN"], [5, 6, 7])
    np.testing.assert_allclose(found.rails["VDD_SOC"], [1.25, np.nan, 1.5])
    assert found.temp_c is not None
    np.testing.assert_allclose(found.temp_c, [41.5, np.nan, 43.0])
    assert found.throttled == ("", None, "over-current+thermal")
    assert (found.source, found.mean, found.total) == ("jetson", False, Source.total)


def test_logs_and_parquet_round_trip(tmp_path: Path) -> None:
    found = read_samples(log(tmp_path / "power.csv", READINGS))
    same(found)
    assert found.skipped == 0
    write_parquet(tmp_path / "power.parquet", found)
    same(read_samples(tmp_path / "power.parquet"))
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["power.csv", "power.parquet"]


def test_a_truncated_log_can_be_continued(tmp_path: Path) -> None:
    path = log(tmp_path / "power.csv", READINGS[:2])
    path.write_bytes(path.read_bytes()[:-9])  # within the second line
    log(path, READINGS[2:], again=True)
    found = read_samples(path)
    np.testing.assert_allclose(found.total_w[[0, -1]], [5, 7])
    assert found.skipped + len(found.time_s) == 3
    refuse(lambda: log(path, [], again=True, rails=("gpu0",)), BadInput, "other sensors")
    same(read_samples(log(path, READINGS)))  # a new run replaces the log


def test_a_log_of_many_hours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One above the bound of other files, after half a day, left no power and no run directory."""
    monkeypatch.setattr("testbed.files.MOST_BYTES", 1000)
    readings = [Reading(n / 20, {"VDD_IN": 5.0}, 5.0) for n in range(200)]
    path = log(tmp_path / "power.csv", readings)
    assert path.stat().st_size > 5000 and len(read_samples(path).time_s) == 200
    assert last_sample_s(log(path, [Reading(10.0, {}, 5.0)], again=True)) == 1010.0
    monkeypatch.setattr(files, "MOST_LOG_BYTES", path.stat().st_size + 100)
    refuse(lambda: log(path, readings, again=True), TestbedError, "takes no more samples")
    assert len(read_samples(path).time_s) > 200
    monkeypatch.setattr(files, "MOST_LOG_BYTES", 1000)
    refuse(lambda: read_samples(path), BadInput, "at most 1000")


def test_the_last_sample_of_a_log(tmp_path: Path) -> None:
    path = tmp_path / "power.csv"
    assert last_sample_s(path) == -math.inf
    assert last_sample_s(log(path, [])) == -math.inf
    assert last_sample_s(log(path, READINGS)) == 1000.2
    for cut in ("2000", "nan,5", "x,5", ""):
        path.write_text(log(path, READINGS).read_text() + cut)
        assert last_sample_s(path) == 1000.2


def test_a_meters_csv(tmp_path: Path) -> None:
    path = tmp_path / "meter.csv"
    path.write_text("time_s, voltage_v, current_a, note\n10,5.0,1.0,a\n10.5,5.0,2.0,\n11,4.0,2.0,b\n")
    found = read_samples(path)
    np.testing.assert_allclose(found.total_w, [5, 10, 8])
    assert (found.source, found.total, found.mean) == ("file", "voltage_v × current_a", False)
    path.write_text("time_s,VDD_IN_w,VDD_SOC_w,throttled\n0,5,1,0\n1,6,1,yes\n2,7,1,under-voltage\n")
    found = read_samples(path)
    np.testing.assert_allclose(found.total_w, [5, 6, 7])  # one rail is the total
    assert found.throttled == ("", "throttled", "under-voltage")
    path.write_text("time_s,VDD_IN_w,VDD_SOC_w\n0,5,1\n1,,1\n2,7,1\n")
    found = read_samples(path)
    np.testing.assert_allclose(found.total_w, [5, 7])  # the other rail alone does not count as the total
    assert found.skipped == 1


def test_a_log_of_tegrastats(tmp_path: Path) -> None:
    later = recorded.TEGRASTATS_ORIN_NANO.replace("08:38:09", "08:38:10").replace("VDD_IN 12479", "VDD_IN 13000")
    (tmp_path / "tegra.log").write_text(f"{recorded.TEGRASTATS_ORIN_NANO}\n{later}\n")
    found = read_samples(tmp_path / "tegra.log")
    np.testing.assert_allclose(found.total_w, [12.479, 13.0])
    assert np.diff(found.time_s) == pytest.approx([1.0])
    assert (found.source, found.total) == ("tegrastats", "VDD_IN")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["no column time_s"]),
        ("watts\n1\n2\n", ["no column time_s", "watts"]),
        ("time_s,watts\n0,1\n1,2\n", ["no power"]),
        ("time_s,total_w,total_w\n0,5,50\n1,5,50\n", ["it has the column total_w more than once"]),
        ("time_s,total_w\n0,1\n", ["two samples"]),
        ("time_s,total_w\n0,1\n1,x\n2,\n3\n4,2\n", ["3 of 5 lines"]),
        ("time_s,total_w\n9,1\n10,1\n1,1\n2,1\n3,1\n", ["3 of 5 lines"]),
        ("time_s,total_w\n0,inf\n1,nan\n", ["two samples"]),
        ("time_s,voltage_v,current_a\n0,5,-1\n1,5,-2\n", ["power is below 0 throughout"]),
        ('time_s,total_w\n0,"' + "x" * 200_000 + "\n", ["field"]),
        ("\x00\x00\x00\n", []),
    ],
)
def test_files_without_samples_are_refused(text: str, words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    refuse(lambda: read_samples(path), BadInput, "bad.csv", *words)


def test_invalid_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "meter.csv"
    path.write_text("time_s,total_w\n0,1\nhello\n1,2\n1,3\n2,nan\n3,4\n4,5\n5")
    found = read_samples(path)
    assert (len(found.time_s), found.skipped) == (4, 4)


@settings(max_examples=50)
@given(st.text(max_size=300))
def test_any_text_gives_samples_or_bad_input(text: str) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = Path(folder) / "some.csv"
        path.write_text("time_s,total_w\n" + text, encoding="utf-8", errors="replace")
        try:
            found = len(read_samples(path).time_s) >= 2
        except BadInput as exc:
            found = "some.csv" in str(exc)
        assert found


def test_invalid_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "power.parquet"
    refuse(lambda: read_samples(path), BadInput, "power.parquet")
    path.write_bytes(b"PAR1")
    refuse(lambda: read_samples(path), BadInput, "power.parquet")
    pq.write_table(pa.table({"time_s": [0.0, 1.0]}), path)
    refuse(lambda: read_samples(path), BadInput, "no total_w")
    pq.write_table(pa.table({"time_s": [0.0, 1.0], "total_w": ["a", "b"]}), path)
    refuse(lambda: read_samples(path), BadInput, "power.parquet")
    pq.write_table(pa.table({"time_s": [0.0, None], "total_w": [1.0, 2.0]}), path)
    refuse(lambda: read_samples(path), BadInput, "finite")
    refuse(lambda: read_samples(tmp_path), BadInput, str(tmp_path))


def test_a_log_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    refuse(lambda: log(tmp_path / "none" / "power.csv", []), BadInput, "cannot write")
    assert os.listdir(tmp_path) == []


def test_a_file_of_others_unpacks_to_no_more_than_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.unpacked.parquet.MOST_UNPACKED_BYTES", 2**20)
    times, path = np.arange(2000.0), tmp_path / "power.parquet"
    pq.write_table(pa.table({"time_s": times, "total_w": times, "unknown": ["a" * 1000] * 2000}), path)
    assert len(read_samples(path).time_s) == 2000
    pq.write_table(pa.table({"time_s": times, "total_w": times, "throttled": ["a" * 1000] * 2000}), path)
    refuse(lambda: read_samples(path), BadInput, "unpacks to more than 1048576 bytes")
