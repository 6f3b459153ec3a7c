"""Checks what an agent sent: what reports, traces and virtual runs read of a run is there and bounded."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from pyarrow import compute

from testbed.channel.csi import Csi
from testbed.config import RunConfig, resolved
from testbed.errors import BadInput
from testbed.experiments.field.devices.base import ALLOWED
from testbed.experiments.field.link import check_state
from testbed.experiments.links.recording import record as recorded
from testbed.experiments.results.directory import read_summary
from testbed.experiments.results.files import read_requests, read_rounds
from testbed.protocols import PROTOCOLS, TARGET_ONLY
from testbed.ue.records import RoundRecord

MOST_S = 5 * 86_400.0
"""Longest run."""
LONGEST_S = 86_400.0
"""Longest part of a round, as in messages (`protocols/ranges.py`)."""
LEAST_S = 1e-6
"""Shortest request, and shortest time from the first round to the end of the last."""
MOST = 1e15
"""Bound of all other numbers of a round, in the units of their columns."""
MOST_SAID = 300
"""Maximum number of characters of an agent's text."""
STEP_S = 0.5
"""Step of the traces that are recorded of runs."""
CSI = "csi_"
CLOCKS = ("begin_s", "sent_s", "verdict_s", "end_s")
"""Columns with times on the UE's clock."""
PARTS = ("draft_s", "link_s", "queue_s", "verify_s", "judge_s", "overhead_s", "wasted_s", "hidden_s")
"""Columns with the parts of a round's time."""


class _Asked(msgspec.Struct):
    """What is read of a row of `requests.parquet`."""

    request: int
    token_ids: list[int]
    latency_s: float
    uplink_bytes: int
    rounds: int
    tokens: int
    text: str | None


def check_arrived(run: Path, requests: int, max_tokens: int, config: RunConfig | None = None) -> None:
    """Check the run directory of a field run's cell (`_check`); whatever else libraries raise of damaged files is a
    refusal, too.

    Args:
        config: what was ordered, to compare with what the run says of itself; None: it is not compared.

    Raises:
        BadInput: it cannot be used.
    """
    try:
        document = _check(run, requests, max_tokens)
        if config is not None:
            _check_settings(document, config)
    except Exception as exc:
        raise BadInput(one_line(str(exc)) or type(exc).__name__) from exc


def one_line(text: str) -> str:
    """An agent's text for a line of a terminal: no line breaks, no marks that reorder it, at most `MOST_SAID`."""
    return "".join(one if one.isprintable() else " " for one in text[:MOST_SAID]).strip()


def _check_settings(document: Mapping[str, Any], config: RunConfig) -> None:
    """Compare the settings of a run with those that were ordered, as far as it has them. An agent may reach the base
    station elsewhere, behind its emulated link.
    """
    found, ordered = document.get("config"), json.loads(json.dumps(resolved(config)))
    if not isinstance(found, dict):
        raise BadInput("its summary has no configuration")
    for name in ALLOWED:
        if name != "bs" and name in found and found[name] != ordered[name]:
            raise BadInput(f"it was decoded with {name} {found[name]!r}; ordered was {ordered[name]!r}")


def _check(run: Path, requests: int, max_tokens: int) -> dict[str, Any]:
    """Check a run directory; returns its summary.

    Args:
        requests: number of its requests.
        max_tokens: largest number of output tokens of a request, each round of which has one or more.

    Raises:
        Exception: it has other requests, or a value is missing, not finite, or out of range.
    """
    document = read_summary(run)
    asked, rounds = read_requests(run), read_rounds(run)
    if asked.num_rows != requests or not 0 < rounds.num_rows <= requests * (max_tokens + 1):
        raise BadInput(
            f"it has {asked.num_rows} requests and {rounds.num_rows} rounds; ordered were {requests} requests of up to "
            f"{max_tokens} tokens"
        )
    if sum(asked["tokens"].to_pylist()) != len(asked["token_ids"].combine_chunks().flatten()):
        raise BadInput("its requests have other numbers of tokens than they say")
    if (compute.max(compute.list_value_length(asked["token_ids"])).as_py() or 0) > max_tokens:  # before memory is taken
        raise BadInput(f"a request has more than {max_tokens} tokens")
    _check_requests(asked.to_pylist(), Counter(rounds["request"].to_pylist()), max_tokens)
    if _check_rounds(rounds.to_pylist()):
        recorded(run, STEP_S)
    return document


def _check_requests(rows: Sequence[Mapping[str, Any]], rounds: Counter[int | None], max_tokens: int) -> None:
    found = [msgspec.convert(row, _Asked) for row in rows]
    if sorted(one.request for one in found) != list(range(len(rows))):
        raise BadInput("a request is missing, or occurs twice")
    for one in found:
        tokens = len(one.token_ids)
        if not (LEAST_S <= one.latency_s < MOST_S and one.uplink_bytes >= 0 and max_tokens >= one.tokens == tokens > 0):
            raise BadInput(f"request {one.request} has an impossible latency, number of bytes or number of tokens")
        if one.rounds != rounds[one.request]:
            raise BadInput(f"request {one.request} has {rounds[one.request]} rounds, not {one.rounds}")
    if set(rounds) != set(range(len(rows))):
        raise BadInput("there are rounds of no request, or a request has none")


def _check_rounds(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Check rounds; returns whether they have channel states."""
    times_s: list[float] = []
    states_s: list[float] = []
    parts_s: list[float] = []
    for row in rows:
        known = {name[len(CSI) :]: value for name, value in row.items() if name.startswith(CSI)}
        if any(value is not None for value in known.values()):
            state = msgspec.convert([known[name] for name in Csi.__struct_fields__], Csi)
            check_state(state)
            states_s.append(state.time_s)
        record = msgspec.convert(
            {name: row[name] for name in RoundRecord.__struct_fields__ if name != "csi"}, RoundRecord
        )
        numbers = [value for value in msgspec.structs.astuple(record) if isinstance(value, int | float)]
        if not all(abs(value) < MOST for value in numbers):  # nor is NaN
            raise BadInput(f"round {record.round} has a value that is not finite, or too large")
        parts_s += [getattr(record, name) for name in PARTS]
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
        if record.protocol not in PROTOCOLS and record.protocol != TARGET_ONLY:
            raise BadInput(f"round {record.round} has the unknown protocol {one_line(record.protocol)!r}")
        if min(counts) < 0 or record.accepted > record.drafted:
            raise BadInput(f"round {record.round} has impossible counts")
        times_s += [getattr(record, name) for name in CLOCKS]
    for name, found in (("its rounds", times_s), ("its channel states", states_s)):
        if found and not max(found) - min(found) < MOST_S:
            raise BadInput(f"{name} last longer than {MOST_S:g} s")
    span_s = max(row["end_s"] for row in rows) - min(row["begin_s"] for row in rows)
    if not span_s >= LEAST_S:
        raise BadInput("its rounds take no time")
    if min(parts_s) < -LEAST_S or max(parts_s) > min(LONGEST_S, span_s + 1):
        raise BadInput(f"its rounds take {span_s:.3g} s, and parts of them {min(parts_s):.3g} to {max(parts_s):.3g} s")
    return bool(states_s)
