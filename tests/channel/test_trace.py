"""Traces: the sample at a given time, CSV round trips, refusals."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.channel.trace import COLUMNS, OUTAGE_MBPS, Trace, read_trace, write_trace
from testbed.errors import BadInput

HEADER = "t_s,uplink_mbps,downlink_mbps,rtt_ms,per_up,per_down,snr_db"


def trace(t_s: list[float], **columns: list[float]) -> Trace:
    n = len(t_s)
    usual = {"uplink_mbps": 20.0, "downlink_mbps": 50.0, "rtt_ms": 30.0, "per_up": 0.0, "per_down": 0.0}
    values = {name: [value] * n for name, value in usual.items()} | {"snr_db": [math.nan] * n} | columns
    return Trace(np.array(t_s), **{name: np.array(value) for name, value in values.items()})


def same(a: Trace, b: Trace) -> bool:
    return all(np.array_equal(a.columns[name], b.columns[name], equal_nan=True) for name in COLUMNS)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    n = draw(st.integers(1, 12))
    column = lambda low, high, **more: np.array(draw(st.lists(st.floats(low, high, **more), min_size=n, max_size=n)))  # noqa: E731
    t_s = sorted(draw(st.sets(st.floats(1e-6, 1e7), min_size=n - 1, max_size=n - 1)))
    snr_db = np.where(column(0, 1) < 0.3, np.nan, column(-200, 200))
    return Trace(np.array([0.0, *t_s]), column(0, 1e5), column(0, 1e5), column(0, 1e4),
                 column(0, 1, exclude_max=True), column(0, 1, exclude_max=True), snr_db)  # fmt: skip


# ---------------------------------------------------------------- in force


def test_a_sample_holds_until_the_next_and_the_last_as_long_as_the_one_before() -> None:
    one = trace([0.0, 1.0, 3.0])
    assert one.duration_s == 5.0
    at = [0.0, 0.999, 1.0, 2.999, 3.0, 4.999]
    assert [one.index(t) for t in at] == [one.index(t, loop=False) for t in at] == [0, 0, 1, 1, 2, 2]


def test_beyond_the_end_it_starts_again_or_holds() -> None:
    one = trace([0.0, 1.0, 3.0])
    assert [one.index(t) for t in (5.0, 6.0, 8.5, 5.0e6 + 1)] == [0, 1, 2, 1]
    assert [one.index(t, loop=False) for t in (5.0, 6.0, 8.5, 1e12)] == [2, 2, 2, 2]


@given(traces(), st.floats(0, 1e9))
def test_index_is_what_a_search_from_the_start_finds(one: Trace, t_s: float) -> None:
    i = one.index(t_s)
    within_s = math.fmod(t_s, one.duration_s)
    assert i == max(k for k, start_s in enumerate(one.t_s) if start_s <= within_s)
    assert one.index(t_s, loop=False) == max(k for k, start_s in enumerate(one.t_s) if start_s <= t_s)


def test_one_sample_lasts_a_second() -> None:
    one = trace([0.0])
    assert (len(one), one.duration_s, one.index(17.3), one.index(17.3, loop=False)) == (1, 1.0, 0, 0)


@pytest.mark.parametrize("t_s", [-0.001, math.nan, math.inf])
def test_no_time_at_all(t_s: float) -> None:
    with pytest.raises(BadInput, match="finite and not negative"):
        trace([0.0, 1.0]).index(t_s)


def test_channel_state_says_where_it_comes_from_and_when() -> None:
    one = trace([0.0, 1.0], uplink_mbps=[7.0, 0.0], per_up=[0.1, 0.2], snr_db=[math.nan, 12.5])
    first, second = one.csi(2.5), one.csi(3.0)
    assert (first.uplink_mbps, first.downlink_mbps, first.rtt_ms, first.per_up) == (7.0, 50.0, 30.0, 0.1)
    assert (first.snr_db, first.time_s, first.source) == (None, 2.5, "trace")
    assert (second.uplink_mbps, second.per_up, second.snr_db, second.time_s) == (OUTAGE_MBPS, 0.2, 12.5, 3.0)


def test_samples_may_be_a_microsecond_apart() -> None:
    steps = np.arange(1000) * 1e-6  # differences are rounded
    ones = np.ones(1000)
    assert len(Trace(steps, ones, ones, ones, 0 * ones, 0 * ones, ones)) == 1000


def test_means_are_over_time_and_over_what_is_known() -> None:
    one = trace([0.0, 1.0, 4.0], uplink_mbps=[7.0, 14.0, 0.0], snr_db=[math.nan, 10.0, 20.0])
    means = one.means()
    assert means["uplink_mbps"] == pytest.approx((7 + 3 * 14 + 3 * 0) / 7)
    assert means["snr_db"] == pytest.approx(15.0)
    assert trace([0.0, 1.0]).means()["snr_db"] is None


# ---------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("t_s", "columns", "said"),
    [
        ([0.5, 1.0], {}, "sample 0: t_s must begin at 0, not 0.5"),
        ([0.0, 1.0, 1.0], {}, "sample 2: t_s must increase by 1e-06 s or more, but 1 comes after 1"),
        ([0.0, math.nan], {}, "sample 1: t_s must increase"),
        ([0.0, 1e-310], {}, "sample 1: t_s must increase by 1e-06 s or more, but 1e-310 comes after 0"),
        ([0.0, math.inf], {}, "sample 1: t_s must be finite"),
        ([0.0, 1.7e308], {}, "sample 1: t_s must be at most 1e\\+09, not"),
        ([0.0, 1.0], {"uplink_mbps": [1.0, -1.0]}, "sample 1: uplink_mbps must be finite and not negative, not -1"),
        ([0.0, 1.0], {"rtt_ms": [math.nan, 1.0]}, "sample 0: rtt_ms"),
        ([0.0, 1.0], {"uplink_mbps": [1.0, 1e305]}, r"sample 1: uplink_mbps must be at most 1e\+12, not 1e\+305"),
        ([0.0, 1.0], {"rtt_ms": [1e300, 1.0]}, r"sample 0: rtt_ms must be at most 8.64e\+07, not 1e\+300"),
        ([0.0, 1.0], {"per_down": [0.0, 1.0]}, r"sample 1: per_down must lie in \[0, 1\), not 1"),
        ([0.0, 1.0], {"snr_db": [-math.inf, 1.0]}, "sample 0: snr_db must be finite, or empty"),
        ([0.0, 1.0], {"per_up": [0.0]}, r"one length, with at least one sample: t_s \[2\].* per_up \[1\]"),
        ([], {}, "at least one sample"),
    ],
)
def test_what_is_no_trace(t_s: list[float], columns: dict[str, list[float]], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        trace(t_s, **columns)


def test_a_trace_cannot_be_changed_from_outside() -> None:
    t_s = np.array([0.0, 1.0])
    one = trace([0.0, 1.0])
    other = Trace(t_s, *list(one.columns.values())[1:])
    t_s[1] = -1
    assert other.t_s[1] == 1
    with pytest.raises(ValueError, match="read-only"):
        other.t_s[1] = 2


# ---------------------------------------------------------------- the file


@settings(max_examples=60)
@given(traces(), st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), max_size=3))
def test_written_and_read_it_is_the_same_to_the_last_bit(one: Trace, header: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        write_trace(path, one, header)
        assert same(read_trace(path), one)
        assert [each.name for each in Path(folder).iterdir()] == ["trace.csv"]


def test_the_file_looks_as_documented(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    write_trace(path, trace([0.0, 0.1], uplink_mbps=[498.0, 0.1 + 0.2], snr_db=[math.nan, -3.5]), ["made\nby hand"])
    assert path.read_bytes().decode() == (
        f"# made\n# by hand\n{HEADER}\n0,498,50,30,0,0,\n0.1,0.30000000000000004,50,30,0,0,-3.5\n"
    )


def test_crlf_byte_order_mark_blanks_and_empty_lines_at_the_end_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(f"\ufeff# by hand\r\n{HEADER}\r\n0, 1, 2 ,3,0,0.5,\r\n2,4,5,6,0,0,nan\r\n\r\n\r\n".encode())
    assert same(
        read_trace(path),
        trace([0.0, 2.0], uplink_mbps=[1.0, 4.0], downlink_mbps=[2.0, 5.0], rtt_ms=[3.0, 6.0], per_down=[0.5, 0.0]),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "is empty"),
        (b" \n\r\n", "is empty"),
        (b"\x89PNG\r\n\x1a\n", "not a text file: byte 0"),
        (b"abc\0def", "not a text file: it has zero bytes"),
        (b"# nothing else\n", "line 2: a trace begins with the header t_s,uplink"),
        (b"t_s,uplink_mbps\n0,1\n", "line 1: a trace begins with the header"),
        (HEADER.upper().encode() + b"\n0,1,2,3,0,0,\n", "line 1: a trace begins with the header"),
        (b"# x\n" + HEADER.encode(), "no sample after the header"),
        (HEADER.encode() + b"\n0,1,2,3,0,0\n", "line 2: 6 values instead of 7"),
        (HEADER.encode() + b"\n0,1,2,3,0,0,,\n", "line 2: 8 values instead of 7"),
        (HEADER.encode() + b"\n0,1,2,3,0,0,\n\n2,1,2,3,0,0,\n", "line 3: 1 values instead of 7"),
        (HEADER.encode() + b"\n0,1,2,3,0,0,\n1,fast,2,3,0,0,\n", "line 3: 'fast' is not a number"),
        (HEADER.encode() + b"\n0,1,,3,0,0,\n", "line 2: '' is not a number"),
        (
            b"# x\n# y\n" + HEADER.encode() + b"\n0,1,2,3,0,0,\n1,1,2,3,0,1.5,\n",
            r"line 5: per_down must lie in \[0, 1\)",
        ),
        (HEADER.encode() + b"\n0,1,2,3,0,0,\n2,1,2,3,0,0,\n1,1,2,3,0,0,\n", "line 4: t_s must increase"),
        (HEADER.encode() + b"\n1,1,2,3,0,0,\n", "line 2: t_s must begin at 0"),
        (HEADER.encode() + b"\n0,nan,2,3,0,0,\n", "line 2: uplink_mbps"),
    ],
)
def test_files_that_are_none_name_the_line(tmp_path: Path, text: bytes, said: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(text)
    with pytest.raises(BadInput, match=said) as caught:
        read_trace(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_places_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot read .*No such file"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(BadInput, match=r"cannot read .*not a regular file"):
        read_trace(tmp_path)
    with pytest.raises(BadInput, match=r"cannot write .*No such file"):
        write_trace(tmp_path / "none" / "trace.csv", trace([0.0]))
    (tmp_path / "taken").mkdir()
    with pytest.raises(BadInput, match=r"cannot write .*irectory"):
        write_trace(tmp_path / "taken", trace([0.0]))
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
