"""Sweeps: a grid of virtual or real runs from one YAML file, validated first and resumable point by point.

Each point has its own run directory under `points/` and is done when that contains `summary.json`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from testbed.bs.judging.registry import JUDGES
from testbed.config import RunConfig, resolved
from testbed.errors import BadInput, GateError
from testbed.experiments.results import directory as results
from testbed.experiments.results.claims import claimed
from testbed.experiments.runs.demo import judging, labelled
from testbed.experiments.runs.workers import EXECUTORS, LOCAL, RAY
from testbed.experiments.sweep.baselines import NAME
from testbed.experiments.sweep.points import (
    LEVEL,
    PAYLOAD,
    PROTOCOL,
    RATE,
    SweepConfig,
    SweepPoint,
    load_sweep,
    points,
    values_text,
)  # fmt: skip
from testbed.experiments.sweep.run import POINT, at_once, in_order, one_by_one
from testbed.files import yaml_file
from testbed.protocols.methods import methods, run_method

__all__ = [
    "EXECUTORS",
    "Executor",
    "SweepConfig",
    "SweepPoint",
    "done",
    "load_sweep",
    "points",
    "run_sweep",
    "sweep_rows",
]

ELSEWHERE = frozenset({"bs", "local_bs", "keys", "insecure", "timeout_s", "failover_s", "csi", "tie_tolerance"})
"""Fields of a run that its point does not decide alone."""
IN_COLUMNS = {"methods", "channel", NAME, PROTOCOL, RATE}
"""Keys of a point that rows have in their own columns."""

Progress = Callable[[int, int, str], None]
"""Called before the first and after every point with the numbers of finished and all points, and the last values."""


class Executor(NamedTuple):
    """Executor of points.

    `local`: in `workers` processes on this machine (default: in this process). `ray`: in `workers` actors of an
    existing cluster (`RAY_ADDRESS`, or one on this machine), or else of a new one (default: one per core).
    """

    kind: str = LOCAL
    workers: int | None = None

    def check(self, todo: Sequence[SweepPoint]) -> None:
        """Validate the executor for these points.

        Raises:
            BadInput: an unknown kind, no workers, or concurrent real-time runs, which would disturb each other.
        """
        if self.kind not in EXECUTORS:
            raise BadInput(f"unknown executor {self.kind!r}; known: {', '.join(EXECUTORS)}")
        if self.workers is not None and self.workers < 1:
            raise BadInput(f"workers must be at least 1, not {self.workers}")
        real = [point for point in todo if not point.channel.is_virtual]
        if real and (self.kind == RAY or (self.workers or 1) > 1):
            raise BadInput(
                f"{len(real)} of {len(todo)} points run in real time and cannot run concurrently; omit --executor and "
                "--workers"
            )

    def run(self, todo: Sequence[SweepPoint], folder: Path) -> Iterator[SweepPoint]:
        """Run points; yield each when its directory is complete."""
        if not todo:
            return (point for point in todo)
        if self.kind == RAY:
            from testbed.experiments.sweep.ray import on_ray

            return on_ray(todo, folder, self.workers)
        if (self.workers or 1) == 1:
            return one_by_one(todo, folder)
        return at_once(todo, folder, min(self.workers or 1, len(todo)))


def run_sweep(config: SweepConfig, out: Path, progress: Progress, executor: Executor = Executor()) -> dict[str, Any]:  # noqa: B008
    """Run all unfinished points and write `summary.json` with the rows of all points; returns its document.

    Raises:
        BadInput: an invalid point, a directory of another sweep, or a sweep that is already running.
        GateError: a strict point was not lossless; all other points ran.
    """
    todo = points(config)
    executor.check(todo)
    with claimed(config, out, "sweep", stamped=False):
        left = [point for point in todo if not done(point, out)]
        ended = len(todo) - len(left)
        progress(ended, len(todo), "")
        with contextlib.closing(executor.run(in_order(left), out / "points")) as running:  # type: ignore[type-var]
            for point in running:
                ended += 1
                progress(ended, len(todo), values_text(point.values))
        rows = [row for point in todo for row in sweep_rows(point, out)]
        document = results.summary(resolved(config), config.run.seed, results.host(), rows)
        results.write_summary(out, document)
    if lossy := [values_text(point.values) for point in todo if _lossy(point, out)]:
        raise GateError(f"outputs differ from the target's own output at {'; '.join(lossy)}")
    return document


def done(point: SweepPoint, out: Path) -> bool:
    """Whether a point is finished."""
    return (out / "points" / point.key / "summary.json").exists()


def sweep_rows(point: SweepPoint, out: Path) -> list[dict[str, Any]]:
    """Rows of a finished point, with the values that identify it."""
    rows = _kept_rows(point, out / "points" / point.key)
    more = {key: point.values[key] for key in (NAME, LEVEL) if key in point.values}
    more = {"series" if key == NAME else key: value for key, value in more.items()}
    rest = {key: value for key, value in point.values.items() if key not in IN_COLUMNS}
    return [
        {**labelled({**rest, **row}, point.config), **more, PAYLOAD: point.payload, "point": point.key} for row in rows
    ]


def _kept_rows(point: SweepPoint, folder: Path) -> list[dict[str, Any]]:
    """Rows of a point's own run.

    Raises:
        BadInput: the folder has another run, or one without a row for each method.
    """
    found = results.read_summary(folder)
    given, run = resolved(point.config), found.get("config")
    run = run if isinstance(run, dict) else {}
    shared = given.keys() & set(RunConfig.__struct_fields__) - ELSEWHERE
    other = sorted(name for name in shared if _plain(given[name]) != run.get(name)) or _differences(point, folder)
    rows: list[dict[str, Any]] = found["rows"]
    named, known = [row.get("method") for row in rows], [*methods()]
    made = {str(row.get("method")) for row in rows if "lossless" in row}
    if not other and made >= set(point.config.methods) and all(name in known for name in named):
        return rows
    said = f"has another {other[0]}" if other else "lacks a method"
    raise BadInput(
        f"the run in {folder} is not that of {values_text(point.values)} (it {said}); remove it, and it is made again"
    )


def _differences(point: SweepPoint, folder: Path) -> list[str]:
    """Names of the settings in which the point that a folder states is another one, its link among them; empty where it
    states none, as of a real run.
    """
    if not (path := folder / POINT).exists():
        return []
    try:
        stated = yaml_file(path)
        before = _plain({**stated["config"], **stated["channel"], PAYLOAD: stated[PAYLOAD]})
    except (OSError, BadInput, KeyError, TypeError, ValueError, RecursionError):
        return [POINT]
    now = _plain({**resolved(point.config), **msgspec.to_builtins(point.channel), PAYLOAD: point.payload})
    return sorted(name for name in now.keys() & before.keys() if now[name] != before[name])


def _plain(value: Any) -> Any:
    """A setting as it is read from JSON."""
    return json.loads(json.dumps(value))


def _lossy(point: SweepPoint, out: Path) -> bool:
    """Whether an output that must be lossless is not."""
    theta, strict = point.config.threshold, JUDGES[judging(point.config)[0]].lossless
    held = [row for row in sweep_rows(point, out) if run_method(row["method"]).exact(theta, strict)]
    return any(row["lossless"] is False for row in held)
