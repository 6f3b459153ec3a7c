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
from typing import Any

from testbed.errors import BadInput, EngineError
from testbed.experiments.sweep.points import SweepPoint
from testbed.experiments.sweep.run import PointRunner

STARTS = 3
"""Attempts to start a local cluster: Ray's start-up timeout of 30 s can be too short on a busy machine."""
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
    ray = _connected(workers)
    try:
        cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
        actor = ray.remote(Worker).options(num_cpus=1)
        actors = [actor.remote(todo) for _ in range(min(workers or cores, cores, len(todo)))]
        pool = ray.util.ActorPool(actors)
        for number, files in pool.map_unordered(lambda one, number: one.run.remote(number), range(len(todo))):
            _write(folder / todo[number].key, files)
            yield todo[number]
    except ray.exceptions.RayTaskError as exc:
        raise exc.cause if exc.cause is not None else EngineError(str(exc)) from exc
    except ray.exceptions.RayError as exc:
        raise EngineError(f"Ray: {exc}; run the same command again to continue") from exc
    finally:
        ray.shutdown()


def _connected(workers: int | None) -> Any:
    """Connect Ray to an existing cluster, or to a new one on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.util
    except ModuleNotFoundError as exc:
        raise BadInput("--executor ray needs Ray: install the extra `ray`") from exc
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        ray.init(address="auto", **quiet)
    except ConnectionError as exc:
        if address := os.environ.get("RAY_ADDRESS"):
            raise BadInput(f"no Ray cluster answers at {address} (RAY_ADDRESS)") from exc
    else:
        return ray
    for attempt in range(1, STARTS + 1):
        try:
            ray.init(address="local", num_cpus=workers or os.cpu_count(), include_dashboard=False, **quiet)
            break
        except Exception as exc:  # Ray has no narrower class for failed start-up
            ray.shutdown()
            if attempt == STARTS:
                raise EngineError(f"Ray does not start: {' '.join(str(exc).split())}") from exc
    return ray


def _write(directory: Path, files: dict[str, bytes]) -> None:
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    for name, content in sorted(files.items(), key=lambda item: item[0] == LAST):
        temporary = directory / f".{name}.{os.getpid()}"
        temporary.write_bytes(content)
        temporary.replace(directory / name)
