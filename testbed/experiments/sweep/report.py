"""Loads run directories and sweeps for a report, including unfinished sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from testbed.config import load
from testbed.errors import BadInput, ConfigError
from testbed.experiments.inputs.marks import check_builtin
from testbed.experiments.report.data import POINTS, RowSource, Shown, labels, shown_of
from testbed.experiments.results.directory import SUMMARY, read_summary
from testbed.experiments.results.files import FIELD_LOG
from testbed.experiments.runs.journal import NAME as JOURNAL
from testbed.experiments.sweep.grid import done, sweep_rows
from testbed.experiments.sweep.points import SweepConfig, points, scorers

MOST_UNFINISHED = 10_000
"""Largest number of points of an unfinished sweep that is shown; each is made to find out whether it is finished."""


def load_all(paths: Sequence[Path]) -> list[Shown]:
    """Read run directories and sweeps, finished or not, each with a unique label.

    Raises:
        BadInput: not a run directory, an unfinished run, or a sweep without finished points.
    """
    for path in paths:
        if (path / JOURNAL).exists():
            raise BadInput(f"{path} holds an unfinished run: finish it with the command that began it and --resume")
        if (path / FIELD_LOG).exists() and not (path / SUMMARY).exists():
            raise BadInput(f"{path} holds an unfinished field run: testbed field report {path} summarizes it")
    return [_partial(path, label) or shown_of(path, label) for path, label in labels(paths)]


def _partial(path: Path, label: str) -> Shown | None:
    """An unfinished sweep, from its finished points; None if it has a summary or is not a sweep."""
    file = path / "config.yaml"
    if (path / SUMMARY).exists() or not file.exists():
        return None
    try:
        config = load(SweepConfig, file)
    except ConfigError:
        return None
    for name in scorers(config):
        check_builtin(name, f"the unfinished sweep in {path}", "finish the sweep before its report")
    every = points(config, MOST_UNFINISHED, runnable=False)
    whole = [point for point in every if done(point, path)]
    if not whole:
        raise BadInput(f"{path}: none of the {len(every)} points of this sweep is finished yet")
    parts = [RowSource(row, path / POINTS / point.key) for point in whole for row in sweep_rows(point, path)]
    first = read_summary(parts[0].directory)
    document = {**first, "config": {"name": config.name, "run": first["config"]}, "rows": [part.row for part in parts]}
    return Shown(path, label, document, parts, len(every) - len(whole))
