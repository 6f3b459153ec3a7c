"""Runs points of a sweep: sequentially in this process, or in parallel in worker processes."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path

import msgspec

from testbed.errors import GateError
from testbed.experiments.inputs.pair import target_for
from testbed.experiments.inputs.profile import load_profile
from testbed.experiments.runs.demo import judge_of, judging, run_config, run_demo
from testbed.experiments.runs.execute import Watch
from testbed.experiments.runs.prepare import Workload, prepare, room
from testbed.experiments.runs.uerun import result_of, write_run
from testbed.experiments.runs.virtual import Models, counted_bytes, load_models, run_virtual
from testbed.experiments.runs.workers import pool_of
from testbed.experiments.sweep.points import SweepPoint
from testbed.files import is_part

POINT = "point.yaml"
"""A virtual point, in the directory of its run."""
Pair = tuple[str, str | None, str | None, str, str]
"""Engine, target, drafter and dtype; virtual points with equal pairs share passes. And the point's key, where its
drafter remembers earlier requests: they are those of this point.
"""


def pair_of(point: SweepPoint) -> Pair:
    """The pair of a point."""
    config = point.config
    alone = point.key if config.drafter_memory else ""
    return config.engine, config.model, config.drafter, config.dtype, alone


def in_order(todo: Sequence[SweepPoint]) -> list[SweepPoint]:
    """Points in execution order: grouped by pair, largest window first, since its passes include the smaller ones."""
    pairs = list(dict.fromkeys(map(pair_of, todo)))
    return sorted(todo, key=lambda point: (pairs.index(pair_of(point)), -point.config.window))


class PointRunner:
    """Runs points: real ones as demos, virtual ones on a pair that is loaded on demand.

    Virtual points share the passes of one pair, whatever their link, window or payload; one pair is loaded at a time.
    """

    def __init__(self, todo: Sequence[SweepPoint]) -> None:
        self._todo = [point for point in todo if point.channel.is_virtual]
        self._pair: Pair | None = None
        self._models: Models | None = None
        self._works: dict[tuple[str, int, str, int], Workload] = {}

    def run(self, point: SweepPoint, directory: Path) -> None:
        """Run a point and write its directory, replacing remains of an interrupted run.

        Raises:
            TestbedError: the run failed; a lossy output is not an error here.
        """
        for path in directory.iterdir() if directory.is_dir() else ():
            if is_part(path) or not path.name.startswith(
                "."
            ):  # hidden files are others', not counted by `require_empty` either
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        with contextlib.suppress(GateError):  # recorded in the results; the sweep reports it at the end
            if point.channel.is_virtual:
                self._run_virtual(point, directory)
            else:
                run_demo(point.config, directory, lambda _: None)

    def close(self) -> None:
        """Release the models."""
        if self._models is not None:
            self._models.close()
        self._pair = self._models = None
        self._works = {}

    def _run_virtual(self, point: SweepPoint, directory: Path) -> None:
        assert point.channel.profile is not None
        if self._pair != pair_of(point):
            self.close()
            self._models = load_pair([p for p in self._todo if pair_of(p) == pair_of(point)])
            self._pair = pair_of(point)
        assert self._models is not None
        run = run_config(point.config)
        key = (run.dataset, run.limit or 0, run.prompt_format, run.shots)
        if key not in self._works:
            self._works[key] = prepare(run, turns=True)
        work = self._works[key]
        watch = Watch(lambda *_: None, lambda _: None)
        profile, judge = load_profile(point.channel.profile), judge_of(point.config)
        outcomes = run_virtual(
            run, work, watch, point.channel, profile, self._models, point.payload, judge, point.config.csi
        )
        directory.mkdir(parents=True, exist_ok=True)
        (directory / POINT).write_bytes(msgspec.yaml.encode(point))
        write_run(directory, run, work, result_of(run, work, outcomes, counted=counted_bytes(profile)))


def load_pair(todo: Sequence[SweepPoint]) -> Models:
    """Load the pair of these points, with context for the longest prompt and output."""
    most = max(point.config.max_tokens for point in todo)
    runs = [run_config(msgspec.structs.replace(point.config, max_tokens=most)) for point in todo]
    by_size = sorted(runs, key=lambda run: run.limit or 0)
    largest = {(run.dataset, run.prompt_format, run.shots): run for run in by_size}
    works = [prepare(run, turns=True) for run in largest.values()]
    work = max(works, key=lambda work: max(room(prompt, most) for prompt in [*work.prompts, *work.warmup]))
    hidden = any(judging(point.config)[1] is not None for point in todo)
    engine, model, _, dtype, _ = pair_of(todo[0])
    target = Path(target_for(engine, model))
    return load_models(target, engine, dtype, runs[0], work, hidden)


# ---------------------------------------------------------------- on this machine


def one_by_one(todo: Sequence[SweepPoint], folder: Path) -> Iterator[SweepPoint]:
    """Run points in this process; yield each when its directory is complete."""
    runner = PointRunner(todo)
    try:
        for point in todo:
            runner.run(point, folder / point.key)
            yield point
    finally:
        runner.close()


def at_once(todo: Sequence[SweepPoint], folder: Path, workers: int) -> Iterator[SweepPoint]:
    """Run points in worker processes, each with its own pair; yield them in order of completion.

    Raises:
        EngineError: a worker process was killed.
    """
    threads = max(1, (os.cpu_count() or 1) // workers)
    killed = "a worker was killed; run the same command again to continue"
    with pool_of(workers, killed, _begin, (list(todo), threads)) as pool:
        running = {pool.submit(_run, number, folder): point for number, point in enumerate(todo)}
        for future in futures.as_completed(running):
            future.result()
            yield running[future]


_runner: PointRunner | None = None
_todo: Sequence[SweepPoint] = ()


def _begin(todo: Sequence[SweepPoint], threads: int) -> None:
    """Initialise a worker process."""
    global _runner, _todo
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    _runner, _todo = PointRunner(todo), todo


def _run(number: int, folder: Path) -> None:
    assert _runner is not None
    _runner.run(_todo[number], folder / _todo[number].key)
