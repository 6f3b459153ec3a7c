"""Running points of a sweep on Ray: on the cluster that is there, else on one that is started for it.

An actor runs points as `sweep_run.Workshop` does and sends back the files of a directory, so that no file system need
be shared. Models, heads and profiles that a sweep names by path must lie at that path on every node.
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
from testbed.experiments.sweep.run import Workshop

STARTS = 3
"""Attempts at a cluster of our own: Ray gives its processes 30 s, which a busy machine may pass."""
LAST = "summary.json"
"""Its presence means a whole run."""


class Worker:
    """An actor: a workshop on some node."""

    def __init__(self, todo: Sequence[SweepPoint]) -> None:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        self._todo, self._shop = todo, Workshop(todo)

    def run(self, number: int) -> tuple[int, dict[str, bytes]]:
        """Run a point; answers its number and its files by name."""
        with tempfile.TemporaryDirectory(prefix="testbed-") as scratch:
            directory = Path(scratch) / "point"
            self._shop.run(self._todo[number], directory)
            return number, {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def on_ray(todo: Sequence[SweepPoint], folder: Path, workers: int | None) -> Iterator[SweepPoint]:
    """Run points in actors, and yield each when its directory is whole, in the order in which they end.

    Args:
        workers: actors; None: one for each core of the cluster.

    Raises:
        BadInput: Ray is not installed, or the cluster that `RAY_ADDRESS` names does not answer.
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
        raise EngineError(f"Ray: {exc}; the same command goes on with what is left") from exc
    finally:
        ray.shutdown()


def _connected(workers: int | None) -> Any:
    """Ray, connected to the cluster that is there, else to one of this machine's."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.util
    except ImportError as exc:
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
        except Exception as exc:  # Ray raises no narrower class where its processes do not come up
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
