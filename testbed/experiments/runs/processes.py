"""Child processes of a run: started with a ready line to wait for, stopped without orphans."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from testbed.channel.spec import ChannelSpec, channel_text
from testbed.config import Config, RunConfig, ServeConfig, save
from testbed.errors import BadInput, TestbedError
from testbed.experiments.deployment.distortions import standstill_told
from testbed.process.children import is_stopped, module_command, signal_name

PARENT = "TESTBED_PARENT"
"""Environment variable by which a child knows whose end, even by SIGKILL, is its own."""
STOP_S = 10.0
LINE_S = 10.0
"""Time between two lines about a process that loads."""
PROXY_READY_S = 120.0
COMPILING_S = 1800.0
"""Time for compiling a target, beside that for loading it."""
WATCH_S = 0.5
"""Time between checks that the processes that serve a run still run."""
STOPPED_S = 30.0
"""Time after which a run or an order ends whose process has been stopped."""
INTERRUPTED = (130, -signal.SIGINT)
"""Exit code of a `testbed` process that SIGINT ended."""


_Complaints = collections.deque[str]
_serving_now: list[tuple[str, subprocess.Popen[str], _Complaints, threading.Thread]] = []
"""Processes that serve a run of this process: name, process, last lines on stderr, and the thread that reads them."""
_watched_now: list[tuple[str, BaseProcess]] = []
"""Others, which say nothing."""


def command(*arguments: str) -> list[str]:
    """Command line of a `testbed` process under this interpreter."""
    return module_command("testbed", *arguments)


@contextlib.contextmanager
def base_station(
    config: ServeConfig, ready_s: float = 300.0, say: Callable[[str], None] = lambda _: None, *, watch: bool = True
) -> Iterator[dict[str, Any]]:
    """A `testbed bs serve` process; yields its ready line (`bind`, `pid`), and stops it afterwards.

    Args:
        say: takes a line every `LINE_S` while it loads.
        watch: whether to log its standstills; False: the caller finds them itself.

    Raises:
        BadInput: it refused its configuration.
        TestbedError: it died, or was not ready in time.
    """
    limit_s = ready_s + (COMPILING_S if config.compiled else 0.0)
    with (
        _file(config) as file,
        _serving("base station", command("bs", "serve", "--json", *file), limit_s, say, watch=watch) as ready,
    ):
        yield ready


def counted_in(metrics: Path) -> dict[str, Any]:
    """The last counters of a BS; a line that it is writing does not count.

    Raises:
        TestbedError: it has written none.
    """
    lines = metrics.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()
    if not lines:
        raise TestbedError("the base station has written no counters")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


@contextlib.contextmanager
def proxy(
    channel: ChannelSpec, target: str, listen: str = "tcp://127.0.0.1:*", *, watch: bool = True
) -> Iterator[dict[str, Any]]:
    """A `testbed channel emulate` process before a BS; yields its ready line (`listen`, `pid`, `origin_s`).

    Args:
        watch: see `base_station`.

    Raises:
        BadInput: it refused its arguments.
        TestbedError: it died, or was not ready in time.
    """
    arguments = ["--channel", channel_text(channel), "--listen", listen, "--to", target]
    with _serving("proxy", command("channel", "emulate", "--json", *arguments), PROXY_READY_S, watch=watch) as ready:
        yield ready


@contextlib.contextmanager
def _serving(
    name: str,
    arguments: Sequence[str],
    ready_s: float,
    say: Callable[[str], None] = lambda _: None,
    *,
    watch: bool,
) -> Iterator[dict[str, Any]]:
    """A process that says one line when it is ready and then serves until it is stopped."""
    process = subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        env=environment(),
    )  # fmt: skip
    said: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    complaints: collections.deque[str] = collections.deque(maxlen=50)
    readers = [
        threading.Thread(target=_drain, args=(process.stdout, said.put, said.put), daemon=True),
        threading.Thread(target=_drain, args=(process.stderr, complaints.append), daemon=True),
    ]
    for reader in readers:
        reader.start()
    entry = (name, process, complaints, readers[1])
    try:
        ready = _wait_ready(name, process, said, complaints, readers[1], ready_s, say)
        _serving_now.append(entry)
        with contextlib.ExitStack() as held:
            if watch:
                held.enter_context(standstill_told(f"the {name}", process.pid))
            yield ready
    finally:
        if entry in _serving_now:
            _serving_now.remove(entry)
        stop(process)
        for reader in readers:
            reader.join(STOP_S)
        for stream in (process.stdout, process.stderr):
            if stream:
                stream.close()


def _wait_ready(
    name: str,
    process: subprocess.Popen[str],
    said: queue.SimpleQueue[str | None],
    complaints: collections.deque[str],
    complaining: threading.Thread,
    ready_s: float,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """The first line that is a document, out of the lines `said` on stdout (None: its end)."""
    begun_s, stopped_s = time.monotonic(), None
    while True:
        elapsed_s = time.monotonic() - begun_s
        try:
            line = said.get(timeout=max(0.0, min(LINE_S, ready_s - elapsed_s)))
        except queue.Empty:
            if (elapsed_s := time.monotonic() - begun_s) >= ready_s:
                raise TestbedError(f"the {name} was not ready within {ready_s:g} s") from None
            stopped_s = check_stopped(f"the {name}", process.pid, stopped_s)
            say(f"the {name} is loading, {elapsed_s:.0f} s")
            continue
        if line is None:
            code = process.wait(STOP_S)
            complaining.join(STOP_S)
            reason = (complaints[-1] if complaints else "it said nothing").removeprefix("testbed: ")
            if code in INTERRUPTED or reason == KeyboardInterrupt.__name__:  # the latter while Python started
                raise KeyboardInterrupt  # Ctrl-C strikes all of a terminal's processes: it was meant for us as well
            if code == 2:
                raise BadInput(reason)
            raise TestbedError(f"the {name} did not start (exit code {code}): {reason}")
        if line.startswith("{"):
            document: dict[str, Any] = json.loads(line)
            return document


@contextlib.contextmanager
def watched(name: str, process: BaseProcess) -> Iterator[None]:
    """Have `check_serving` look at a process of `multiprocessing`, too, while the block runs."""
    _watched_now.append((name, process))
    try:
        yield
    finally:
        _watched_now.remove((name, process))


def check_serving() -> None:
    """Check that the base stations and relays that this process has started still run.

    Raises:
        TestbedError: one has ended.
    """
    for name, relay in _watched_now:
        if (code := relay.exitcode) is not None:
            how = f"by {signal_name(-code)}" if code < 0 else f"with exit code {code}"
            raise TestbedError(f"the {name} ended during the run {how}")
    for name, process, complaints, reader in _serving_now:
        if (code := process.poll()) is not None:
            reader.join(STOP_S)
            if code < 0:
                raise TestbedError(f"the {name} was ended during the run by {signal_name(-code)}")
            reason = (complaints[-1] if complaints else "it said nothing").removeprefix("testbed: ")
            raise TestbedError(f"the {name} ended during the run (exit code {code}): {reason}")


async def keep_checking() -> None:
    """Have `check_serving` look every `WATCH_S`, until cancelled.

    Raises:
        TestbedError: see `check_serving` and `check_stopped`.
    """
    stopped_s = dict[int, float | None]()
    while True:
        check_serving()
        for name, process, *_ in _serving_now:
            stopped_s[process.pid] = check_stopped(f"the {name}", process.pid, stopped_s.get(process.pid))
        await asyncio.sleep(WATCH_S)


def user_equipment(
    config: RunConfig, out: Path, prefix: Sequence[str] = (), resume: bool = False
) -> tuple[dict[str, Any], int]:
    """Run `testbed ue run … --json` to its end, its progress on our stderr; returns its document and pid.

    The run has no time limit; it ends by itself when the BS stops answering, and is stopped when a base station or
    proxy that this process has started ends, or when the UE has been stopped (SIGSTOP) for `STOPPED_S`.

    Args:
        out: run directory to write.
        prefix: words before the command line that start a process in a UE's namespace.
        resume: continue the unfinished run in `out`.

    Raises:
        BadInput: it refused its configuration (the reason is on stderr).
        TestbedError: it failed.
    """
    with _file(config) as file:
        resumed = ["--resume"] if resume else []
        return _ended([*prefix, *command("ue", "run", "--json", *file, "--out", str(out), *resumed)])


def _ended(arguments: Sequence[str]) -> tuple[dict[str, Any], int]:
    """The document that a process prints, and its pid."""
    process = subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=environment()
    )
    output, stopped_s = None, None
    try:
        while output is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                output, _ = process.communicate(timeout=WATCH_S)
            if process.returncode is None:
                check_serving()
                stopped_s = check_stopped("the user equipment", process.pid, stopped_s)
    finally:
        stop(process)
        if process.stdout:
            process.stdout.close()
    if process.returncode == 2:
        raise BadInput("the user equipment refused its configuration")
    try:
        document: dict[str, Any] = json.loads(output)
    except ValueError as exc:
        raise TestbedError(f"the user equipment failed (exit code {process.returncode})") from exc
    return document, process.pid


def check_stopped(name: str, pid: int, since_s: float | None) -> float | None:
    """Since when a process has been stopped (SIGSTOP), as far as is known; None: it runs.

    Raises:
        TestbedError: for longer than `STOPPED_S`.
    """
    if not is_stopped(pid):
        return None
    now_s = time.monotonic()
    if since_s is not None and now_s - since_s > STOPPED_S:
        raise TestbedError(f"{name} (pid {pid}) has been stopped for {STOPPED_S:g} s")
    return now_s if since_s is None else since_s


@contextlib.contextmanager
def _file(config: Config) -> Iterator[list[str]]:
    """Options that give a process its configuration; the file is removed at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="testbed-") as scratch:
        path = Path(scratch) / "config.yaml"
        save(config, path)
        yield ["--config", str(path)]


def stop(process: subprocess.Popen[str]) -> None:
    """Ask a process to end, and make it."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_S)


def _drain(stream: Any, tell: Callable[[str], Any], ended: Callable[[None], Any] = lambda _: None) -> None:
    for line in stream:
        if line.strip():
            tell(line.strip())
    ended(None)


def environment() -> dict[str, str]:
    """Environment of a child that is to end with this process."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", PARENT: str(os.getpid())}
