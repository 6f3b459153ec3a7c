"""Helper processes of Python's that are killed during `testbed cell run --real`."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.experiments.runs.forked import start, stop_all
from testbed.experiments.runs.processes import command, environment
from testbed.process.interrupts import as_child

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")

CELL = """
{seconds: 4, warmup_s: 0.5, bs: {scheduler: fcfs},
 ues: [{name: alone, response: [5, 15]}, {name: pair, count: 2, response: [5, 15], together: true}]}
"""


def _children(pid: int) -> dict[int, str]:
    """Command lines of the children of a process."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found[int(child)] = Path(f"/proc/{child}/cmdline").read_text()
    return found


def _child(pid: int, module: str) -> int | None:
    return next((child for child, line in _children(pid).items() if module in line), None)


@contextmanager
def _cell_run(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A run whose UEs have started."""
    with _cell_begun(directory) as (run, server):
        until_s = time.monotonic() + 120
        while len(_children(server)) < 4:
            assert run.poll() is None and time.monotonic() < until_s, run.stderr and run.stderr.read()
            time.sleep(0.05)
        yield run


@contextmanager
def _cell_begun(directory: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A run whose process that forks the UEs has just started, and the number of that one."""
    file = directory / "cell.yaml"
    file.write_text(CELL)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    run = subprocess.Popen(command("cell", "run", str(file), "--real"), text=True, env=environment(), **pipes)
    try:
        until_s = time.monotonic() + 120
        while (server := _child(run.pid, "multiprocessing.forkserver")) is None:
            assert run.poll() is None and time.monotonic() < until_s, run.stderr and run.stderr.read()
            time.sleep(0.005)
        yield run, server
    finally:
        run.kill()
        run.wait()


def test_an_interrupt_does_not_reach_the_process_that_forks_the_ues(tmp_path: Path) -> None:
    """Ctrl-C while that process imported its modules printed a traceback."""
    with _cell_begun(tmp_path) as (run, server):
        os.kill(server, signal.SIGINT)
        _, said = run.communicate(timeout=60)
    assert run.returncode == 0, said
    assert "Traceback" not in said


def test_without_the_process_that_forked_them_ues_end_without_a_message(tmp_path: Path) -> None:
    """They decoded until the end of the run, and wrote into a folder that had been removed."""
    with _cell_run(tmp_path) as run:
        os.kill(_child(run.pid, "multiprocessing.forkserver") or 0, signal.SIGKILL)
        _, said = run.communicate(timeout=60)  # until all processes that write to stderr have ended
    assert run.returncode == 1
    (line,) = said.splitlines()
    assert line.startswith("testbed: the process of ") and "ended" in line


def test_a_run_needs_no_resource_tracker(tmp_path: Path) -> None:
    """It printed a KeyError for each semaphore of a barrier."""
    with _cell_run(tmp_path) as run:
        os.kill(_child(run.pid, "multiprocessing.resource_tracker") or 0, signal.SIGKILL)
        _, said = run.communicate(timeout=60)
    assert run.returncode == 0
    assert all("include that" in line or "longer warmup_s" in line for line in said.splitlines()), "a busy machine's"


def test_a_process_whose_server_is_killed_as_it_starts_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the server's answer was taken for Ctrl-C."""
    told = forkserver.read_signed

    def killed(end: int) -> int:
        told(end)
        raise EOFError("unexpected EOF")

    process = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(0.0,), name="UE 2")
    with monkeypatch.context() as patch:
        patch.setattr(forkserver, "read_signed", killed)
        with pytest.raises(TestbedError, match="the process of UE 2 ended before it had started"):
            start(process)
    stop_all([process])


def _wait_as_child() -> None:
    as_child()
    time.sleep(60)


def test_a_process_whose_start_is_interrupted_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ran until its parent had ended, since nobody knew its number."""
    told, pids = forkserver.read_signed, []

    def interrupted(end: int) -> int:
        pids.append(told(end))
        raise KeyboardInterrupt

    process = multiprocessing.get_context("forkserver").Process(target=_wait_as_child)
    with monkeypatch.context() as patch:
        patch.setattr(forkserver, "read_signed", interrupted)
        with pytest.raises(KeyboardInterrupt) as held:  # as a run holds it while it stops its processes
            start(process)
    stop_all([process])
    until_s = time.monotonic() + 30
    while Path(f"/proc/{pids[0]}").exists():
        assert time.monotonic() < until_s, held
        time.sleep(0.05)


@pytest.mark.long
def test_a_run_ends_though_the_process_that_forked_its_ues_is_stopped(tmp_path: Path) -> None:
    """It waited for each UE in turn, and for ever at its exit."""
    with _cell_run(tmp_path) as run:
        server = _child(run.pid, "multiprocessing.forkserver")
        assert server is not None
        os.kill(server, signal.SIGSTOP)
        run.send_signal(signal.SIGTERM)
        _, said = run.communicate(timeout=60)
        until_s = time.monotonic() + 10
        while Path(f"/proc/{server}").exists():  # until its new parent has noticed
            assert time.monotonic() < until_s
            time.sleep(0.05)
    assert (run.returncode, said) == (128 + signal.SIGTERM, "")
