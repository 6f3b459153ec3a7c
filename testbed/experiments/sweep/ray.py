"""Runs points of a sweep on Ray: on an existing cluster, or on one started for the sweep.

An actor runs points with a `PointRunner` and returns the files of each directory, so no shared file system is needed.
Models, heads and profiles that a sweep names by path must exist at that path on every node.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from testbed.experiments.runs.workers import connected, ray_errors
from testbed.experiments.sweep.points import SweepPoint
from testbed.experiments.sweep.run import PointRunner

LAST = "summary.json"
"""File written last, which marks a complete run."""


class Worker:
    """Ray actor that runs points on its node."""

    def __init__(self, todo: Sequence[SweepPoint]) -> None:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        self._todo, self._runner = todo, PointRunner(todo)

    def run(self, number: int) -> tuple[int, dict[str, bytes]]:
        """Run a point; returns its number and its files by name."""
        with tempfile.TemporaryDirectory(prefix="testbed-") as scratch:
            directory = Path(scratch) / "point"
            self._runner.run(self._todo[number], directory)
            return number, {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def on_ray(todo: Sequence[SweepPoint], folder: Path, workers: int | None) -> Iterator[SweepPoint]:
    """Run points in actors; yield each when its directory is complete, in order of completion.

    Args:
        workers: number of actors; None: one per core of the cluster.

    Raises:
        BadInput: Ray is not installed, or the cluster at `RAY_ADDRESS` does not answer.
        EngineError: an actor or its node died.
    """
    with connected(workers) as ray, ray_errors(ray, "run the same command again to continue"):
        cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
        actor = ray.remote(Worker).options(num_cpus=1)
        actors = [actor.remote(todo) for _ in range(min(workers or cores, cores, len(todo)))]
        pool = ray.util.ActorPool(actors)
        for number, files in pool.map_unordered(lambda one, number: one.run.remote(number), range(len(todo))):
            _write(folder / todo[number].key, files)
            yield todo[number]


def _write(directory: Path, files: dict[str, bytes]) -> None:
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    for name, content in sorted(files.items(), key=lambda item: item[0] == LAST):
        temporary = directory / f".{name}.{os.getpid()}"
        temporary.write_bytes(content)
        temporary.replace(directory / name)
