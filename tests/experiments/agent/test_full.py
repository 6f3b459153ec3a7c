"""An agent whose files cannot be written for a while: no space, no descriptors."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from testbed.channel.link import new_identity
from testbed.experiments.agent.stored_orders import OrderStore
from testbed.protocols.codec import encode
from testbed.protocols.orders import Ask, Cancel, Cancelled, Order, Probing, Refused, State, decode_report
from tests.support.refusals import refuse

WAIT_S = 20.0
LATER = "the ends of orders are kept in memory until they can be written"


class RunningAgent:
    """An agent in a process of its own, and a lab machine's connection to it."""

    def __init__(self, workdir: Path, socket: zmq.Socket[bytes], process: subprocess.Popen[str]) -> None:
        self.workdir, self._socket, self.process = workdir, socket, process

    def ask(self, message: Any) -> Any:
        """The report about a message."""
        self._socket.send_multipart(encode(message))
        assert self._socket.poll(1000 * WAIT_S), "no answer"
        return decode_report(self._socket.recv_multipart()).message

    def until(self, there: Callable[[], object]) -> None:
        """Wait for something, while the agent lives."""
        end_s = time.monotonic() + WAIT_S
        while not there():
            assert self.process.poll() is None and time.monotonic() < end_s
            time.sleep(0.05)

    def state(self, name: str) -> State:
        found = self.ask(Ask(id=name))
        assert isinstance(found, State)
        return found

    def written(self, name: str) -> dict[str, Any] | None:
        """The end of an order on disk."""
        with contextlib.suppress(FileNotFoundError):
            document: dict[str, Any] = json.loads((self.workdir / "orders" / name / "state.json").read_text())
            return document
        return None

    @contextlib.contextmanager
    def limited(self, what: int, value: int) -> Iterator[None]:
        """Lower a limit of the agent, and raise it again."""
        soft, hard = resource.prlimit(self.process.pid, what)
        resource.prlimit(self.process.pid, what, (value, hard))
        try:
            yield
        finally:
            resource.prlimit(self.process.pid, what, (soft, hard))


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningAgent]:
    command = [sys.executable, "-m", "testbed", "ue", "agent", "--listen", "tcp://127.0.0.1:*", "--json"]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            [*command, "--workdir", str(tmp_path / "agent")], stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as socket,
    ):
        try:
            assert process.stdout is not None
            socket.linger, socket.routing_id = 0, new_identity()
            socket.connect(json.loads(process.stdout.readline())["listen"])
            yield RunningAgent(tmp_path / "agent", socket, process)
        finally:
            process.kill()


def probing(name: str, seconds: float) -> Order:
    """A measurement of nothing, which fails after some seconds."""
    return Order(id=name, what=Probing("tcp://127.0.0.1:9", None, 1, 1, seconds))


@pytest.mark.parametrize("what", [resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE], ids=["fsize", "nofile"])
def test_an_end_that_cannot_be_written_is_kept_in_memory_and_written_later(running: RunningAgent, what: int) -> None:
    """The agent ended with exit status 1, and its other orders waited."""
    assert running.ask(probing("first", 3.0)).state == "waiting"
    running.ask(probing("cancelled", 3.0))
    running.until(lambda: running.state("first").state == "running")
    running.until(lambda: (running.workdir / "orders" / "first" / "result").exists())  # its process has begun
    with running.limited(what, 5):
        running.until(lambda: running.state("first").state == "failed")
        assert running.ask(Cancel(prefix="cancelled")) == Cancelled(prefix="cancelled", count=1)
        ended = running.state("first")
        assert "did not answer" in ended.note and running.state("cancelled").state == "failed"
        time.sleep(2.5)  # it tries again
        assert running.process.poll() is None
        assert running.written("first") is None and running.written("cancelled") is None
        refused = running.ask(probing("second", 1.0))
        assert isinstance(refused, Refused) and refused.reason.count("cannot write") == 1 and "\n" not in refused.reason
        assert running.state("second").state == "unknown" and running.state("first") == ended
    running.until(lambda: running.written("first") and running.written("cancelled"))
    assert running.written("first") == {
        "state": "failed", "note": ended.note, "began_s": ended.began_s, "ended_s": ended.ended_s, "files": [],
    }  # fmt: skip
    assert running.ask(probing("second", 1.0)).state == "waiting"
    running.until(lambda: running.written("second"))
    log = (running.workdir.parent / "log").read_text()
    told = log.count(LATER)  # a full disk may leave no room for the log, a file, either
    assert told == 1 if what == resource.RLIMIT_NOFILE else told <= 1
    assert log.count("the ends of all orders are written") == 1


def test_an_order_waits_for_descriptors_instead_of_failing(running: RunningAgent) -> None:
    start_s = time.perf_counter() + 2
    running.ask(Order(id="late", what=probing("late", 1.0).what, start_s=start_s))
    with running.limited(resource.RLIMIT_NOFILE, 5):
        time.sleep(4)
        assert running.state("late").state == "running"
    running.until(lambda: running.written("late"))
    assert "did not answer" in running.state("late").note
    log = (running.workdir.parent / "log").read_text()
    assert log.count("its process cannot be started yet: Too many open files") == 1


def test_an_end_that_was_not_written_yet_is_written_when_the_agent_ends(running: RunningAgent) -> None:
    running.ask(Order(id="x", what=probing("x", 1.0).what, start_s=time.perf_counter() + 3600))
    with running.limited(resource.RLIMIT_FSIZE, 5):
        running.ask(Cancel(prefix="x"))
        assert running.written("x") is None
    running.process.terminate()
    assert running.process.wait(WAIT_S) == 0
    assert (running.written("x") or {})["state"] == "failed"


def test_a_count_of_crashes_that_was_half_written_starts_anew(tmp_path: Path) -> None:
    store = OrderStore(tmp_path)
    folder = store.add(probing("x", 1.0)).folder
    (folder / "crashes").touch()
    kept = OrderStore(tmp_path).get("x")
    assert kept is not None and [kept.count_crash() for _ in range(2)] == [1, 2]
    again = OrderStore(tmp_path).get("x")
    assert again is not None and again.count_crash() == 3


def test_an_order_that_was_refused_is_not_found_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was on disk when it could not be read again."""
    store = OrderStore(tmp_path)

    def unreadable(path: Path) -> bytes:
        raise OSError(24, os.strerror(24), str(path))

    with monkeypatch.context() as broken:
        broken.setattr(Path, "read_bytes", unreadable)
        refuse(lambda: store.add(probing("x", 1.0)), OSError, "Too many open files")
    assert store.get("x") is None and OrderStore(tmp_path).get("x") is None
