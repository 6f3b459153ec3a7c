"""The process of an order: its exit code, and what it says on stderr, however long its lines are."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Sequence

from testbed.clock import within
from testbed.errors import TestbedError, used_up
from testbed.experiments.runs.processes import STOP_S, WATCH_S, check_stopped, command, environment
from testbed.process.children import end_first
from testbed.tasks import cancel, to_its_end

RETRY_S = 1.0
"""Time between attempts to start a process while descriptors, processes or memory are used up."""
MOST_LINE_BYTES = 2**16
"""Bytes of a line that are kept; of a longer one, its end."""
MOST_CHARACTERS = 500
"""Largest number of characters of a line that are passed on."""


async def run_child(arguments: Sequence[str], say: Callable[[str], None]) -> tuple[int, str]:
    """Run a command of the testbed; returns its exit code (negative: the signal) and its last line on stderr. One that
    stays stopped (SIGSTOP) is ended, and has failed. The process has ended when this returns or raises, however often
    this task is cancelled.
    """
    try:
        process = await _started(arguments, say)
    except OSError as exc:
        return 1, f"its process cannot be started: {exc.strerror or exc}"
    following, stopped_s = asyncio.create_task(_follow(process, say)), None
    try:
        while not following.done():
            await asyncio.wait([following], timeout=WATCH_S)
            stopped_s = check_stopped("its process", process.pid, stopped_s)
        return following.result()
    except TestbedError as exc:
        return 1, str(exc)
    finally:
        await to_its_end(_stopped(following, process))


async def _stopped(following: asyncio.Task[tuple[int, str]], process: asyncio.subprocess.Process) -> None:
    await cancel(following)
    await _stop_group(process)


async def _follow(process: asyncio.subprocess.Process, say: Callable[[str], None]) -> tuple[int, str]:
    """Pass on what a process says; returns its exit code and its last line."""
    last_line = ""
    assert process.stderr is not None
    while line := await _line(process.stderr):
        if text := line.decode(errors="replace").strip():
            last_line = text[:MOST_CHARACTERS]
            say(f"    {last_line}")
    return await process.wait(), last_line.removeprefix("testbed: ")


async def _started(arguments: Sequence[str], say: Callable[[str], None]) -> asyncio.subprocess.Process:
    """Start the process, once there are descriptors, processes and memory for it; says once that it waits for them.

    Raises:
        OSError: it cannot be started for another reason.
    """
    told = False
    while True:
        try:
            process = await asyncio.create_subprocess_exec(
                *command(*arguments), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE, env=environment(), limit=MOST_LINE_BYTES, start_new_session=True,
            )  # fmt: skip
            end_first(process.pid)
            return process
        except (OSError, RuntimeError) as exc:
            if not used_up(exc):
                raise
            if not told:
                say(f"    its process cannot be started yet: {getattr(exc, 'strerror', None) or exc}")
            told = True
        await asyncio.sleep(RETRY_S)


async def _line(stream: asyncio.StreamReader) -> bytes:
    """The next line, or the end of one that is longer than the stream's limit; empty at the end of the stream."""
    while True:
        with contextlib.suppress(ValueError):  # the line is longer: what was received of it is dropped
            return await stream.readline()


async def _stop_group(process: asyncio.subprocess.Process) -> None:
    """Terminate a process that leads a session of its own, with all processes that it has started, if it still runs."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(asyncio.TimeoutError):
        await within(STOP_S, process.wait())
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
