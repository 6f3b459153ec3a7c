"""Conversion of other trace formats: values, repairs and their notes, refusals; mahimahi round trips."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.channel.formats.convert import FORMATS, convert, write_mahimahi
from testbed.channel.formats.repair import Converted, Options
from testbed.channel.trace import Trace, write_trace
from testbed.errors import BadInput

NO_LOSSES = ["no per_up: took 0 from --per", "no per_down: took 0 from --per"]


def put(folder: Path, *texts: str | bytes) -> list[Path]:
    paths = [folder / f"file{i}" for i in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    return paths


def rates_of(uplink: list[float], downlink: list[float], step_s: float = 1.0) -> Trace:
    n = len(uplink)
    zero = np.zeros(n)
    return Trace(np.arange(n) * step_s, np.array(uplink), np.array(downlink), zero + 20, zero, zero, zero)


# ---------------------------------------------------------------- mahimahi


def test_mahimahi_one_line_is_1500_bytes(tmp_path: Path) -> None:
    # 3 packets in the first second, none in the second, 1 in the third; downlink 12 Mbit/s as its man page has it
    result = convert("mahimahi", put(tmp_path, "1\n1000\n1000\n2001\n3000\n", "1\n"))
    assert result.trace.t_s.tolist() == [0, 1, 2]
    assert result.trace.uplink_mbps.tolist() == pytest.approx([0.036, 0, 0.024])
    assert result.trace.downlink_mbps.tolist() == pytest.approx([12, 12, 12])
    assert result.trace.duration_s == 3
    said = ["downlink: 0.001 s repeated to fill 3 s", *NO_LOSSES, "no RTT: took 30 ms from --rtt-ms"]
    assert result.notes == [*said, "no SNR in 3 of 3 samples: left empty"]


def test_mahimahi_order_blank_lines_and_bins_are_mended_and_said(tmp_path: Path) -> None:
    result = convert("mahimahi", put(tmp_path, "\ufeff5\r\n\r\n900\r\n700\r\n1250\r\n", "1250\n"), Options(bin_s=0.5))
    assert result.trace.uplink_mbps.sum() * 0.625 == pytest.approx(4 * 0.012)
    assert result.trace.t_s.tolist() == [0, 0.625]
    said = ["file0: 1 empty lines dropped", "file0: 1 lines out of order sorted"]
    assert result.notes[:3] == [*said, "bins of 0.625 s instead of 0.5 s, to fill 1.25 s"]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 300) | st.just(0.0), st.floats(0, 300)), min_size=1, max_size=8),
    st.sampled_from([0.25, 0.5, 1.0, 1.7]),
)
def test_mahimahi_there_and_back_keeps_the_mean_rate_and_the_length(
    rates: list[tuple[float, float]], step_s: float
) -> None:
    step_s = step_s if len(rates) > 1 else 1.0
    trace = rates_of([up for up, _ in rates], [down for _, down in rates], step_s)
    with tempfile.TemporaryDirectory() as name:
        pair = (Path(name) / "x.up", Path(name) / "x.down")
        write_mahimahi(*pair, trace)
        back = convert("mahimahi", pair, Options(bin_s=step_s)).trace
        lines = [np.loadtxt(path, ndmin=1) for path in pair]
    assert back.duration_s == pytest.approx(trace.duration_s, abs=1e-3)
    for times, before, after in zip(
        lines, (trace.uplink_mbps, trace.downlink_mbps), (back.uplink_mbps, back.downlink_mbps), strict=True
    ):
        packets = before * step_s * 1e6 / 12000
        assert times[-1] == round(1000 * trace.duration_s) and (np.diff(times) >= 0).all()
        assert abs(times.size - packets.sum()) <= 0.5 + 1e-6 or (packets.sum() < 0.5 and times.size == 1)
        assert np.abs(np.cumsum(after * step_s * 1e6 / 12000) - np.cumsum(packets)).max() <= 2 + 1e-6


def test_what_mahimahi_cannot_hold_is_said(tmp_path: Path) -> None:
    notes = write_mahimahi(tmp_path / "a.up", tmp_path / "a.down", rates_of([0.0, 0.0], [5.0, 0.0]))
    assert notes[0] == "mahimahi stores rates only: RTT, PER and SNR are left out"
    assert notes[1:] == ["uplink has no capacity: one packet per period, the least mahimahi can store"]
    assert (tmp_path / "a.up").read_text() == "2000\n"
    with pytest.raises(BadInput, match="too much for a mahimahi file"):
        write_mahimahi(tmp_path / "b.up", tmp_path / "b.down", rates_of([1e6] * 1000, [1.0] * 1000))
    assert not (tmp_path / "b.up").exists()


@pytest.mark.parametrize(
    ("up", "said"),
    [
        ("1\n2.5\n", "line 2: mahimahi has one whole number of milliseconds a line, not '2.5'"),
        ("1\n\n-3\n", "line 3: mahimahi has"),
        ("t_s,uplink_mbps\n", "line 1: mahimahi has"),
        ("0\n0\n", "must be over 0 ms"),
        ("9" * 12 + "\n", "use a larger --bin"),
        ("9" * 13 + "\n", "line 1: mahimahi has"),
        ("²\n", "line 1: mahimahi has"),
        ("", "is empty"),
        (b"\x00\x01", "not a text file"),
        (b"\xff\xfe1\n", "not a text file"),
    ],
)
def test_what_is_not_mahimahi(tmp_path: Path, up: str | bytes, said: str) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        convert("mahimahi", put(tmp_path, up, "1\n"))
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- iperf3


def interval(start: float, mbps: float, seconds: float = 1.0, rtt_us: int | None = None, **more: Any) -> dict[str, Any]:
    summed = {"start": start, "end": start + seconds, "seconds": seconds, "bytes": mbps * seconds * 125000}
    summed |= {"bits_per_second": mbps * 1e6, "omitted": False, **more}
    return {"streams": [summed | ({"rtt": rtt_us} if rtt_us else {})], "sum": summed}


def iperf3(*intervals: dict[str, Any], reverse: int = 0, **start: Any) -> str:
    return json.dumps({"start": {"test_start": {"reverse": reverse}, **start}, "intervals": intervals, "end": {}})


def test_iperf3_forward_is_uplink_with_rtt_and_losses(tmp_path: Path) -> None:
    text = iperf3(
        interval(0, 900, omitted=True, retransmits=7),
        interval(0, 100, rtt_us=8000, retransmits=0),
        interval(1.0, 50, rtt_us=12000, retransmits=125),
        interval(2.0, 0, retransmits=3),
        interval(3.0, 9999, seconds=0.0002, retransmits=0),
        tcp_mss_default=1000,
    )
    result = convert("iperf3", put(tmp_path, text), Options(ratio=0.5))
    assert result.trace.t_s.tolist() == [0, 1, 2]
    assert result.trace.uplink_mbps.tolist() == [100, 50, 0]
    assert result.trace.downlink_mbps.tolist() == [200, 100, 0]
    assert result.trace.per_up.tolist() == pytest.approx([0, 125 * 1000 / 6.25e6, 0])
    assert result.trace.rtt_ms.tolist() == [8, 12, 12]
    assert result.notes == [
        "the client counts as the UE: forward is uplink, --reverse downlink",
        "1 warm-up intervals dropped",
        "1 intervals under a tenth of 1 s dropped",
        "uplink PER: estimated as retransmits × 1000 bytes / bytes sent",
        "RTT: measured by TCP under full load",
        "downlink: took uplink / 0.5 (--ratio)",
        "no per_down: took 0 from --per",
        "no RTT in 1 of 3 samples: the last known one held",
        "no SNR in 3 of 3 samples: left empty",
    ]


def test_iperf3_reverse_is_downlink_and_udp_counts_its_losses(tmp_path: Path) -> None:
    text = iperf3(interval(0, 80, lost_percent=25.0), interval(1, 60, lost_percent=100.0), reverse=1)
    trace = convert("iperf3", put(tmp_path, text)).trace
    assert (trace.downlink_mbps.tolist(), trace.uplink_mbps.tolist()) == ([80, 60], [80, 60])
    assert trace.per_down.tolist() == [0.25, 0.99] and trace.per_up.tolist() == [0, 0]
    assert trace.rtt_ms.tolist() == [30, 30]


def test_iperf3_sending_udp_knows_its_losses_at_the_end_alone(tmp_path: Path) -> None:
    text = iperf3(interval(0, 80, packets=9), interval(1, 60, packets=7)).replace(
        '"end": {}', '"end": {"sum": {"lost_percent": 12.5}}'
    )
    result = convert("iperf3", put(tmp_path, text))
    assert (result.trace.per_up.tolist(), result.trace.per_down.tolist()) == ([0.125, 0.125], [0, 0])
    assert "uplink PER: share of lost UDP packets over the whole test" in result.notes


def test_iperf3_in_both_directions_at_once(tmp_path: Path) -> None:
    both = interval(0, 80, retransmits=0) | {"sum_bidir_reverse": interval(0, 200)["sum"]}
    trace = convert("iperf3", put(tmp_path, iperf3(both))).trace
    assert (trace.uplink_mbps.tolist(), trace.downlink_mbps.tolist()) == ([80], [200])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("{", "is not the output of iperf3 --json"),
        ("[1, 2]", "is not the output of iperf3 --json"),
        ('{"a": 1}', "is not the output of iperf3 --json"),
        ('{"start": {}, "intervals": [{"sum": {}}]}', "is not the output of iperf3 --json"),
        ('{"start": {}, "intervals": [{"sum": {"start": 0, "seconds": "one"}}]}', "is not the output of iperf3 --json"),
        ('{"error": "unable to connect to server"}', "iperf3 failed: unable to connect"),
        (iperf3(), "has neither uplink nor downlink rates"),
        (iperf3(interval(0, -1)), "has no usable row"),
        (b"\x00{}", "not a text file"),
    ],
)
def test_what_is_not_iperf3(tmp_path: Path, text: str | bytes, said: str) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        convert("iperf3", put(tmp_path, text))
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- UCC


UCC = "Timestamp,Longitude,Speed,CellID,NetworkMode,RSRP,SNR,RSSI,DL_bitrate,UL_bitrate,State,PINGAVG"


def ucc(*rows: str, header: str = UCC, end: str = "\n") -> str:
    return end.join([header, *rows]) + end


def row(clock: str, down: str, up: str, snr: str = "8.0", state: str = "D", ping: str = "-") -> str:
    return f"2019.12.14_{clock},-8.49,0,11,5G,-90,{snr},-,{down},{up},{state},{ping}"


def test_ucc_rates_are_kbits_and_dashes_are_unknown(tmp_path: Path) -> None:
    text = ucc(row("10.16.30", "45000", "800", ping="40"), row("10.16.31", "500", "12", snr="-"), end="\r\n")
    result = convert("ucc", put(tmp_path, "\ufeff" + text))
    trace = result.trace
    assert (trace.t_s.tolist(), trace.downlink_mbps.tolist()) == ([0, 1], [45, 0.5])
    assert trace.uplink_mbps.tolist() == pytest.approx([0.8, 0.012])
    assert (trace.snr_db[0], trace.rtt_ms.tolist()) == (8.0, [40, 40]) and np.isnan(trace.snr_db[1])
    assert result.notes == [
        "uplink is UL_bitrate, the traffic that was sent, not the capacity; --ratio replaces it",
        *NO_LOSSES,
        "no RTT in 1 of 2 samples: the last known one held",
        "no SNR in 1 of 2 samples: left empty",
    ]


def test_ucc_dirty_rows_are_mended_and_each_repair_is_counted(tmp_path: Path) -> None:
    text = ucc(
        row("23.59.58", "1000", "100", state="I"),
        row("23.59.59", "1000", "100"),
        "2019.12.15_00.00.02" + row("x", "4000", "400")[12:],
        "2019.12.15_00.00.01" + row("x", "3000", "300")[12:],
        "2019.12.15_00.00.01" + row("x", "3500", "350")[12:],
        "2019.12.15_00.00.03" + row("x", "-", "100")[12:],
        "2019.12.15_00.00.03" + row("x", "-5", "100")[12:],
        "2019.12.15_00.00.03" + row("x", "2147483647", "100")[12:],
        "yesterday" + row("x", "1000", "100")[12:],
        "2019.12.15_00.00.03" + row("x", "5000", "500")[12:],
        "2019.12.15_00.00.17" + row("x", "6000", "600")[12:],
        "2019.12.15_00.00.18,-8.49",
    )
    result = convert("ucc", put(tmp_path, text), Options(ratio=0.1, rtt_ms=25, per=0.01))
    trace = result.trace
    assert trace.t_s.tolist() == [0, 2, 3, 4, 18]
    assert trace.downlink_mbps.tolist() == [1, 3.5, 4, 5, 6]
    assert trace.uplink_mbps.tolist() == pytest.approx([0.1, 0.35, 0.4, 0.5, 0.6])
    assert set(trace.per_up) == set(trace.per_down) == {0.01} and set(trace.rtt_ms) == {25}
    assert result.notes == [
        "1 idle rows (State I) dropped: their rate is not the link's",
        "uplink: took 0.1 × downlink (--ratio)",
        "1 rows without a valid time dropped",
        "4 rows with a missing or negative rate dropped (sentinels)",
        "2 rows out of order sorted",
        "1 rows with a repeated time dropped, the last one kept",
        "gap of 14 s at t=4 s held",
        "no per_up: took 0.01 from --per",
        "no per_down: took 0.01 from --per",
        "no RTT: took 25 ms from --rtt-ms",
    ]


def test_several_gaps_are_one_note(tmp_path: Path) -> None:
    times = ["10.00.00", "10.00.01", "10.00.02", "10.00.10", "10.00.11", "10.00.31", "10.00.32"]
    result = convert("ucc", put(tmp_path, ucc(*(row(t, "1000", "100") for t in times))))
    assert "2 gaps held, the longest of 20 s at t=11 s" in result.notes


def test_ucc_without_some_columns(tmp_path: Path) -> None:
    result = convert("ucc", put(tmp_path, "Timestamp,DL_bitrate\n2020.02.13_13.03.24,30000\n"))
    assert (result.trace.downlink_mbps.tolist(), result.trace.uplink_mbps.tolist()) == ([30], [pytest.approx(6)])
    assert result.notes[0] == "uplink: took 0.2 × downlink (--ratio)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        (b"PK\x03\x04\xff\xff", "not a text file"),
        ("t_s,uplink_mbps\n0,1\n", "has no column timestamp; its first line is 't_s,uplink_mbps'"),
        ("Timestamp,RSRP\n2020.02.13_13.03.24,-90\n", "has no column dl_bitrate or ul_bitrate"),
        (ucc(), "has no usable row"),
        (ucc(row("10.16.30", "-", "-"), row("10.16.31", "-", "-")), r"no usable row \(.*2 rows with a missing"),
        (ucc(row("10.16.30", "900", "90", state="I")), "1 idle rows"),
        (ucc('2019.12.14_10.16.30,"unfinished'), "is not CSV"),
    ],
)
def test_what_is_not_ucc(tmp_path: Path, text: str | bytes, said: str) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        convert("ucc", put(tmp_path, text))
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- Lumos5G


LUMOS = (
    "run_num,seq_num,abstractSignalStr,latitude,movingSpeed,nrStatus,lte_rssi,nr_ssSinr,Throughput,mobility_mode,"
    "trajectory_direction"
)


def lumos(*rows: tuple[int, int, str, str], header: str = LUMOS, mode: str = "walking", way: str = "CW") -> str:
    cells = [f"{run},{seq},2,44.97,1.2,CONNECTED,-61,{sinr},{rate},{mode},{way}" for run, seq, sinr, rate in rows]
    return "\n".join([header, *cells]) + "\n"


RUNS = [
    (3, 1, "14.5", "801"),
    (3, 2, "2147483647", "1200.5"),
    (3, 3, "nan", "NaN"),
    (7, 1, "3", "20"),
    (7, 2, "4", "30"),
]


def test_lumos5g_first_run_or_the_one_asked_for(tmp_path: Path) -> None:
    paths = put(tmp_path, lumos(*RUNS))
    first = convert("lumos5g", paths)
    assert (first.trace.t_s.tolist(), first.trace.downlink_mbps.tolist()) == ([0, 1], [801, 1200.5])
    assert first.trace.uplink_mbps.tolist() == pytest.approx([160.2, 240.1])
    assert first.trace.snr_db[0] == 14.5 and np.isnan(first.trace.snr_db[1])
    assert first.notes[:3] == [
        "run 3, one of 2: 3 of 5 rows; --run selects another",
        "uplink: took 0.2 × downlink (--ratio)",
        "1 rows with a missing or negative rate dropped (sentinels)",
    ]
    assert convert("lumos5g", paths, Options(run=7)).trace.downlink_mbps.tolist() == [20, 30]
    with pytest.raises(BadInput, match="has no run 5; it has 2: 3, 7"):
        convert("lumos5g", paths, Options(run=5))


def test_lumos5g_keeps_directions_and_modes_apart(tmp_path: Path) -> None:
    text = lumos(*RUNS[:2]) + lumos((3, 1, "1", "5"), (3, 2, "1", "6"), way="ACW").split("\n", 1)[1]
    result = convert("lumos5g", put(tmp_path, text))
    assert result.trace.downlink_mbps.tolist() == [801, 1200.5]
    assert "2 rows of another mobility mode or direction dropped" in result.notes


def test_lumos5g_under_other_names_or_with_throughput_alone(tmp_path: Path) -> None:
    paths = put(tmp_path, lumos(*RUNS[:2], header=LUMOS.replace("seq_num", "seq_no")), "Throughput\n7\n\n8\n")
    assert convert("lumos5g", paths[:1]).trace.t_s.tolist() == [0, 1]
    result = convert("lumos5g", paths[1:])
    assert (result.trace.t_s.tolist(), result.trace.downlink_mbps.tolist()) == ([0, 1], [7, 8])
    assert result.notes[0] == "no column seq_num: rows count as one second each, in the order of the file"
    with pytest.raises(BadInput, match="no column run_num, so --run cannot choose"):
        convert("lumos5g", paths[1:], Options(run=1))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("run_num,seq_num\n1,1\n", "has no column throughput"),
        (LUMOS + "\n", "has no run None; it has 0"),
        (lumos((1, 1, "1", "fast")), "has no usable row"),
        (b"\x80\x81", "not a text file"),
    ],
)
def test_what_is_not_lumos5g(tmp_path: Path, text: str | bytes, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        convert("lumos5g", put(tmp_path, text))


# ---------------------------------------------------------------- all of them


def test_the_canonical_format_is_one_of_them(tmp_path: Path) -> None:
    trace = rates_of([1.0, 2.0], [3.0, 4.0])
    write_trace(tmp_path / "a.csv", trace)
    result = convert("canonical", [tmp_path / "a.csv"])
    assert isinstance(result, Converted) and result.notes == []
    assert result.trace.downlink_mbps.tolist() == [3, 4]


def taken_or_refused(kind: str, paths: list[Path]) -> bool:
    try:
        return len(convert(kind, paths).trace) > 0
    except BadInput as exc:
        return len(str(exc).splitlines()) == 1


CELLS = [
    "",
    "-",
    "nan",
    "1e400",
    "-1",
    "0",
    "7",
    "2147483647",
    "2019.12.14_10.16.30",
    "9999.12.31_23.59.59",
    '"',
    "I",
    "²",
]
HEADS = [
    "",
    UCC,
    LUMOS,
    "Timestamp,DL_bitrate",
    "Throughput,run_num",
    "t_s,uplink_mbps,downlink_mbps,rtt_ms,per_up,per_down,snr_db",
]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(FORMATS)),
    st.sampled_from(HEADS),
    st.lists(st.lists(st.sampled_from(CELLS) | st.text(max_size=3), max_size=12).map(",".join), max_size=6),
    st.sampled_from(["\n", "\r\n"]),
)
def test_whatever_comes_is_a_trace_or_bad_input_in_one_line(kind: str, head: str, rows: list[str], end: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        paths = put(Path(name), end.join([head, *rows]).encode("utf-8", "replace"), "1\n")[: FORMATS[kind].files]
        assert taken_or_refused(kind, paths)


@settings(max_examples=150, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "sum",
                        "streams",
                        "rtt",
                        "start",
                        "seconds",
                        "bytes",
                        "bits_per_second",
                        "retransmits",
                        "omitted",
                        "lost_percent",
                    ]
                ),
                inner,
            )
        ),
        max_leaves=12,
    ),
    st.lists(st.sampled_from(["start", "seconds", "bits_per_second", "retransmits", "bytes"]), max_size=3),
    st.integers() | st.floats() | st.text(max_size=2) | st.none(),
)
def test_whatever_json_comes_is_a_trace_or_bad_input_in_one_line(extra: Any, names: list[str], value: Any) -> None:
    odd = interval(0, 5, retransmits=0)
    odd["sum"] |= dict.fromkeys(names, value)
    for text in (json.dumps(extra), iperf3(extra), iperf3(interval(0, 5), odd), iperf3(odd, reverse=extra)):
        with tempfile.TemporaryDirectory() as name:
            assert taken_or_refused("iperf3", put(Path(name), text))


def test_unknown_formats_and_numbers_of_files() -> None:
    with pytest.raises(BadInput, match="unknown trace format 'pcap'; known: canonical, mahimahi, iperf3, ucc, lumos5g"):
        convert("pcap", [Path("a")])
    for kind, known in FORMATS.items():
        for count in {0, 1, 2, 3} - {known.files}:
            with pytest.raises(BadInput, match=f"{kind} takes {known.files} file.* not {count}"):
                convert(kind, [Path("a")] * count)


@pytest.mark.parametrize(
    "wrong", [{"ratio": 0.0}, {"ratio": float("nan")}, {"rtt_ms": -1.0}, {"per": 1.0}, {"bin_s": 0.0}]
)
def test_options_that_make_no_sense(tmp_path: Path, wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput, match=f"--{next(iter(wrong)).removesuffix('_s').replace('_', '-')} must"):
        convert("mahimahi", put(tmp_path, "1\n", "1\n"), Options(**wrong))  # type: ignore[arg-type]
