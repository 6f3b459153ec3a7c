"""Per-prompt results of a field run, from measured cells and from virtual time, in the same columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from testbed.channel.csi import Csi
from testbed.experiments.field.link import csi_of
from testbed.experiments.field.log import FieldLog
from testbed.experiments.field.order import FieldCell, cells_of, steps_together
from testbed.experiments.field.plan import FieldPlan
from testbed.experiments.inputs.formats import Example
from testbed.experiments.results.files import read_requests, read_rounds
from testbed.models.scoring import final_number

Row = Mapping[str, Any]
FIELD, TOGETHER, REPLAY, VIRTUAL = "field", "together", "replay", "virtual"
"""Measured alone; measured beside the UEs of all other places; in virtual time over the recorded link; in virtual time
over the modelled link."""
WAYS = (FIELD, TOGETHER, REPLAY, VIRTUAL)


def done_together(log: FieldLog) -> list[list[FieldCell]]:
    """Finished steps of all places at the same time."""
    return [step for step in steps_together(log.plan) if all(map(log.done, step))]


def done_cells(log: FieldLog) -> list[FieldCell]:
    """Finished cells of places alone, by place."""
    return [cell for place in log.plan.places for cell in cells_of(log.plan, place.name) if log.done(cell)]


def rounds_of(log: FieldLog, cell: FieldCell) -> list[dict[str, Any]]:
    """Rows of a cell's `rounds.parquet`, with its place."""
    rows = read_rounds(log.cell(cell)).to_pylist()
    return [{**row, "place": cell.place} for row in rows]


def requests_of(log: FieldLog, cell: FieldCell) -> list[dict[str, Any]]:
    """Rows of a cell's `requests.parquet`."""
    return [dict(row) for row in read_requests(log.cell(cell)).to_pylist()]


def measured_csi(log: FieldLog, place: str) -> Csi:
    """The link of a place as measured on the last arrival; rates that were not measured are assumed."""
    visit = log.last_visit(place)
    return csi_of(visit["measured"] if visit else {"csi": {}})


def samples(
    plan: FieldPlan,
    cell: FieldCell,
    way: str,
    requests: Sequence[Row],
    rounds: Sequence[Row],
    examples: Sequence[Example],
) -> list[dict[str, Any]]:
    """One row per prompt: `latency_s`, `tokens`, `rounds`, `kept` (mismatches accepted by the judge), `judged`
    (mismatches accepted or rejected), `energy_j`, `temp_c` (maximum), `throttled` (number of throttled rounds), `right`
    (None: no reference answer), and the output's `token_ids`.

    Args:
        requests: rows of this cell's `requests.parquet`.
        rounds: rows of this cell's `rounds.parquet`.
        examples: prompts of the whole plan, indexed by `request` in the result.
    """
    distance_m = next(place.distance_m for place in plan.places if place.name == cell.place)
    found, by_request = [], defaultdict(list)
    for one in rounds:
        by_request[one["request"]].append(one)
    for row in requests:
        mine = by_request[row["request"]]
        kept = sum(r["kept"] or 0 for r in mine)
        request = cell.repeat * plan.prompts + row["request"]
        result = examples[request].result
        found.append({
            "place": cell.place, "distance_m": distance_m, "repeat": cell.repeat, "setting": cell.method, "way": way,
            "request": request, "tokens": row["tokens"], "rounds": row["rounds"],
            "latency_s": row["latency_s"], "link_s": sum(r["link_s"] for r in mine), "kept": kept,
            "judged": kept + sum(map(_rejects, mine)), "uplink_bytes": row["uplink_bytes"], "energy_j": _energy_j(mine),
            "temp_c": max((r["temp_c"] for r in mine if r.get("temp_c") is not None), default=None),
            "throttled": _throttled(mine),
            "right": None if result is None else final_number(row["text"] or "") == result,
            "token_ids": list(row["token_ids"]),
        })  # fmt: skip
    return found


def _energy_j(rounds: Sequence[Row]) -> float | None:
    """Energy of all rounds; None if power was not measured."""
    found = [row["energy_j"] for row in rounds]
    return None if None in found else sum(found)


def _throttled(rounds: Sequence[Row]) -> int | None:
    """Number of throttled rounds; None without a sensor."""
    known = [row["throttled"] for row in rounds if row.get("throttled") is not None]
    return sum(map(bool, known)) if known else None


def _rejects(row: Row) -> int:
    """1 if a mismatch ended the window (later ones are not judged)."""
    return int(row["accepted"] < row["drafted"])
