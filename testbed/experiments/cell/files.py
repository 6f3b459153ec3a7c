"""A run of a cell and its output directory: `cell.json`, `ues.csv`, `series.json`, `summary.json` and a report."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from testbed.errors import BadInput
from testbed.experiments.cell.config import CellConfig
from testbed.experiments.cell.parts.counting import CellRun
from testbed.experiments.cell.real.run import run_cell_really
from testbed.experiments.cell.rows import document, ue_rows
from testbed.experiments.cell.run import Told, run_cell, untold
from testbed.experiments.cell.several.workers import Spread
from testbed.experiments.report.cell import KIND, SERIES
from testbed.experiments.report.page import write_report
from testbed.experiments.results import directory as results
from testbed.experiments.results.claims import claimed
from testbed.experiments.results.csv_file import write_csv
from testbed.files import whole_file
from testbed.options import resolved

CELL, UES, FRESH = "cell.json", "ues.csv", ".new-"


def carry_out(
    config: CellConfig,
    real: bool,
    out: Path | None,
    told: Told = untold,
    spread: Spread = Spread(),  # noqa: B008
) -> dict[str, Any]:
    """Run a cell in virtual time or with processes, and return the document of `cell.json`.

    Args:
        out: directory for the results; None: nothing is written.
        told: called while it runs.
        spread: see `run_cell`.

    Raises:
        BadInput: more than one process in real time, the directory belongs to another configuration or another kind
            of run, or see `run_cell` and `run_cell_really`.
    """
    if real and spread != Spread():
        raise BadInput("--executor and --workers are for virtual time, not for --real")

    def run_it(cell: CellConfig) -> CellRun:
        return run_cell_really(cell, told) if real else run_cell(cell, told=told, spread=spread)

    if out is None:
        return document(config, run_it(config))
    with claimed(config, out, KIND, resumes=False):
        if (out / CELL).exists() and (out / SERIES).exists() == real:
            before = "in virtual time" if real else "with real processes"
            raise BadInput(f"{out} holds a run {before}; choose another --out")
        if folders := [name for name in (CELL, UES, SERIES, results.SUMMARY) if (out / name).is_dir()]:
            raise BadInput(f"{out / folders[0]} is a directory; choose another --out")
        run = run_it(config)
        found = document(config, run)
        _write(config, run, found, out)
    return found


def _write(config: CellConfig, run: CellRun, found: dict[str, Any], out: Path) -> None:
    """Write the results. Those of an earlier run stay until all new ones are written; then `cell.json` is missing until
    all others are in their place.
    """
    for left in out.glob(f"{FRESH}*"):  # of processes that were killed
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=FRESH, dir=out) as name:
        fresh = Path(name)
        if run.series is not None:
            _write_json(run.series, fresh / SERIES)
        write_csv(fresh / UES, ue_rows(config, run))
        summary = results.summary(resolved(config), config.seed, results.host(), found["rows"])
        results.write_summary(fresh, {**summary, "kind": KIND, "cell": found["cell"]})
        _write_json(found, fresh / CELL)
        for name in (CELL, SERIES):
            (out / name).unlink(missing_ok=True)
        for path in sorted(fresh.iterdir(), key=lambda path: path.name == CELL):
            path.replace(out / path.name)
    write_report([out], out)


def _write_json(content: Any, path: Path) -> None:
    with whole_file(path) as part:
        part.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1))
