"""Files of power samples: CSV (the testbed's log, or an external meter's), `power.parquet`, tegrastats logs.

CSV files need a header with `time_s` and power: `total_w`; or `voltage_v` and `current_a`; or rails, `NAME_w` each.
`temp_c` and `throttled` are optional; other columns are ignored. The testbed's log starts with a comment about its
source, such as `# source=jetson mean=0 total=VDD_IN`.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from testbed.errors import BadInput, SensorError, TestbedError
from testbed.files import MOST_BYTES, regular_bytes, whole_file
from testbed.power.reading import PowerSource, Reading
from testbed.power.sensors import tegrastats
from testbed.power.sensors.rails import total_w, whole
from testbed.power.series import Samples, gather
from testbed.table_text import cell_number, check_once
from testbed.unpacked.parquet import parquet_table

FIXED = ("time_s", "total_w", "temp_c", "throttled")
MARK = b"testbed.power"
RAIL = "_w"
SAID = {"?": None, "no": "", "0": "", "false": "", "1": "throttled", "yes": "throttled", "true": "throttled"}
"""Values of the column `throttled` other than reasons."""
MOST_ROWS = 2**26
MOST_LOG_BYTES = 2**29
"""Largest log or CSV file: days at 20 samples a second."""
MOST_LINE = 2**16
MOST_SKIPPED = 0.5
"""Maximum share of lines that are not samples."""


def read_samples(path: Path) -> Samples:
    """Read samples from parquet (by file extension), a tegrastats log (by content) or CSV.

    Raises:
        BadInput: unreadable file, missing columns, fewer than two samples, or more lines skipped than kept.
    """
    try:
        if path.suffix == ".parquet":
            return _of_parquet(path)
        size = regular_bytes(path)
        with path.open(encoding="utf-8", errors="replace") as file:
            lines = filter(str.strip, iter(lambda: file.readline(MOST_LINE), ""))
            first = next(lines, "")
            whole_text = tegrastats.looks_like(first)
            if size > (most := MOST_BYTES if whole_text else MOST_LOG_BYTES):
                raise BadInput(f"it has {size} bytes; at most {most}")
            return (_of_tegrastats if whole_text else _of_csv)(itertools.chain([first], lines))
    except OSError as exc:
        raise BadInput(f"cannot read {path}: {exc.strerror or exc}") from exc
    except (BadInput, csv.Error) as exc:
        raise BadInput(f"{path}: {exc}") from exc


def _of_tegrastats(lines: Iterable[str]) -> Samples:
    found = list(tegrastats.readings(lines))
    names = {name for reading in found if reading is not None for name in reading.rails}
    return _gathered(found, False, "tegrastats", " + ".join(whole(sorted(names))))


def _of_csv(lines: Iterator[str]) -> Samples:
    first = next(lines)
    notes = _parse_notes(first[1:].strip()) if first.startswith("#") else {}
    lines = itertools.chain([first], lines)
    rows = csv.DictReader((line for line in lines if not line.startswith("#")), skipinitialspace=True)
    columns = [name.strip() for name in rows.fieldnames or []]
    rows.fieldnames = columns
    check_once("it", columns, filter(None, columns))
    names = _check_columns(columns)
    total = notes.get("total") or " + ".join(names)
    readings = (_reading(row, names) for row in rows)
    return _gathered(readings, notes.get("mean") == "1", notes.get("source", "file"), total)


def _parse_notes(text: str) -> dict[str, str]:
    """Values by name from `source=jetson mean=0 total=VDD_IN + VDD_X`, in which values may contain spaces."""
    return dict(re.findall(r"(\w+)=(.*?)(?=\s\w+=|$)", text))


def _gathered(found: Iterable[Reading | None], mean: bool, source: str, total: str) -> Samples:
    samples = gather(found, mean, source, total)
    if samples.skipped > MOST_SKIPPED * (count := len(samples.time_s) + samples.skipped):
        raise BadInput(f"{samples.skipped} of {count} lines are no samples, or not in order of time")
    if samples.total_w.max() < 0:
        raise BadInput("its power is below 0 throughout: is the sensor connected the other way round?")
    return samples


def _check_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Columns that make up the power of the whole device: `total_w`, voltage × current, or rails."""
    if "time_s" not in columns:
        raise BadInput(f"no column time_s among {', '.join(columns[:8]) or 'none'}")
    if "total_w" in columns:
        return ("total_w",)
    if {"voltage_v", "current_a"} <= set(columns):
        return ("voltage_v × current_a",)
    rails = [name.removesuffix(RAIL) for name in columns if name.endswith(RAIL)]
    if not rails:
        raise BadInput("no power: give the column total_w, or voltage_v and current_a, or rails as NAME_w")
    return whole(rails)


def _reading(row: Mapping[str, Any], names: Sequence[str]) -> Reading | None:
    """Reading from a CSV row; None if the row is not a sample.

    Args:
        names: rails that make up the total if no column gives it.
    """
    try:
        rails = {
            name.removesuffix(RAIL): cell_number(value)
            for name, value in row.items()
            if name and name.endswith(RAIL) and name != "total_w" and value
        }
        if row.get("total_w"):
            power_w = cell_number(row["total_w"])
        elif row.get("voltage_v") and row.get("current_a"):
            power_w = cell_number(row["voltage_v"]) * cell_number(row["current_a"])
        else:
            power_w = total_w(rails, names)
        time_s, temp = cell_number(row["time_s"] or "nan"), row.get("temp_c")
        temp_c = cell_number(temp) if temp else None
        if not all(map(math.isfinite, (time_s, power_w, *rails.values()))):
            return None
    except (TypeError, ValueError, SensorError):
        return None
    throttled = str(row.get("throttled") or "?").strip()
    return Reading(time_s, rails, power_w, temp_c, SAID.get(throttled.lower(), throttled))


# ---------------------------------------------------------------- log of a running measurement


class Log:
    """CSV log that samples are appended to; `read_samples` also reads a truncated log.

    Args:
        zero_s: Unix time at zero of the readings' clock.
        again: continue an existing log.

    Raises:
        BadInput: the file cannot be written, or the existing log is of other sensors.
    """

    def __init__(self, path: Path, source: PowerSource, rails: Sequence[str], zero_s: float, again: bool) -> None:
        self._rails, self._zero_s = list(rails), zero_s
        head = f"# source={source.name} mean={int(source.mean)} total={source.total}\n"
        head += ",".join(["time_s", "total_w", *(name + RAIL for name in self._rails), "temp_c", "throttled"]) + "\n"
        self._path = path
        try:
            size = regular_bytes(path) if again and path.exists() else 0
            if size and not _begins(path, head):
                raise BadInput(f"{path} was started with other sensors: use the same ones, or remove it")
            self._file: TextIO = path.open("a" if size else "w", buffering=1, encoding="utf-8")
            self._file.write("" if size and _tail(path, 1) == "\n" else "\n" if size else head)
        except OSError as exc:
            raise BadInput(f"cannot write {path}: {exc.strerror or exc}") from exc
        self._left = MOST_LOG_BYTES - size - len(head) - 1

    def take(self, reading: Reading) -> None:
        """Append a sample.

        Raises:
            TestbedError: the log would have more than `MOST_LOG_BYTES`.
        """
        rails = [f"{reading.rails[name]:.6f}" if name in reading.rails else "" for name in self._rails]
        temp = "" if reading.temp_c is None else f"{reading.temp_c:.3f}"
        throttled = "?" if reading.throttled is None else reading.throttled or "no"
        time_s = f"{reading.time_s + self._zero_s:.6f}"
        line = ",".join([time_s, f"{reading.total_w:.6f}", *rails, temp, throttled]) + "\n"
        if (left := self._left - len(line.encode())) < 0:
            raise TestbedError(f"{self._path} has {MOST_LOG_BYTES} bytes, and takes no more samples")
        self._left = left
        self._file.write(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def last_sample_s(path: Path) -> float:
    """Time of the last sample of a `Log`; -inf: there is none that can be read."""
    try:
        lines = _tail(path, MOST_LINE).splitlines() if path.is_file() else []
    except OSError:
        return -math.inf
    for line in reversed(lines):
        time, comma, _ = line.partition(",")
        with contextlib.suppress(ValueError):
            if comma and math.isfinite(time_s := cell_number(time)):
                return time_s
    return -math.inf


def _begins(path: Path, head: str) -> bool:
    with path.open("rb") as file:
        return file.read(len(head.encode())) == head.encode()


def _tail(path: Path, size: int) -> str:
    """The end of a file."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        return file.read(size).decode("utf-8", errors="replace")


# ---------------------------------------------------------------- parquet


def write_parquet(path: Path, samples: Samples) -> None:
    """Write samples atomically.

    Raises:
        BadInput: pyarrow is not installed.
        TestbedError: as `whole_file`.
    """
    pa = _arrow()
    rails = {name + RAIL: values for name, values in samples.rails.items()}
    temps = samples.temp_c if samples.temp_c is not None else np.full(len(samples.time_s), np.nan)
    throttled = pa.array(samples.throttled or [None] * len(samples.time_s), pa.string())
    columns = {"time_s": samples.time_s, "total_w": samples.total_w, **rails}
    table = pa.table({**{k: pa.array(v, from_pandas=True) for k, v in columns.items()},
                      "temp_c": pa.array(temps, pa.float64(), from_pandas=True), "throttled": throttled})  # fmt: skip
    notes = f"source={samples.source} mean={int(samples.mean)} skipped={samples.skipped} total={samples.total}"
    with whole_file(path) as part:
        pa.parquet.write_table(table.replace_schema_metadata({MARK: notes}), part)


def _of_parquet(path: Path) -> Samples:
    pa = _arrow()
    try:
        table = parquet_table(path, lambda name: name in FIXED or name.endswith(RAIL), MOST_ROWS)
        missing = {"time_s", "total_w"} - set(table.column_names)
        if missing:
            raise BadInput(f"no {' and no '.join(sorted(missing))}: this is not a power.parquet of a run")
        marks = (table.schema.metadata or {}).get(MARK, b"").decode()
        notes = _parse_notes(marks)
        names = [name for name in table.column_names if name in FIXED[:3] or name.endswith(RAIL)]
        reals = {name: table[name].cast(pa.float64()).to_numpy() for name in names}
        return Samples(
            time_s=reals["time_s"],
            total_w=reals["total_w"],
            rails={n.removesuffix(RAIL): v for n, v in reals.items() if n.endswith(RAIL) and n not in FIXED},
            temp_c=reals.get("temp_c"),
            throttled=tuple(table["throttled"].to_pylist()) if "throttled" in table.column_names else None,
            mean=notes.get("mean") == "1",
            source=notes.get("source", "file"),
            total=notes.get("total", "total_w"),
            skipped=int(notes.get("skipped", 0)),
        )
    except (ValueError, pa.ArrowException) as exc:
        raise BadInput(f"it cannot be read ({exc})") from exc


def _arrow() -> Any:
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ModuleNotFoundError as exc:
        raise BadInput("power.parquet needs pyarrow: install the extra `ue` or `lab`") from exc
    return pa
