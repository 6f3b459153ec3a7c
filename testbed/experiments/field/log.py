"""What a field run has done so far: its directory, one process at a time, and a log that only grows.

`log.jsonl` has a line for every visit (place, time, what was measured, notes) and for every finished cell, each on disk
before anything follows it. A cell is done when its run directory holds `summary.json`, which is written last.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from testbed.config import save
from testbed.errors import BadInput, TestbedError
from testbed.experiments.field.order import FieldCell, cells_of
from testbed.experiments.field.plan import FieldPlan, check_same, load_plan, prompts_of
from testbed.experiments.results.directory import write_text
from testbed.experiments.runs.journal import NAME as JOURNAL
from testbed.files import LOCK, held

CELLS, PLACES, PROMPTS = "cells", "places", "prompts"
CONFIG, LOG, EMULATED = "config.yaml", "log.jsonl", "emulated"
VISIT, CELL, NOTE = "visit", "cell", "note"


class FieldLog:
    """The directory of a field run.

    Attributes:
        events: lines of the log, oldest first.
    """

    def __init__(self, out: Path, plan: FieldPlan) -> None:
        self.out, self.plan = out, plan
        self.events = read_log(out)

    def cell(self, cell: FieldCell) -> Path:
        """Run directory of a cell."""
        return self.out / CELLS / cell.key

    def place(self, name: str) -> Path:
        """What is known of a place: `link.json`, as measured last, and traces."""
        return self.out / PLACES / name

    def prompts(self, repeat: int) -> Path:
        """The data set of a repeat, written down when it is first asked for."""
        path = self.out / PROMPTS / f"{repeat}.jsonl"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            lines = [json.dumps({"question": e.question, "answer": e.answer}) for e in prompts_of(self.plan, repeat)]
            write_text(path, "\n".join(lines) + "\n")
        return path

    def done(self, cell: FieldCell) -> bool:
        """Whether a cell has run to its end."""
        return (self.cell(cell) / "summary.json").is_file()

    def begun(self, cell: FieldCell) -> bool:
        """Whether a cell was cut short, so that its run can go on."""
        return (self.cell(cell) / JOURNAL).is_file()

    def left(self, place: str) -> list[FieldCell]:
        """Cells of a place that are not done, in their order."""
        return [cell for cell in cells_of(self.plan, place) if not self.done(cell)]

    def last_visit(self, place: str) -> dict[str, Any] | None:
        """The last visit to a place; None: nobody was there."""
        return next((e for e in reversed(self.events) if e["event"] == VISIT and e["place"] == place), None)

    def times_of(self, cell: FieldCell) -> dict[str, Any] | None:
        """When a cell ran; None: it did not."""
        return next((e for e in reversed(self.events) if e["event"] == CELL and e["cell"] == cell.key), None)

    def add(self, event: str, **fields: Any) -> None:
        """Write a line.

        Raises:
            TestbedError: it cannot be written.
        """
        line = {"event": event, "time": _now(), **fields}
        path = self.out / LOG
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
    """Begin a field run or go on with it, held by this process alone.

    Raises:
        BadInput: another plan's directory, one where the same plan ran otherwise, or one in use.
    """
    with held(out, f"another field run holds {out}"):
        _claim(out, plan, emulated)
        _mend(out / LOG)
        yield FieldLog(out, plan)


def read_field(out: Path) -> tuple[FieldPlan, FieldLog, bool]:
    """The plan and log of a field run, and whether it was emulated.

    Raises:
        BadInput: no field run there.
    """
    if not (out / CONFIG).is_file() or not (out / LOG).is_file():
        raise BadInput(f"{out} holds no field run; `testbed field run PLAN.yaml --out {out}` makes one")
    plan = load_plan(out / CONFIG)
    return plan, FieldLog(out, plan), (out / EMULATED).exists()


def _claim(out: Path, plan: FieldPlan, emulated: bool) -> None:
    """Write the plan down, or hold it against the one that is there."""
    path, mark = out / CONFIG, out / EMULATED
    if path.exists():
        check_same(load_plan(path), plan, out, mark.exists())
        if mark.exists() != emulated:
            was = "emulated" if mark.exists() else "in the field"
            raise BadInput(f"the run in {out} was {was}: give another --out, so that the two do not mix")
    elif any(entry.name != LOCK for entry in out.iterdir()):
        raise BadInput(f"{out} holds something else; give an empty --out")
    elif emulated:
        mark.touch()
    save(plan, path)


def _mend(path: Path) -> None:
    """Cut off a last line that was not written whole."""
    if not path.exists():
        path.touch()
        return
    text = path.read_bytes()
    if text and not text.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(text.rfind(b"\n") + 1)


def read_log(out: Path) -> list[dict[str, Any]]:
    """Lines of a log, without a last one that was not written whole.

    Raises:
        BadInput: a line that is not one of a log.
    """
    path = out / LOG
    if not path.exists():
        return []
    found: list[dict[str, Any]] = []
    text = path.read_text(encoding="utf-8")
    for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines(), 1):
        try:
            event = json.loads(line)
            known = event["event"] in (VISIT, CELL, NOTE)
        except (ValueError, KeyError, TypeError) as exc:
            raise BadInput(f"{path} line {number} cannot be read") from exc
        if known:
            found.append(event)
    return found


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
