"""`testbed field report`: the results of a field run, computed from its directory; can be repeated at any time."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from testbed.config import resolved
from testbed.errors import BadInput, TestbedError
from testbed.experiments.deployment.distortions import STILL, TOLD_S
from testbed.experiments.field.contention import contention
from testbed.experiments.field.devices.base import Say
from testbed.experiments.field.log import NOTE, VISIT, FieldLog
from testbed.experiments.field.order import FieldCell
from testbed.experiments.field.plan import FieldPlan, examples_of
from testbed.experiments.field.replay import Progress, VirtualPair, record_links
from testbed.experiments.field.rows import agreement, field_rows
from testbed.experiments.field.run import progress_of
from testbed.experiments.field.samples import (
    FIELD,
    TOGETHER,
    done_cells,
    done_together,
    requests_of,
    rounds_of,
    samples,
)  # fmt: skip
from testbed.experiments.report.page import write_report
from testbed.experiments.results import directory as results
from testbed.experiments.results.folders import refuse_links

SAMPLES = "samples.parquet"
MOST_STILL_S = 1e9
Rows = list[dict[str, Any]]


def report_field(log: FieldLog, emulated: bool, say: Say, progress: Progress, replay: bool = True) -> dict[str, Any]:
    """Write `samples.parquet`, `summary.json`, the report and the recorded links as traces; returns the document of
    `summary.json`.

    Args:
        replay: also repeat the run in virtual time, which needs its models on this machine.
        progress: called with the numbers of replayed and of all cells.

    Raises:
        BadInput: no cell is finished, or the directory has links in it.
    """
    refuse_links(log.out)
    cells = done_cells(log)
    if not cells:
        raise BadInput(f"{log.out} has no finished runs; continue it with testbed field run")
    examples = examples_of(log.plan)
    found: Rows = []
    for cell in cells:
        found += samples(log.plan, cell, FIELD, requests_of(log, cell), rounds_of(log, cell), examples)
    steps = done_together(log)
    for cell in (cell for step in steps for cell in step):
        found += samples(log.plan, cell, TOGETHER, requests_of(log, cell), rounds_of(log, cell), examples)
    record_links(log)
    notes: list[str] = []

    def noted(line: str) -> None:
        notes.append(line)
        say(line)

    for line in _standstills(log, [*cells, *itertools.chain(*steps)]):
        noted(line)
    if replay:
        try:
            say("loading the pair for the runs in virtual time")
            with contextlib.closing(VirtualPair(log, emulated)) as pair:
                found += pair.run(progress, noted)
        except (TestbedError, ImportError) as exc:
            noted(f"no virtual runs: {exc}")
    results.write_parquet(log.out / SAMPLES, found)
    document = _document(log, emulated, field_rows(log, found), notes) | contention(log, steps, found)
    results.write_summary(log.out, document)
    write_report([log.out], log.out)
    return document


def _standstills(log: FieldLog, cells: Sequence[FieldCell]) -> Iterator[str]:
    """A line for each run in which the UE stood still."""
    for cell in cells:
        with contextlib.suppress(BadInput):
            still_s = results.read_summary(log.cell(cell)).get(STILL)
            if isinstance(still_s, float) and TOLD_S < still_s < MOST_STILL_S:
                yield f"the UE stood still for {still_s:.1f} s in {cell.key}; its times include that"


def _document(log: FieldLog, emulated: bool, rows: Rows, notes: list[str]) -> dict[str, Any]:
    plan: FieldPlan = log.plan
    document = results.summary(resolved(plan), plan.seed, results.host(), rows)
    return {
        **document,
        "kind": "field",
        "emulated": emulated,
        "left": progress_of(log)["left"],
        "agreement": agreement(rows),
        "visits": [event for event in log.events if event["event"] in (VISIT, NOTE)],
        "notes": notes,
    }
