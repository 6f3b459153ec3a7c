"""Rows of UEs at the same time, from rounds with known times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed.experiments.field.contention import contention, overlap_of
from testbed.experiments.field.log import CELL, FieldLog
from testbed.experiments.field.order import FieldCell, steps_together
from testbed.experiments.field.plan import FieldPlan, Method, Place
from testbed.experiments.results import directory as results

PLAN = FieldPlan(
    places=(Place(name="near", distance_m=2.0), Place(name="far", distance_m=20.0)),
    methods=(Method(name="fh", protocol="fh"),),
    repeats=1,
    prompts=1,
    together=True,
)
SPANS = {
    ("near", False): (0.0, 4.0),
    ("far", False): (10.0, 18.0),
    ("near", True): (107.0, 115.0),
    ("far", True): (102.0, 112.0),
}
"""Begin and end of two rounds of each cell, on the UE's clock; that of near is 5 s ahead."""


@pytest.fixture
def log(tmp_path: Path) -> FieldLog:
    found = FieldLog(tmp_path, PLAN)
    for (place, together), (begin_s, end_s) in SPANS.items():
        cell = FieldCell(place, 0, "fh", together)
        middle_s = (begin_s + end_s) / 2
        rounds = [
            {"method": "fh", "request": 0, "begin_s": start, "end_s": end, "draft_s": 0.5 * (1 + together),
             "drafted": 5, "link_s": 0.25 * (end - start), "uplink_bytes": 1000}
            for start, end in ((begin_s, middle_s), (middle_s, end_s))
        ]  # fmt: skip
        found.cell(cell).mkdir(parents=True)
        results.write_parquet(found.cell(cell) / "rounds.parquet", rounds)
        (found.cell(cell) / "summary.json").write_text(json.dumps({}))
        found.add(CELL, cell=cell.key, origin_s=None, offset_s=5.0 if place == "near" else 0.0)
    return found


def row(place: str, way: str, tokens: int, latency_s: float) -> dict[str, Any]:
    return {"place": place, "setting": "fh", "way": way, "repeat": 0, "tokens": tokens, "latency_s": latency_s}


def test_overlaps_are_on_one_clock(log: FieldLog) -> None:
    """Near runs from 102 to 110 on the lab machine's clock, far from 102 to 112."""
    (step,) = steps_together(PLAN)
    assert [overlap_of(log, cell, step) for cell in step] == [1.0, 0.8]


def test_losses_are_told_for_each_ue_and_for_all(log: FieldLog) -> None:
    found = [row("near", "field", 40, 4.0), row("far", "field", 40, 8.0), row("near", "together", 40, 8.0),
             row("far", "together", 40, 10.0), row("far", "replay", 1, 9.0)]  # fmt: skip
    near, far, whole = contention(log, steps_together(PLAN), found)["together"]
    assert (near["goodput_tps"], near["alone_tps"], near["share"]) == (5.0, 10.0, 0.5)
    assert (far["goodput_tps"], far["alone_tps"], far["share"]) == (4.0, 5.0, 0.8)
    assert (near["link_ratio"], far["link_ratio"], near["draft_ratio"]) == (2.0, 1.25, 2.0)
    assert (whole["place"], whole["goodput_tps"], whole["alone_tps"], whole["share"]) == ("all places", 9.0, 15.0, 0.6)
    assert (whole["link_ratio"], whole["overlap"]) == (2.0, 0.8)
    assert contention(log, [], found) == {}
