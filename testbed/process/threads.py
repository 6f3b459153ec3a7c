"""Threads that are started before they are needed, so that a lack of them is seen when a process starts."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from testbed.errors import TestbedError

START_S = 10.0
"""Longest time until a new thread runs."""


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
