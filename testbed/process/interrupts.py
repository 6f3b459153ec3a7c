"""SIGINT, SIGTERM and SIGHUP (a closed terminal): deferred in critical sections. Workers end with their parent,
and not by SIGINT.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing.process import BaseProcess

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1
UNSTOPPABLE = "unstoppable"
"""Beginning of the names of threads for which an interrupted process does not wait: nothing ends a load of a model, or
an editor that reads a terminal.
"""


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Defer the first of `NUMBERS` to the end of the block. No effect outside the main thread, where no signal
    handler runs.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda n, _: came.append(n)) for number in NUMBERS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if came:
            signal.raise_signal(came[0])


@contextlib.contextmanager
def blocked(*numbers: signal.Signals) -> Iterator[None]:
    """Block signals in this thread, and for good in the processes that it starts within the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def as_worker(parent: int) -> None:
    """Set up a worker process: ignore SIGINT, and end when the parent does, even if it is killed (Linux)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before prctl
            os._exit(1)


def as_child() -> None:
    """Set up a process of `multiprocessing`: ignore SIGINT, and end without a message when the parent ends or closes
    the process. Both reach it even if the server that forked it was killed; signals of the parent do not.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
