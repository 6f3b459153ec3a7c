"""Checks a run that another machine sent: what reports, traces and virtual runs read of it is there and bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from testbed.channel.csi import Csi
from testbed.errors import BadInput
from testbed.experiments.results.directory import read_summary
from testbed.experiments.results.files import read_requests, read_rounds
from testbed.ue.records import RoundRecord

MOST_S = 7 * 86_400.0
"""Longest run."""
MOST = 1e15
"""Bound of all numbers of a round, in the units of their columns."""
CSI = "csi_"
CLOCKS = ("begin_s", "sent_s", "verdict_s", "end_s")
"""Columns with times on the UE's clock."""


class _Asked(msgspec.Struct):
    """What is read of a row of `requests.parquet`."""

    request: int
    token_ids: list[int]
    latency_s: float
    uplink_bytes: int
    rounds: int
    tokens: int
    text: str | None


def check_arrived(run: Path, requests: int, max_tokens: int) -> None:
    """Check the run directory of a field run's cell.

    Args:
        requests: number of its requests.
        max_tokens: largest number of output tokens of a request, each round of which has one or more.

    Raises:
        BadInput: it has other requests, or a value is missing, not finite, or out of range.
    """
    read_summary(run)
    asked, rounds = read_requests(run), read_rounds(run)
    if asked.num_rows != requests or not 0 < rounds.num_rows <= requests * (max_tokens + 1):
        raise BadInput(
            f"it has {asked.num_rows} requests and {rounds.num_rows} rounds; ordered were {requests} requests of up to "
            f"{max_tokens} tokens"
        )
    try:
        _check_requests(asked.to_pylist(), Counter(rounds["request"].to_pylist()))
        _check_rounds(rounds.to_pylist())
    except msgspec.ValidationError as exc:
        raise BadInput(str(exc)) from exc


def _check_requests(rows: Sequence[Mapping[str, Any]], rounds: Counter[int | None]) -> None:
    found = [msgspec.convert(row, _Asked) for row in rows]
    if sorted(one.request for one in found) != list(range(len(rows))):
        raise BadInput("a request is missing, or occurs twice")
    for one in found:
        if not (0 < one.latency_s < MOST_S and one.uplink_bytes >= 0 and one.tokens == len(one.token_ids) > 0):
            raise BadInput(f"request {one.request} has an impossible latency, number of bytes or number of tokens")
        if one.rounds != rounds[one.request]:
            raise BadInput(f"request {one.request} has {rounds[one.request]} rounds, not {one.rounds}")
    if set(rounds) != set(range(len(rows))):
        raise BadInput("there are rounds of no request, or a request has none")


def _check_rounds(rows: Sequence[Mapping[str, Any]]) -> None:
    times_s: list[float] = []
    states_s: list[float] = []
    for row in rows:
        known = {name[len(CSI) :]: value for name, value in row.items() if name.startswith(CSI)}
        if any(value is not None for value in known.values()):
            states_s.append(msgspec.convert([known[name] for name in Csi.__struct_fields__], Csi).time_s)
        record = msgspec.convert(
            {name: row[name] for name in RoundRecord.__struct_fields__ if name != "csi"}, RoundRecord
        )
        numbers = [value for value in msgspec.structs.astuple(record) if isinstance(value, int | float)]
        if not all(abs(value) < MOST for value in numbers):  # nor is NaN
            raise BadInput(f"round {record.round} has a value that is not finite, or too large")
        if any(getattr(record, name) is None for name in CLOCKS):
            raise BadInput(f"round {record.round} has no times")
        counts = (
            record.drafted,
            record.accepted,
            record.committed,
            record.kept,
            record.uplink_bytes,
            record.downlink_bytes,
        )
        if min(counts) < 0 or record.accepted > record.drafted:
            raise BadInput(f"round {record.round} has impossible counts")
        times_s += [getattr(record, name) for name in CLOCKS]
    for name, found in (("its rounds", times_s), ("its channel states", states_s)):
        if found and not max(found) - min(found) < MOST_S:
            raise BadInput(f"{name} last longer than {MOST_S:g} s")
    if not max(times_s) > min(times_s):
        raise BadInput("its rounds take no time")
