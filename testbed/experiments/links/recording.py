"""`testbed channel record`: converts the channel state recorded in a run to a link trace."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.channel.trace import COLUMNS, Trace
from testbed.errors import BadInput
from testbed.experiments.results.files import MOST_ROWS
from testbed.unpacked.parquet import parquet_table

Reals = NDArray[np.float64]
MAX_SAMPLES = 1_000_000
PLACES = ("method", "request", "begin_s")
"""Columns that tell when a round began, and in which request."""


@dataclass(frozen=True)
class TraceRecording:
    """A trace recorded from a run, with its provenance."""

    trace: Trace
    interval_s: float
    rounds: int
    """Rounds with channel state."""
    without: int
    """Rounds without channel state, which are skipped."""
    sources: tuple[str, ...]
    """Sources of the channel state: probe, passive, emulated, trace, assumed."""
    gaps: tuple[tuple[float, float], ...]
    """Start and end in trace time [s] of intervals without rounds, where the previous sample is held."""

    @property
    def header(self) -> list[str]:
        """Comment lines for the trace file."""
        held = f"{len(self.gaps)} gaps held, {sum(b - a for a, b in self.gaps):g} s in total"
        return [
            f"recorded from {self.rounds} rounds, median of each {self.interval_s:g} s; {held}",
            f"source of the channel state: {', '.join(self.sources)}",
        ]


def record(run_dir: Path, interval_s: float = 1.0) -> TraceRecording:
    """Resample the channel state in `rounds.parquet` to one sample per interval: the median over its rounds.

    An interval without rounds repeats the previous sample. Time starts at the first round with channel state; rounds of
    all methods and requests are merged in order of time. `snr_db` is nan in intervals without a known SNR.

    Raises:
        BadInput: not a run directory, no channel state, an interval that is not positive or much too short, or pyarrow
            is missing.
    """
    if not 0 < interval_s < math.inf:
        raise BadInput(f"the interval must be positive and finite, not {interval_s:g}")
    columns, sources, without = _read(run_dir)
    order = np.argsort(columns["t_s"], kind="stable")
    times_s = columns["t_s"][order] - columns["t_s"][order[0]]
    # a time on a boundary belongs to the interval that begins there, despite rounding (0.3 / 0.1 = 2.999…)
    places = np.floor(times_s / interval_s + 1e-9)
    if not places[-1] < MAX_SAMPLES:
        n = places[-1] + 1
        raise BadInput(f"{times_s[-1]:g} s in steps of {interval_s:g} s give {n:g} samples; the limit is {MAX_SAMPLES}")
    bins = places.astype(np.int64)
    n = int(bins[-1]) + 1
    filled, starts = np.unique(bins, return_index=True)
    held = np.repeat(np.arange(len(filled)), np.diff(filled, append=n))
    samples = {
        name: np.array([_median(part) for part in np.split(columns[name][order], starts[1:])])[held]
        for name in COLUMNS[1:]
    }
    trace = Trace(t_s=np.arange(n, dtype=np.float64) * interval_s, **samples)
    return TraceRecording(trace, interval_s, len(times_s), without, sources, _gaps(filled, interval_s))


def _gaps(filled: NDArray[np.int64], interval_s: float) -> tuple[tuple[float, float], ...]:
    ends = np.flatnonzero(np.diff(filled) > 1)
    return tuple((float(filled[i] + 1) * interval_s, float(filled[i + 1]) * interval_s) for i in ends)


def _median(values: Reals) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else math.nan


def _read(run_dir: Path) -> tuple[dict[str, Reals], tuple[str, ...], int]:
    """Columns of the trace by name [n], the sources, and the number of rounds without channel state."""
    try:
        import pyarrow as pa
    except ModuleNotFoundError as exc:
        raise BadInput("parquet files need pyarrow: install the extra `lab`") from exc
    path = run_dir / "rounds.parquet"
    names = {name: "csi_time_s" if name == "t_s" else f"csi_{name}" for name in COLUMNS}
    try:
        table = parquet_table(path, {*names.values(), *PLACES, "csi_source"}.__contains__, MOST_ROWS)
    except (OSError, pa.ArrowException) as exc:
        raise BadInput(f"{run_dir} is not a run directory: cannot read rounds.parquet ({exc})") from exc
    missing = sorted({*names.values(), "csi_source"} - set(table.column_names))
    if missing:
        raise BadInput(f"{path} lacks {', '.join(missing)}; it was written by an older version")
    known = table.filter(table["csi_uplink_mbps"].is_valid())
    if not known.num_rows:
        raise BadInput(f"{run_dir} has no channel state; run it with --csi")
    try:
        columns = {
            name: np.array([math.nan if v is None else v for v in known[column].to_pylist()], np.float64)
            for name, column in names.items()
        }
    except (TypeError, ValueError, OverflowError) as exc:
        raise BadInput(f"{path}: the channel state is not numeric ({exc})") from exc
    if not np.isfinite(columns["t_s"]).all():
        raise BadInput(f"{path}: csi_time_s must be finite in every round with channel state")
    try:
        columns["t_s"] = _continued(run_dir, columns["t_s"], known)
    except (OSError, pa.ArrowException, TypeError) as exc:  # TypeError: a method that is no text
        raise BadInput(f"{run_dir}: cannot read requests.parquet ({exc})") from exc
    sources = tuple(sorted({str(s) for s in known["csi_source"].to_pylist()}))
    return columns, sources, table.num_rows - known.num_rows


def _continued(run_dir: Path, times_s: Reals, known: Any) -> Reals:
    """Times of channel states [n] that go on where a run was resumed. Each of its processes counts from its own begin:
    their Unix times tell how these lie, as far as both files of the run have them.
    """
    path = run_dir / "requests.parquet"
    if not path.exists() or not set(PLACES) <= set(known.column_names):
        return times_s
    requests = parquet_table(path, {"method", "request", "clock_unix_s"}.__contains__, MOST_ROWS)
    if not {"method", "request", "clock_unix_s"} <= set(requests.column_names):
        return times_s
    rows = zip(*(requests[name].to_pylist() for name in ("method", "request", "clock_unix_s")), strict=True)
    zeros_s = {(method, request): zero_s for method, request, zero_s in rows}
    of_rounds = zip(known["method"].to_pylist(), known["request"].to_pylist(), strict=True)
    zero_s = np.array([_real(zeros_s.get(place)) for place in of_rounds])
    begin_s = np.array([_real(value) for value in known["begin_s"].to_pylist()])
    if len(processes := np.unique(zero_s)) < 2 or not np.isfinite(zero_s + begin_s).all():
        return times_s
    found: Reals = times_s.copy()
    for one in processes:
        mine = zero_s == one
        found[mine] += np.min((zero_s + begin_s - times_s)[mine])
    return found


def _real(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
