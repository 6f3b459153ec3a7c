"""Directory and append-only log of a field run, locked by one process at a time.

`log.jsonl` has a line for the run, for every visit (place, time, measurement, notes) and for every finished cell,
synced to disk before the run continues. A cell is done when its run directory has `summary.json`, which is written
last, and the log its line; a run without a line, after which the disk was full, for example, is made again.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import msgspec

from testbed.errors import BadInput, TestbedError
from testbed.experiments.field.link import MeasuredClock, Seconds
from testbed.experiments.field.order import FieldCell, cells_of, steps_together
from testbed.experiments.field.plan import FieldPlan, check_same, load_plan, prompts_of
from testbed.experiments.inputs.formats import row_of
from testbed.experiments.results.claims import claimed
from testbed.experiments.results.directory import write_text
from testbed.experiments.results.files import FIELD_LOG
from testbed.files import file_bytes, json_values

CELLS, PLACES, PROMPTS = "cells", "places", "prompts"
CONFIG, LOG, EMULATED = "config.yaml", FIELD_LOG, "emulated"
VISIT, CELL, NOTE, RUN = "visit", "cell", "note", "run"


class _MeasuredEvent(msgspec.Struct):
    csi: dict[str, Any]
    clock: Optional[MeasuredClock] = None  # noqa: UP045


class _VisitEvent(msgspec.Struct):
    time: str
    place: str
    measured: _MeasuredEvent
    note: str = ""
    differs: tuple[str, ...] = ()


class _CellEvent(msgspec.Struct):
    cell: str
    origin_s: Optional[Seconds]  # noqa: UP045
    offset_s: Seconds = 0.0


class _NoteEvent(msgspec.Struct):
    time: str
    place: str
    note: str


class _RunEvent(msgspec.Struct):
    id: str


KINDS: dict[str, type] = {VISIT: _VisitEvent, CELL: _CellEvent, NOTE: _NoteEvent, RUN: _RunEvent}
"""What lines must have, by event; lines of other events are of a later version."""


class FieldLog:
    """The directory of a field run.

    Attributes:
        events: lines of the log, oldest first.
    """

    def __init__(self, out: Path, plan: FieldPlan) -> None:
        self.out, self.plan = out, plan
        self.events = read_log(out)

    @property
    def run(self) -> str:
        """What tells orders of this directory from those of another one with the same plan; empty in directories that
        are older than it.
        """
        return next((str(event["id"]) for event in self.events if event["event"] == RUN), "")

    def cell(self, cell: FieldCell) -> Path:
        """Run directory of a cell."""
        return self.out / CELLS / cell.key

    def place(self, name: str) -> Path:
        """Directory of a place: the last measurement (`link.json`) and traces."""
        return self.out / PLACES / name

    def prompts(self, repeat: int) -> Path:
        """Data set of a repeat, written on first use."""
        path = self.out / PROMPTS / f"{repeat}.jsonl"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            lines = [json.dumps(row_of(example)) for example in prompts_of(self.plan, repeat)]
            write_text(path, "\n".join(lines) + "\n")
        return path

    def done(self, cell: FieldCell) -> bool:
        """Whether a cell is finished."""
        return (self.cell(cell) / "summary.json").is_file() and self.times_of(cell) is not None

    def left(self, place: str) -> list[FieldCell]:
        """Unfinished cells of a place, in order."""
        return [cell for cell in cells_of(self.plan, place) if not self.done(cell)]

    def left_together(self) -> list[list[FieldCell]]:
        """Steps of all places at the same time of which a cell is unfinished, in order."""
        return [step for step in steps_together(self.plan) if not all(map(self.done, step))]

    def last_visit(self, place: str) -> dict[str, Any] | None:
        """The last visit to a place; None: never visited."""
        return next((e for e in reversed(self.events) if e["event"] == VISIT and e["place"] == place), None)

    def times_of(self, cell: FieldCell) -> dict[str, Any] | None:
        """Log entry with the times of a cell; None: not run."""
        return next((e for e in reversed(self.events) if e["event"] == CELL and e["cell"] == cell.key), None)

    def add(self, event: str, **fields: Any) -> None:
        """Append a line to the log and sync it to disk.

        Raises:
            TestbedError: the log cannot be written, or could not be read.
        """
        line = {"event": event, "time": _now(), **fields}
        path = self.out / LOG
        try:
            msgspec.convert(line, KINDS[event])
        except msgspec.ValidationError as exc:
            raise TestbedError(f"{path} cannot take what was found: {exc}") from exc
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, allow_nan=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as exc:
            raise TestbedError(f"cannot write {path}: {exc.strerror or exc}") from exc
        self.events.append(line)


@contextlib.contextmanager
def open_log(out: Path, plan: FieldPlan, emulated: bool) -> Iterator[FieldLog]:
    """Start or resume a field run, locked for this process.

    Raises:
        BadInput: the directory belongs to another plan or mode, or is in use.
    """
    mark = out / EMULATED

    def agree(before: FieldPlan) -> None:
        check_same(before, plan, out, mark.exists())
        if mark.exists() != emulated:
            was = "emulated" if mark.exists() else "in the field"
            raise BadInput(f"the run in {out} was {was}; choose another --out")

    fresh = not (out / CONFIG).exists()
    with claimed(plan, out, "field run", agree, stamped=False):
        if fresh and emulated:
            mark.touch()
        _mend(out / LOG)
        log = FieldLog(out, plan)
        if not log.events:
            log.add(RUN, id=secrets.token_hex(4))
        yield log


def read_field(out: Path) -> tuple[FieldPlan, FieldLog, bool]:
    """The plan and log of a field run, and whether it was emulated.

    Raises:
        BadInput: no field run there.
    """
    if not (out / CONFIG).is_file() or not (out / LOG).is_file():
        raise BadInput(f"{out} is not a field run; create one with `testbed field run PLAN.yaml --out {out}`")
    plan = load_plan(out / CONFIG)
    return plan, FieldLog(out, plan), (out / EMULATED).exists()


def _mend(path: Path) -> None:
    """Remove an incomplete last line."""
    if not path.exists():
        path.touch()
        return
    text = path.read_bytes()
    if text and not text.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(text.rfind(b"\n") + 1)


def read_log(out: Path) -> list[dict[str, Any]]:
    """Entries of a log, without an incomplete last line.

    Raises:
        BadInput: an invalid line, or a file that cannot be read or is too large.
    """
    path = out / LOG
    if not path.exists():
        return []
    found: list[dict[str, Any]] = []
    try:
        text = file_bytes(path).decode("utf-8", "replace")
    except OSError as exc:
        raise BadInput(f"cannot read {path}: {exc.strerror or exc}") from exc
    for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines(), 1):
        try:
            event = json_values(line)
            kind = KINDS.get(event["event"])
            if kind is not None:
                msgspec.convert(event, kind)
                found.append(event)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:  # noqa: PERF203
            raise BadInput(f"{path} line {number} is invalid: {exc}") from exc
    return found


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
