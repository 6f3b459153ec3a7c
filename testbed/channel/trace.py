"""Link traces: rates, RTT and packet error rates over time, and the CSV format that stores them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from testbed.channel.csi import Csi
from testbed.channel.link_model import MOST_MBPS, MOST_RTT_MS
from testbed.errors import BadInput
from testbed.files import file_bytes, whole_file
from testbed.table_text import cell_number

Array = NDArray[np.float64]
COLUMNS = ("t_s", "uplink_mbps", "downlink_mbps", "rtt_ms", "per_up", "per_down", "snr_db")
OUTAGE_MBPS = 1e-3
"""Lower limit of the rates that `Trace.csi` returns, used for outages: a `Csi` needs positive rates."""
LEAST_STEP_S, LATEST_S = 1e-6, 1e9
"""Least time between samples, and the largest time of one [s]."""
MOST = {"uplink_mbps": MOST_MBPS, "downlink_mbps": MOST_MBPS, "rtt_ms": MOST_RTT_MS}
"""Largest values of columns."""
LONE_SAMPLE_S = 1.0
"""Duration of a trace with one sample."""


@dataclass(frozen=True, eq=False)
class Trace:
    """A link over time; each sample holds until the next one.

    All arrays are read-only float64 [n], n >= 1: `t_s` [s] increasing from 0; rates [Mbit/s] >= 0, where 0 is an
    outage, and at most `MOST_MBPS`; `rtt_ms` [ms] >= 0, at most a day; packet error rates in [0, 1); `snr_db` [dB], nan
    where unknown.

    Raises:
        BadInput: lengths differ or are 0, or a value is out of its range.
    """

    t_s: Array
    uplink_mbps: Array
    downlink_mbps: Array
    rtt_ms: Array
    per_up: Array
    per_down: Array
    snr_db: Array

    def __post_init__(self) -> None:
        for field in fields(self):
            values = np.array(getattr(self, field.name), np.float64)
            values.flags.writeable = False
            object.__setattr__(self, field.name, values)
        columns = self.columns
        if {values.shape for values in columns.values()} != {(len(self),)} or not len(self):
            shapes = ", ".join(f"{name} {list(values.shape)}" for name, values in columns.items())
            raise BadInput(f"a trace needs columns of one length, with at least one sample: {shapes}")
        fault = _fault(columns)
        if fault:
            raise BadInput(f"sample {fault[0]}: {fault[1]}")

    def __len__(self) -> int:
        """Number of samples."""
        return self.t_s.size

    @property
    def columns(self) -> dict[str, Array]:
        """The arrays by name, in file order."""
        return {name: getattr(self, name) for name in COLUMNS}

    @property
    def duration_s(self) -> float:
        """Period of a looping replay [s]: the last `t_s` plus the last step (`LONE_SAMPLE_S` if n = 1), so that the
        last sample holds as long as the one before it.
        """
        if len(self) == 1:
            return LONE_SAMPLE_S
        return float(2 * self.t_s[-1] - self.t_s[-2])

    def index(self, t_s: float, loop: bool = True) -> int:
        """Index of the sample at `t_s` seconds; after the end the trace repeats (`loop`), or its last sample holds.

        Raises:
            BadInput: a time that is negative or not finite.
        """
        if not 0 <= t_s < math.inf:
            raise BadInput(f"a time within a trace must be finite and not negative, not {t_s}")
        within_s = t_s % self.duration_s if loop else t_s
        return int(np.searchsorted(self.t_s, within_s, side="right")) - 1

    def csi(self, t_s: float, loop: bool = True) -> Csi:
        """The link's state at `t_s` seconds; rates are at least `OUTAGE_MBPS`.

        Raises:
            BadInput: a time that is negative or not finite.
        """
        i = self.index(t_s, loop)
        snr_db = float(self.snr_db[i])
        return Csi(
            uplink_mbps=max(OUTAGE_MBPS, float(self.uplink_mbps[i])),
            downlink_mbps=max(OUTAGE_MBPS, float(self.downlink_mbps[i])),
            rtt_ms=float(self.rtt_ms[i]),
            per_up=float(self.per_up[i]),
            per_down=float(self.per_down[i]),
            snr_db=None if math.isnan(snr_db) else snr_db,
            time_s=t_s,
            source="trace",
        )

    def means(self) -> dict[str, float | None]:
        """Time averages of all columns but `t_s`; that of `snr_db` is over known values, None if there are none."""
        held_s = np.diff(self.t_s, append=self.duration_s)
        result: dict[str, float | None] = {}
        for name, values in self.columns.items():
            known = ~np.isnan(values)
            if name != "t_s":
                result[name] = float(np.average(values[known], weights=held_s[known])) if known.any() else None
        return result


def read_trace(path: Path | str) -> Trace:
    """Read a canonical CSV: `#` comments, a line with the names in `COLUMNS`, then one sample per line.

    `snr_db` may be empty. CRLF and a byte order mark are accepted; any other deviation is refused.

    Raises:
        BadInput: unreadable, another header, or a value out of its range; the message names the line.
    """
    lines = read_text(path).splitlines()
    while lines and not lines[-1].strip():
        lines.pop()
    start = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    header = ",".join(COLUMNS)
    if start == len(lines) or lines[start].strip() != header:
        raise BadInput(f"{path} line {start + 1}: a trace begins with the header {header}")
    first = start + 1
    rows = [_row(line, f"{path} line {number}") for number, line in enumerate(lines[first:], first + 1)]
    if not rows:
        raise BadInput(f"{path}: no sample after the header")
    columns = dict(zip(COLUMNS, np.array(rows, np.float64).T, strict=True))
    fault = _fault(columns)
    if fault:
        raise BadInput(f"{path} line {first + 1 + fault[0]}: {fault[1]}")
    return Trace(**columns)


def write_trace(path: Path | str, trace: Trace, header: Sequence[str] = ()) -> None:
    """Write a canonical CSV that `read_trace` reads back exactly; `header` lines become `#` comments at the top.

    The file is replaced atomically.

    Raises:
        BadInput: the file cannot be written.
    """
    comments = [f"# {part}".rstrip() for line in header for part in line.splitlines() or [""]]
    rows = zip(*(values.tolist() for values in trace.columns.values()), strict=True)
    write_lines(path, [*comments, ",".join(COLUMNS), *(",".join(map(_text, row)) for row in rows)])


def read_text(path: Path | str) -> str:
    """A text file's content, without a byte order mark.

    Raises:
        BadInput: unreadable, empty, or not text.
    """
    try:
        text = file_bytes(Path(path)).decode("utf-8-sig")
    except OSError as exc:
        raise BadInput(f"cannot read {path}: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise BadInput(f"{path} is not a text file: byte {exc.start} is not UTF-8") from exc
    if "\0" in text:
        raise BadInput(f"{path} is not a text file: it has zero bytes")
    if not text.strip():
        raise BadInput(f"{path} is empty")
    return text


def write_lines(path: Path | str, lines: Iterable[str]) -> None:
    """Write a text file atomically: on failure, an existing file is kept.

    Raises:
        BadInput: the file cannot be written.
    """
    with whole_file(Path(path)) as part, part.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


def _row(line: str, where: str) -> list[float]:
    cells = line.split(",")
    if len(cells) != len(COLUMNS):
        raise BadInput(f"{where}: {len(cells)} values instead of {len(COLUMNS)}")
    if not cells[-1].strip():
        cells[-1] = "nan"
    try:
        return [cell_number(cell) for cell in cells]
    except ValueError as exc:
        raise BadInput(f"{where}: {str(exc).split(': ')[-1]} is not a number") from exc


def _text(value: float) -> str:
    """The shortest text that parses to the same number."""
    return "" if math.isnan(value) else repr(value).removesuffix(".0")


def _fault(columns: Mapping[str, Array]) -> tuple[int, str] | None:
    """Index of the first invalid sample and what is wrong with it; None if all are valid."""
    t_s = columns["t_s"]
    if t_s[0] != 0:
        return 0, f"t_s must begin at 0, not {t_s[0]:g}"
    later = np.diff(t_s, prepend=-1.0) >= 0.999 * LEAST_STEP_S  # differences are rounded
    if not later.all():
        i = int(np.argmin(later))
        return i, f"t_s must increase by {LEAST_STEP_S:g} s or more, but {t_s[i]:g} comes after {t_s[i - 1]:g}"
    if math.isfinite(t_s[-1]) and t_s[-1] > LATEST_S:
        return len(t_s) - 1, f"t_s must be at most {LATEST_S:g}, not {t_s[-1]:g}"
    for name, values in columns.items():
        if name == "snr_db":
            good, asked = ~np.isinf(values), "must be finite, or empty where unknown"
        elif name.startswith("per_"):
            good, asked = (values >= 0) & (values < 1), "must lie in [0, 1)"
        else:
            good, asked = np.isfinite(values) & (values >= 0), "must be finite and not negative"
        if not good.all():
            i = int(np.argmin(good))
            return i, f"{name} {asked}, not {values[i]:g}"
    for name, most in MOST.items():
        if (large := columns[name] > most).any():
            i = int(np.argmax(large))
            return i, f"{name} must be at most {most:g}, not {columns[name][i]:g}"
    return None
