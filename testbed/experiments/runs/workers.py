"""Processes of one command that share its work."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool

from testbed.errors import EngineError
from testbed.process.interrupts import as_worker


@contextlib.contextmanager
def pool_of(
    count: int, killed: str, begin: Callable[..., None] | None = None, arguments: tuple[object, ...] = ()
) -> Iterator[futures.ProcessPoolExecutor]:
    """Fresh processes until the end of the block, at once where it fails; they leave interrupts to it and end with it,
    even where it is killed.

    Args:
        killed: what to say where something else ended one of them.
        begin: called first in each of them, with `arguments`.

    Raises:
        EngineError: something else ended one of the processes.
    """
    context = multiprocessing.get_context("spawn")
    pool = futures.ProcessPoolExecutor(count, context, _begin, (os.getpid(), begin, arguments))
    try:
        yield pool
    except BaseException as exc:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()
        if isinstance(exc, BrokenProcessPool):
            raise EngineError(killed) from exc
        raise
    finally:
        pool.shutdown()


def _begin(parent: int, begin: Callable[..., None] | None, arguments: tuple[object, ...]) -> None:
    as_worker(parent)
    if begin is not None:
        begin(*arguments)
