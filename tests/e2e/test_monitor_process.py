"""The live view's process beside a real base station's: below it, and gone with it, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from testbed.bs.monitor.web import NICE
from testbed.config import ServeConfig
from testbed.experiments.runs.processes import base_station, command

SERVE = ["--engine", "synthetic", "--bind", "tcp://127.0.0.1:*", "--monitor", "0"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def children(pid: int) -> list[int]:
    """Processes whose parent it is."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(holds: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + 60
    while not (held := holds()) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return held


def asked(view: str, path: str) -> tuple[int, str]:
    answer = httpx.get(view + path, timeout=60)
    return answer.status_code, answer.text


def test_it_runs_below_the_base_station_says_when_that_stands_still_and_ends_where_it_is_killed() -> None:
    with base_station(ServeConfig(engine="synthetic", bind="tcp://127.0.0.1:*", monitor="0")) as ready:
        bs, view = ready["pid"], ready["monitor"]
        assert asked(view, "/healthz") == (200, "ok\n")
        (web,) = children(bs)
        assert os.getpriority(os.PRIO_PROCESS, web) == min(19, os.getpriority(os.PRIO_PROCESS, bs) + NICE)
        os.kill(bs, signal.SIGSTOP)
        try:
            assert eventually(lambda: asked(view, "/healthz") == (503, "stalled\n"))
        finally:
            os.kill(bs, signal.SIGCONT)
        assert eventually(lambda: asked(view, "/healthz") == (200, "ok\n"))
        os.kill(bs, signal.SIGKILL)
        assert eventually(lambda: not alive(web))


def test_without_it_the_base_station_serves_on() -> None:
    process = subprocess.Popen(
        command("bs", "serve", "--json", *SERVE), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline().startswith("{")
    (web,) = children(process.pid)
    os.kill(web, signal.SIGKILL)
    assert process.stderr is not None
    said = []
    while not said or "live view has ended" not in said[-1]:
        said.append(process.stderr.readline())
        assert said[-1], said
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (out, process.returncode) == ("", 0) and "Traceback" not in err


def test_one_that_stands_still_does_not_keep_the_base_station_from_ending() -> None:
    process = subprocess.Popen(command("bs", "serve", "--json", *SERVE), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline().startswith("{")
    (web,) = children(process.pid)
    os.kill(web, signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    assert (process.wait(60), alive(web)) == (0, False)
    process.stdout.close()


@pytest.mark.parametrize("early", [True, False], ids=["while it starts", "while it serves"])
def test_what_interrupts_both_ends_both_without_a_trace(early: bool) -> None:
    """The signal goes to all processes, as Ctrl-C of a terminal does."""
    process = subprocess.Popen(
        command("bs", "serve", "--json", *SERVE),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    if early:
        assert eventually(lambda: bool(children(process.pid)) or process.poll() is not None)
        started = children(process.pid)
    else:
        assert process.stdout.readline().startswith("{")
        started = children(process.pid)
    assert len(started) == 1
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert "Traceback" not in err and process.returncode in ((0, 130) if early else (0,)), err
    assert eventually(lambda: not any(map(alive, started)))  # a process closes its pipes before it has ended
