"""SIGINT and SIGTERM, held back where what their handlers raise would be lost or would leave half of something, and
left to the parent in the processes of a pool.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator

NUMBERS = (signal.SIGINT, signal.SIGTERM)
PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Let the first SIGINT or SIGTERM wait until the end of the block. Outside the main thread, where no handler runs,
    this does nothing.
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


def as_worker(parent: int) -> None:
    """In a process of a pool: leave interrupts to the parent, and end with it even where that is killed (Linux)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was quicker
            os._exit(1)
