"""Readers that convert other trace formats to a `Trace`: mahimahi, iperf3, the UCC Irish 5G data set and Lumos5G.

All repairs, dropped rows and assumptions are reported in `Converted.notes`.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from testbed.channel.formats import mahimahi
from testbed.channel.formats.repair import Converted, Options, make_trace
from testbed.channel.trace import Array, Trace, read_text, read_trace, write_lines
from testbed.errors import BadInput
from testbed.table_text import cell_number, check_once

UNKNOWN = 2147483647
"""Android's integer for an unknown value."""
BEYOND = 1e15
"""Upper limit of valid numbers in an iperf3 report."""
MOST_PER = 0.99
"""Upper limit of estimated loss rates."""
MSS_BYTES = 1448


@dataclass(frozen=True)
class Format:
    """A format that can be read."""

    about: str
    files: int
    ratio: float
    """Uplink rate over downlink rate, used if the file has only one of them; an assumption of ours."""
    read: Callable[[Sequence[Path], Options, float], Converted]


def convert(kind: str, paths: Sequence[Path], options: Options | None = None) -> Converted:
    """Read files in one of the `FORMATS`.

    Raises:
        BadInput: unknown format, wrong number of files, or files that are not in that format.
    """
    if kind not in FORMATS:
        raise BadInput(f"unknown trace format {kind!r}; known: {', '.join(FORMATS)}")
    chosen, options = FORMATS[kind], options or Options()
    if len(paths) != chosen.files:
        raise BadInput(f"{kind} takes {chosen.files} file{'s'[: chosen.files - 1]} ({chosen.about}), not {len(paths)}")
    return chosen.read(paths, options, options.ratio or chosen.ratio)


def write_mahimahi(up: Path, down: Path, trace: Trace) -> list[str]:
    """Write a pair of mahimahi files; returns notes on what was lost.

    Raises:
        BadInput: a trace that is too long, or a file that cannot be written.
    """
    rates = (trace.uplink_mbps, trace.downlink_mbps)
    schedules = [mahimahi.schedule(trace.t_s, mbps, trace.duration_s) for mbps in rates]
    for path, times in zip((up, down), schedules, strict=True):
        write_lines(path, map(str, times.tolist()))
    notes = ["mahimahi stores rates only: RTT, PER and SNR are left out"]
    silent = [name for name, mbps in zip(("uplink", "downlink"), rates, strict=True) if not mbps.any()]
    return [
        *notes,
        *(f"{name} has no capacity: one packet per period, the least mahimahi can store" for name in silent),
    ]


def _read_canonical(paths: Sequence[Path], options: Options, ratio: float) -> Converted:
    return Converted(read_trace(paths[0]), [])


def _read_mahimahi(paths: Sequence[Path], options: Options, ratio: float) -> Converted:
    (up, first), (down, second) = (mahimahi.parse(read_text(path), path.name) for path in paths)
    t_s, uplink, downlink, notes = mahimahi.pair_rates(up, down, options.bin_s)
    return make_trace(
        {"t_s": t_s, "up": uplink, "down": downlink}, options, ratio, [*first, *second, *notes], "mahimahi"
    )


def _read_iperf3(paths: Sequence[Path], options: Options, ratio: float) -> Converted:
    """Read iperf3 --json of a client; the client is the UE, so that forward is uplink."""
    name, text = paths[0].name, read_text(paths[0])
    try:
        report = json.loads(text)
        if report.get("error") and not report.get("intervals"):
            raise BadInput(f"{name}: iperf3 failed: {report['error']}")
        test = report["start"].get("test_start", {})
        spans = [each for each in report["intervals"] if not each["sum"].get("omitted")]
        notes = ["the client counts as the UE: forward is uplink, --reverse downlink"]
        if len(spans) < len(report["intervals"]):
            notes.append(f"{len(report['intervals']) - len(spans)} warm-up intervals dropped")
        usual_s = float(np.median(_field([each["sum"] for each in spans], "seconds"))) if spans else 0.0
        whole = [each for each in spans if each["sum"]["seconds"] > 0.1 * usual_s]
        if len(whole) < len(spans):
            notes.append(f"{len(spans) - len(whole)} intervals under a tenth of {usual_s:g} s dropped")
        mss = report["start"].get("tcp_mss") or report["start"].get("tcp_mss_default") or MSS_BYTES
        columns = {"t_s": _field([each["sum"] for each in whole], "start")}
        sides = ("down", "up") if test.get("reverse") else ("up", "down")
        for side, key in zip(sides, ("sum", "sum_bidir_reverse"), strict=True):
            if whole and key in whole[0]:
                columns[side] = _field([each[key] for each in whole], "bits_per_second") / 1e6
                overall = report.get("end", {}).get("sum", {}).get("lost_percent") if len(columns) == 2 else None
                _add_losses(columns, side, [each[key] for each in whole], min(float(mss), BEYOND), overall, notes)
        rtts = [_field([s for s in each["streams"] if s.get("rtt")], "rtt") for each in whole]
        if any(r.size for r in rtts):
            columns["rtt"] = np.array([r.mean() / 1000 if r.size else np.nan for r in rtts])
            notes.append("RTT: measured by TCP under full load")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as exc:
        raise BadInput(f"{name} is not the output of iperf3 --json ({type(exc).__name__}: {exc})") from exc
    return make_trace(columns, options, ratio, notes, name)


def _add_losses(
    columns: dict[str, Array], side: str, sums: list[Any], mss: float, overall: Any, notes: list[str]
) -> None:
    """Add a direction's packet error rate: per interval if reported, else of the whole UDP test (`overall`,
    percent).
    """
    name = f"{side}link"
    if all("lost_percent" in each for each in sums):
        columns[f"per_{side}"] = np.clip(_field(sums, "lost_percent") / 100, 0, MOST_PER)
        notes.append(f"{name} PER: share of lost UDP packets")
    elif all("retransmits" in each for each in sums):
        lost = mss * _field(sums, "retransmits")
        sent = _field(sums, "bytes")
        columns[f"per_{side}"] = np.clip(np.divide(lost, sent, out=np.zeros_like(lost), where=sent > 0), 0, MOST_PER)
        notes.append(f"{name} PER: estimated as retransmits × {mss:g} bytes / bytes sent")
    elif overall is not None:
        columns[f"per_{side}"] = np.full(len(sums), min(max(float(overall) / 100, 0.0), MOST_PER))
        notes.append(f"{name} PER: share of lost UDP packets over the whole test")


def _field(sums: Sequence[Any], key: str) -> Array:
    """[n] a number of each interval; nan if out of range."""
    values = np.array([float(each[key]) for each in sums], np.float64)
    values[~(np.abs(values) < BEYOND)] = np.nan
    return values


def _read_ucc(paths: Sequence[Path], options: Options, ratio: float) -> Converted:
    """Read a CSV of G-NetTrack: one row per second, rates in kbit/s (Raca et al., Beyond Throughput, MMSys 2020)."""
    name, table = paths[0].name, _table(paths[0], ("timestamp",), ("dl_bitrate", "ul_bitrate"))
    notes: list[str] = []
    if "state" in table:
        busy = [state.strip().upper() != "I" for state in table["state"]]
        if not all(busy):
            notes.append(f"{busy.count(False)} idle rows (State I) dropped: their rate is not the link's")
        table = {key: [v for v, b in zip(values, busy, strict=True) if b] for key, values in table.items()}
    columns = {"t_s": np.array([_stamp(text) for text in table["timestamp"]])}
    for key, column, unit in (("down", "dl_bitrate", 1e-3), ("up", "ul_bitrate", 1e-3), ("rtt", "pingavg", 1.0),
                              ("snr", "snr", 1.0)):  # fmt: skip
        if column in table:
            columns[key] = unit * _numbers(table[column])
    if "up" in columns and "down" in columns and options.ratio:
        del columns["up"]
    elif "up" in columns:
        notes.append("uplink is UL_bitrate, the traffic that was sent, not the capacity; --ratio replaces it")
    return make_trace(columns, options, ratio, notes, name)


def _read_lumos5g(paths: Sequence[Path], options: Options, ratio: float) -> Converted:
    """Read Lumos5G 1.0 (Narayanan et al., IMC 2020): TCP downlink per second, several runs in one file."""
    name, table = paths[0].name, _table(paths[0], ("throughput",), ())
    notes: list[str] = []
    rows = np.arange(len(table["throughput"]))
    if "run_num" in table:
        runs = _numbers(table["run_num"])
        known = list(dict.fromkeys(runs[~np.isnan(runs)].tolist()))
        run = options.run if options.run is not None else (known[0] if known else None)
        if run not in known:
            raise BadInput(f"{name} has no run {run}; it has {len(known)}: {', '.join(f'{r:g}' for r in known[:9])}")
        rows = rows[runs == run]
        notes.append(f"run {run:g}, one of {len(known)}: {rows.size} of {runs.size} rows; --run selects another")
    elif options.run is not None:
        raise BadInput(f"{name} has no column run_num, so --run cannot choose")
    tours = [tuple(table[key][i] for key in ("mobility_mode", "trajectory_direction") if key in table) for i in rows]
    alike = np.array([tour == tours[0] for tour in tours], bool)
    if not alike.all():
        notes.append(f"{int((~alike).sum())} rows of another mobility mode or direction dropped")
    rows = rows[alike]
    order = next((key for key in ("seq_num", "seq_no") if key in table), None)
    if order is None:
        notes.append("no column seq_num: rows count as one second each, in the order of the file")
    columns = {"t_s": _numbers(table[order])[rows] if order else np.arange(rows.size, dtype=float)}
    columns["down"] = _numbers(table["throughput"])[rows]
    if "nr_sssinr" in table:
        columns["snr"] = _numbers(table["nr_sssinr"])[rows]
    return make_trace(columns, options, ratio, notes, name)


def _table(path: Path, needed: Sequence[str], one_of: Sequence[str]) -> dict[str, list[str]]:
    """Columns of a CSV by lower-case name; cells missing from a short row are empty."""
    try:
        rows = [row for row in csv.reader(io.StringIO(read_text(path), newline=""), strict=True) if row]
    except csv.Error as exc:
        raise BadInput(f"{path.name} is not CSV: {exc}") from exc
    names = [name.strip().lower() for name in rows[0]]
    check_once(path.name, names, filter(None, names))
    lacking = [name for name in needed if name not in names]
    if lacking or (one_of and not set(one_of) & set(names)):
        asked = lacking[0] if lacking else " or ".join(one_of)
        raise BadInput(f"{path.name} has no column {asked}; its first line is {','.join(rows[0])!r:.120}")
    return {name: [row[i] if i < len(row) else "" for row in rows[1:]] for i, name in enumerate(names)}


def _numbers(cells: Sequence[str]) -> Array:
    """[n] values; nan for cells without a number ("-", "NaN", empty) and for `UNKNOWN`."""
    values = np.array([_number(cell) for cell in cells], np.float64)
    values[~(np.abs(values) < UNKNOWN)] = np.nan
    return values


def _number(cell: str) -> float:
    try:
        return cell_number(cell)
    except ValueError:
        return math.nan


def _stamp(text: str) -> float:
    """Seconds since 1970 of a time such as 2019.12.14_12.45.36; nan if it cannot be parsed."""
    try:
        return (datetime.strptime(text.strip(), "%Y.%m.%d_%H.%M.%S") - datetime(1970, 1, 1)).total_seconds()
    except ValueError:
        return math.nan


FORMATS: dict[str, Format] = {
    "canonical": Format("the CSV of this testbed", 1, 1.0, _read_canonical),
    "mahimahi": Format("uplink and downlink packet-delivery files", 2, 1.0, _read_mahimahi),
    "iperf3": Format("output of iperf3 --json at the client", 1, 1.0, _read_iperf3),
    "ucc": Format("UCC Irish 5G data set, a CSV of G-NetTrack", 1, 0.2, _read_ucc),
    "lumos5g": Format("Lumos5G 1.0, one CSV of many runs", 1, 0.2, _read_lumos5g),
}
"""Formats that can be read; `canonical` and `mahimahi` can also be written."""
