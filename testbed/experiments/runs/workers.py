"""Processes of one command that share its work: on this machine, or on a Ray cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

from testbed.errors import BadInput, EngineError, TestbedError, used_up
from testbed.experiments.runs.forked import end_all
from testbed.experiments.runs.processes import WATCH_S, check_stopped
from testbed.process.interrupts import as_worker
from testbed.process.threads import started_threads

LOG = logging.getLogger(__name__)
LOCAL, RAY = "local", "ray"
EXECUTORS = (LOCAL, RAY)
STARTS = 3
"""Attempts to start a local cluster: Ray's start-up timeout of 30 s can be too short on a busy machine."""


@contextlib.contextmanager
def pool_of(
    count: int, killed: str, begin: Callable[..., None] | None = None, arguments: tuple[object, ...] = ()
) -> Iterator[futures.ProcessPoolExecutor]:
    """Fresh processes until the end of the block, at once where it fails; they leave interrupts to it and end with it,
    even where it is killed. One that stays stopped (SIGSTOP) is killed.

    Args:
        killed: what to say where something else ended one of them.
        begin: called first in each of them, with `arguments`.

    Raises:
        EngineError: something else ended one of the processes, or there are no semaphores for them, or this process may
            start no further ones.
    """
    context = _Context()
    try:
        pool = futures.ProcessPoolExecutor(count, context, _begin, (os.getpid(), begin, arguments))
    except OSError as exc:
        reason = exc.strerror or exc
        raise EngineError(f"worker processes need semaphores, which are in /dev/shm on Linux: {reason}") from exc
    over = threading.Event()
    watching = started_threads(1, "stopped workers")
    watching.submit(_watch, pool, context.started, over)
    try:
        yield pool
    except BaseException as exc:
        pool.shutdown(wait=False, cancel_futures=True)
        end_all([process for process in context.started if process.is_alive()])
        if isinstance(exc, BrokenProcessPool):
            raise EngineError(killed) from exc
        if isinstance(exc, OSError | RuntimeError) and used_up(exc):
            raise EngineError(f"no process or thread can be started: {exc}; allow more (ulimit -u)") from exc
        raise
    finally:
        over.set()
        watching.shutdown(wait=False)
        pool.shutdown()


class _Context(SpawnContext):
    """Starts fresh processes, and remembers them."""

    def __init__(self) -> None:
        self.started: list[SpawnProcess] = []

    def Process(self, *args: Any, **kwargs: Any) -> SpawnProcess:  # type: ignore[override]
        """A process that is yet to start."""
        self.started.append(process := SpawnProcess(*args, **kwargs))
        return process


def _watch(pool: futures.ProcessPoolExecutor, processes: list[SpawnProcess], over: threading.Event) -> None:
    """Kill processes that have been stopped for long, and fail what waits for a pool whose own thread has died: what
    waits for them would wait for ever.
    """
    since_s = dict[int, float | None]()
    while not over.wait(WATCH_S):
        manager: Any = pool._executor_manager_thread
        if manager is not None and not manager.is_alive():
            error = EngineError("the thread that hands out work has died; allow more processes (ulimit -u)")
            for item in list(pool._pending_work_items.values()):
                with contextlib.suppress(futures.InvalidStateError):
                    item.future.set_exception(error)
        for process in list(processes):
            if not (pid := process.pid):
                continue
            try:
                since_s[pid] = check_stopped("a worker process", pid, since_s.get(pid))
            except TestbedError as exc:
                LOG.warning("%s; it is killed", exc)
                process.kill()


def _begin(parent: int, begin: Callable[..., None] | None, arguments: tuple[object, ...]) -> None:
    as_worker(parent)
    if begin is not None:
        begin(*arguments)


@contextlib.contextmanager
def connected(workers: int | None) -> Iterator[Any]:
    """The module `ray`, connected to an existing cluster, or to a new one on this machine, until the end of the block.

    Args:
        workers: cores of a new cluster; None: as many as this machine has.

    Raises:
        BadInput: Ray is not installed, or the cluster at `RAY_ADDRESS` does not answer.
        EngineError: Ray does not start.
    """
    ray = _begun(workers)
    try:
        yield ray
    finally:
        ray.shutdown()


@contextlib.contextmanager
def ray_errors(ray: Any, advice: str) -> Iterator[None]:
    """Raise the errors of actors as they were raised there.

    Args:
        advice: what to do if an actor or its node has died.

    Raises:
        EngineError: one has.
    """
    try:
        yield
    except ray.exceptions.RayTaskError as exc:
        raise exc.cause if exc.cause is not None else EngineError(str(exc)) from exc
    except ray.exceptions.RayError as exc:
        raise EngineError(f"Ray: {exc}; {advice}") from exc


def _begun(workers: int | None) -> Any:
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
