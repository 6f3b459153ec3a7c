"""Processes of `multiprocessing`: started and stopped, whatever becomes of the server that forks them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from testbed.errors import TestbedError
from testbed.experiments.runs.processes import STOP_S
from testbed.process.interrupts import blocked

NOTED_S = 0.01
"""Time between two looks at a process whose exit status another thread has received."""


def forking(module: str) -> ForkServerContext:
    """Context whose processes are forked by a server that has imported a module. Python's server ignores SIGINT after
    its imports; it starts with SIGINT blocked, so that Ctrl-C during the imports prints no traceback.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    resource_tracker.ensure_running()  # which unblocks SIGINT
    with blocked(signal.SIGINT):
        forkserver.ensure_running()
    return context


def start(process: BaseProcess) -> None:
    """Start a process. One whose start is interrupted ends by `as_child`.

    Raises:
        TestbedError: the server that forks processes was killed meanwhile.
    """
    try:
        process.start()
    except EOFError as exc:  # which a command line would take for the end of its input
        raise TestbedError(f"the process of {process.name} ended before it had started") from exc
    except BaseException as exc:
        traceback.clear_frames(exc.__traceback__)  # they hold the pipe by whose end the process knows of ours
        raise


@contextlib.contextmanager
def one_line(name: str) -> Iterator[None]:
    """End this process with one line in place of a traceback, if it fails for a reason that is ours or the system's."""
    try:
        yield
    except (TestbedError, OSError) as exc:
        sys.exit(f"testbed: {name}: {exc}")


def stop_all(processes: Sequence[BaseProcess]) -> None:
    """Ask processes to end, and kill those that have not within `STOP_S`: one that is stopped by SIGSTOP takes no other
    signal, and Python would wait for it at its exit. If the server that forked them is stopped, and cannot tell of
    their end, it is killed. They are closed, which ends those of which nothing is known any more, since that server was
    killed.
    """
    for process in end_all([process for process in processes if process.is_alive()]):
        _kill_server(process)
    for process in processes:
        with contextlib.suppress(ValueError):  # still running
            process.close()


def end_all(processes: Sequence[BaseProcess]) -> list[BaseProcess]:
    """Ask running processes to end, and kill those that have not within `STOP_S`; returns these."""
    for process in processes:
        process.terminate()
    _join(processes)
    killed = [process for process in processes if process.is_alive()]
    for process in killed:
        process.kill()
    _join(killed)
    return killed


def _join(processes: Sequence[BaseProcess]) -> None:
    """Wait until all of them have ended, for `STOP_S` at most.

    `join` returns at once where another thread, as that of a pool, receives the exit status first, and `is_alive` is
    true until that thread has noted it.
    """
    until_s = time.monotonic() + STOP_S
    for process in processes:
        process.join(max(0.0, until_s - time.monotonic()))
        while process.is_alive() and time.monotonic() < until_s:
            time.sleep(NOTED_S)


def _kill_server(process: BaseProcess) -> None:
    """Kill the server that forked a process, if that process does not end (Linux)."""
    with contextlib.suppress(OSError):
        if process.is_alive() and _parent(server := _parent(process.pid)) == os.getpid():
            os.kill(server, signal.SIGKILL)
            process.join(STOP_S)


def _parent(pid: int | None) -> int:
    """Number of the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
