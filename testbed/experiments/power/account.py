"""`testbed power account`: adds energy to a finished run from power samples, such as those of an external meter."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from testbed.channel.csi import Csi
from testbed.errors import BadInput
from testbed.experiments.power.recorder import DATE_BACK, SAMPLES, facts
from testbed.experiments.results.directory import read_summary, round_row, write_summary
from testbed.experiments.results.energy import energy_columns, idle_energies, measured
from testbed.experiments.results.files import read_requests, read_rounds, write_round_rows
from testbed.power.files import read_samples, write_parquet
from testbed.power.series import Samples
from testbed.ue.records import RequestRecord, RoundRecord

LOG = logging.getLogger(__name__)
MOST_W = 1e9
"""Largest power of an idle device."""
Key = tuple[str, int]


def account_run(run: Path, file: Path | None, offset_s: float | None = None, align: bool = False) -> dict[str, Any]:
    """Compute the energy of a run's rounds and write it to `rounds.parquet`, `summary.json` and `power.parquet`.

    Args:
        file: power samples in Unix time; None: the run's own.
        offset_s: added to the times of the samples; None: 0.
        align: place the first sample at the start of the run's first round.

    Returns:
        `power`, and `rows` with `method` and the energy columns.

    Raises:
        BadInput: not a run directory, a run without time stamps, samples that do not overlap with it, or both an offset
            and alignment.
    """
    if align and offset_s is not None:
        raise BadInput("give --offset-s or --align, not both")
    document, records = read_summary(run), _records(run)
    samples = read_samples(file if file is not None else run / SAMPLES)
    if file is not None and DATE_BACK in document:
        LOG.warning("the date went back within this run: samples in Unix time fit one part of it at most")
    begin_s, end_s = _span(run, records)
    samples = samples.shifted(begin_s - float(samples.time_s[0]) if align else offset_s or 0.0)
    _check_overlap(samples, begin_s, end_s)
    found = dict(zip(records, measured(list(records.values()), samples), strict=True))
    before = document.get("power") or {}
    idle_w = before.get("idle_w") if file is None and isinstance(before, dict) else None
    known = idle_w is None or (isinstance(idle_w, int | float) and 0 <= idle_w < MOST_W)
    if not isinstance(before, dict) or not known:
        raise BadInput(f"{run}: the `power` of summary.json is damaged")
    if unnamed := [row for row in document["rows"] if not isinstance(row.get("method"), str)]:
        raise BadInput(f"{run}: summary.json has {len(unnamed)} rows without a method")
    rows, idle_j = [], dict(zip(found, idle_energies(list(found.values()), idle_w), strict=True))
    for row in document["rows"]:
        own = [key for key in found if key[0] == row["method"]]
        rows.append(energy_columns(row["method"], [found[key] for key in own], [idle_j[key] for key in own]))
    power = {**(before if file is None else {}), **facts(samples)}
    document["rows"] = [{**row, **more} for row, more in zip(document["rows"], rows, strict=True)]
    document["power"] = power
    write_round_rows(run, [round_row(*key, round_) for key, record in found.items() for round_ in record.rounds])
    if file is not None:
        write_parquet(run / SAMPLES, samples)
    write_summary(run, document)
    methods = [row["method"] for row in document["rows"]]
    return {"power": power, "rows": [{"method": m, **more} for m, more in zip(methods, rows, strict=True)]}


def _records(run: Path) -> dict[Key, RequestRecord]:
    """Requests of a run with their rounds, by method and index."""
    rounds: dict[Key, list[RoundRecord]] = {}
    for row in read_rounds(run).to_pylist():
        rounds.setdefault((row["method"], row["request"]), []).append(_round(run, row))
    found = {}
    for row in read_requests(run).to_pylist():
        key = (row["method"], row["request"])
        own = rounds.pop(key, [])
        found[key] = RequestRecord(0, [], "", 0.0, 0, 0, own, row["clock_unix_s"])
    if rounds:
        raise BadInput(f"{run}: rounds.parquet has requests that are missing in requests.parquet")
    return found


def _round(run: Path, row: Mapping[str, Any]) -> RoundRecord:
    known = {name: value for name, value in row.items() if value is not None}
    csi = {name: known[f"csi_{name}"] for name in Csi.__struct_fields__ if f"csi_{name}" in known}
    try:
        record = msgspec.convert(known, RoundRecord)
        return replace(record, csi=Csi(**csi)) if csi else record
    except (msgspec.ValidationError, BadInput, TypeError) as exc:  # TypeError: a rate or the RTT is missing
        raise BadInput(f"{run}: rounds.parquet is not sufficient to compute energy ({exc})") from exc


def _span(run: Path, records: Mapping[Key, RequestRecord]) -> tuple[float, float]:
    """Start of the run's first round and end of its last, in Unix time."""
    instants = [
        instant + record.clock_unix_s
        for record in records.values()
        for round_ in record.rounds
        for instant in (round_.begin_s, round_.end_s)
        if instant is not None and record.clock_unix_s is not None
    ]
    if not instants:
        raise BadInput(f"{run} has no time stamps of rounds: it is a virtual run, or was written by an older version")
    return min(instants), max(instants)


def _check_overlap(samples: Samples, begin_s: float, end_s: float) -> None:
    first_s, last_s = float(samples.time_s[0]), float(samples.time_s[-1])
    if last_s <= begin_s or first_s >= end_s:
        raise BadInput(
            f"the samples ({first_s:.3f} to {last_s:.3f} in Unix time) do not overlap with the run ({begin_s:.3f} to "
            f"{end_s:.3f}); shift them with --offset-s, or give --align if the meter was started with the run"
        )
