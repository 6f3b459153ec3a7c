"""Threads that are started before they are needed, so that a lack of them is seen when a process starts."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from testbed.errors import TestbedError

START_S = 10.0
"""Longest time until a new thread runs."""
LOOK_S = 0.5
T = TypeVar("T")


def result_of(future: Future[T]) -> T:
    """Result of a future for which the main thread waits. A signal that the kernel gives to another thread does not
    wake it, so that it looks for signals every `LOOK_S`.
    """
    while not wait([future], LOOK_S).done:
        pass
    return future.result()


def started_threads(count: int, name: str) -> ThreadPoolExecutor:
    """An executor with `count` threads, all of which run already.

    Args:
        name: beginning of the threads' names.

    Raises:
        TestbedError: this process may start no further thread, or lacks the memory for one.
    """
    executor, together = ThreadPoolExecutor(count, thread_name_prefix=name), threading.Barrier(count)
    try:
        for waiting in [executor.submit(together.wait, START_S) for _ in range(count)]:
            waiting.result()
    except (RuntimeError, MemoryError) as exc:  # a broken barrier is a RuntimeError, too
        together.abort()
        executor.shutdown(wait=False)
        raise TestbedError(
            f"a thread cannot be started ({str(exc) or 'it does not run'}): allow more processes and threads "
            "(ulimit -u, TasksMax of systemd), or more memory"
        ) from exc
    return executor
