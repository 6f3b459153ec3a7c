"""Commands for the agents of a plan, one of which answers wrongly: the others are served, and the command says so."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from testbed.channel.frames import whole
from testbed.errors import AgentError, LinkTimeout, TestbedError
from testbed.experiments.field.devices import agents as client
from testbed.experiments.field.devices.agents import AgentConnection
from testbed.experiments.field.devices.arrived import one_line
from testbed.experiments.field.devices.base import Skipped, check_answered
from testbed.experiments.field.fleet import cancel, collect, deploy
from testbed.experiments.field.log import open_log
from testbed.experiments.field.plan import FieldPlan, Method, Place
from testbed.protocols.codec import encode
from testbed.protocols.orders import (
    CANCELLED,
    DATA,
    VERSION,
    Call,
    Cancel,
    Cancelled,
    Chunk,
    File,
    Put,
    Refused,
    Standing,
    State,
    Stored,
    decode_order,
)
from tests.support.refusals import refuse

Answer = Callable[[Any], tuple[Any, dict[str, Any]]]


class SocketAgent:
    """An agent on a socket that answers what it is told to, and honestly else."""

    def __init__(self, answers: dict[str, Answer]) -> None:
        self.asked: list[str] = []
        self._answers, self._ended = answers, threading.Event()
        self._socket: Any = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.bind("tcp://127.0.0.1:*")
        self.address = self._socket.get_string(zmq.LAST_ENDPOINT)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while not self._ended.is_set():
            if self._socket.poll(50):
                peer, *frames = self._socket.recv_multipart(copy=False)
                message = decode_order(whole(frames)).message
                self.asked.append(type(message).__name__)
                answer = self._answers.get(type(message).__name__, self._honest)
                self._socket.send_multipart([peer.bytes, *encode(*answer(message))])

    def _honest(self, message: Any) -> tuple[Any, dict[str, Any]]:
        if isinstance(message, Call):
            return standing(message), {}
        if isinstance(message, Put):
            return Stored(name=message.name, size=message.total), {}
        if isinstance(message, Cancel):
            return Cancelled(prefix=message.prefix, count=1), {}
        return State(id=message.id, state="waiting"), {}


def standing(call: Call, **other: Any) -> Standing:
    known: dict[str, Any] = {"version": VERSION, "host": "ue", "testbed": "1", "free_bytes": 1, "waiting": 0}
    return Standing(**(known | {"token": call.token, "time_s": time.perf_counter()} | other))


LIES: dict[str, dict[str, Answer]] = {
    "refuses all": {name: lambda _: (Refused(reason="no"), {}) for name in ("Call", "Put", "Cancel", "Ask")},
    "no clock": {"Call": lambda call: (standing(call, time_s=math.nan), {})},
    "refuses orders": {name: lambda _: (Refused(reason="no"), {}) for name in ("Put", "Cancel", "Ask")},
}


@pytest.fixture(params=LIES)
def agents(request: pytest.FixtureRequest) -> Iterator[tuple[SocketAgent, SocketAgent]]:
    found = SocketAgent(LIES[request.param]), SocketAgent({})
    yield found
    for agent in found:
        agent.close()


def plan_of(near: SocketAgent, far: SocketAgent, drafter: Path | None = None) -> FieldPlan:
    places = (Place(name="near", distance_m=2, ue=near.address), Place(name="far", distance_m=20, ue=far.address))
    return FieldPlan(
        name="hall", bs="tcp://127.0.0.1:5", places=places, methods=(Method(name="a", protocol="greedy"),), repeats=1,
        prompts=1, drafter=None if drafter is None else str(drafter),
    )  # fmt: skip


def test_orders_are_cancelled_at_the_others(agents: tuple[SocketAgent, SocketAgent]) -> None:
    said: list[str] = []
    found = cancel(plan_of(*agents), (), said.append)
    assert (found["cancelled"], found["silent"], found["failed"]) == (1, [], [agents[0].address])
    assert len(said) == 1 and said[0].startswith("near: ") and "Cancel" in agents[1].asked


def test_files_are_carried_to_the_others(agents: tuple[SocketAgent, SocketAgent], tmp_path: Path) -> None:
    (drafter := tmp_path / "drafter.gguf").write_bytes(b"weights")
    wrong, right = deploy(plan_of(*agents, drafter), lambda _: None)
    assert wrong["failed"] and wrong["error"] and (right["failed"], right["error"]) == (False, None)
    assert "Put" in agents[1].asked


def test_runs_are_collected_from_the_others(agents: tuple[SocketAgent, SocketAgent], tmp_path: Path) -> None:
    with open_log(tmp_path / "out", plan_of(*agents), False) as log:
        found = collect(log, lambda _: None)
    assert (found["collected"], found["failed"], found["left"]) == (0, [agents[0].address], 2)
    assert "Ask" in agents[1].asked


@pytest.mark.parametrize(("note", "failed"), [("the BS did not answer", True), (CANCELLED, False)])
def test_orders_that_failed_are_said_when_their_runs_are_collected(note: str, failed: bool, tmp_path: Path) -> None:
    """They were counted as left, with exit status 0, however often they were collected."""
    near = SocketAgent({"Ask": lambda ask: (State(id=ask.id, state="failed", note=note), {})})
    far, said = SocketAgent({}), list[str]()
    plan = msgspec.structs.replace(plan_of(near, far), repeats=2)
    with open_log(tmp_path / "out", plan, False) as log:
        found = collect(log, said.append)
    assert (found["collected"], found["silent"], found["left"]) == (0, [], 4)
    assert found["failed"] == ([near.address] if failed else [])
    assert [f"failed: {note}" in line for line in said] == [True, True] * failed  # of each order
    near.close()
    far.close()


def upload(agent: SocketAgent, file: Path) -> None:
    """Upload a file as `a`, and close both ends."""
    try:
        connection = AgentConnection(agent.address, None)
        connection.put("a", file)
        connection.close()
    finally:
        agent.close()


@pytest.mark.parametrize("step", [0, 1, -5])
def test_an_upload_that_gets_nowhere_ends(step: int, tmp_path: Path) -> None:
    """It was sent again without end."""
    (file := tmp_path / "a").write_bytes(bytes(100))
    agent = SocketAgent({"Put": lambda put: (Stored(name=put.name, size=put.offset + step), {})})
    try:
        connection = AgentConnection(agent.address, None, timeout_s=5.0)
        refuse(lambda: connection.put("a", file), AgentError, "does not store a")
        connection.close()
    finally:
        agent.close()
    assert len(agent.asked) < 20


def test_an_upload_over_a_slow_link_takes_no_copy_for_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer came late by one chunk once a chunk had been sent twice."""
    for name, value in (("MAX_CHUNK_BYTES", 10), ("RESEND_S", 0.2)):
        monkeypatch.setattr(client, name, value)
    (file := tmp_path / "a").write_bytes(bytes(100))
    stored = 0

    def put(message: Any) -> tuple[Stored, dict[str, Any]]:
        nonlocal stored
        time.sleep(0.5 if message.offset == 20 else 0.0)
        stored = max(stored, min(100, message.offset + 10))
        return Stored(name="a", size=stored), {}

    agent = SocketAgent({"Put": put})
    upload(agent, file)
    assert stored == 100


def test_an_upload_begins_again_where_the_agent_discards_it(tmp_path: Path) -> None:
    (file := tmp_path / "a").write_bytes(bytes(100))
    sizes = iter([50, 0, 100])
    agent = SocketAgent({"Put": lambda put: (Stored(name=put.name, size=next(sizes)), {})})
    upload(agent, file)


def test_a_false_file_is_the_agents_fault(tmp_path: Path) -> None:
    def chunk(get: Any) -> tuple[Any, dict[str, Any]]:
        return Chunk(id=get.id, name=get.name, offset=get.offset), {DATA: np.zeros(4, np.uint8)}

    agent = SocketAgent({"Get": chunk})
    done = State(id="x", state="done", files=(File("summary.json", 4, "0" * 32),))
    try:
        connection = AgentConnection(agent.address, None)
        refuse(lambda: connection.fetch(done, tmp_path, 2**20), AgentError, "was corrupted in transfer")
        refuse(lambda: connection.fetch(done, tmp_path, 3), AgentError, "at most 16 of 3 bytes")
        connection.close()
    finally:
        agent.close()


def test_results_byte_by_byte_are_the_agents_fault(tmp_path: Path) -> None:
    """Fetching them took weeks, and held up the other agents."""

    def chunk(get: Any) -> tuple[Any, dict[str, Any]]:
        return Chunk(id=get.id, name=get.name, offset=get.offset), {DATA: np.zeros(1, np.uint8)}

    agent = SocketAgent({"Get": chunk})
    done = State(id="x", state="done", files=(File("summary.json", 5_000_000, "0" * 32),))
    try:
        connection = AgentConnection(agent.address, None)
        refuse(lambda: connection.fetch(done, tmp_path, 2**24), AgentError, "invalid chunk")
        connection.close()
    finally:
        agent.close()
    assert agent.asked.count("Get") == 1


def test_an_agent_whose_states_cannot_be_read_is_left_after_the_time_that_the_refusal_names() -> None:
    """It named the timeout of one question: a tenth."""
    agent = SocketAgent({"Ask": lambda ask: (State(id="another", state="running"), {})})
    try:
        connection = AgentConnection(agent.address, None)
        connection._timeout_s = 0.2
        begun_s = time.monotonic()
        with pytest.raises(LinkTimeout, match="did not answer for") as found:
            list(connection.states("x"))
        named = re.search("for ([0-9]+) s", str(found.value))
        assert named and 2 <= int(named[1]) <= time.monotonic() - begun_s + 0.5
        connection.close()
    finally:
        agent.close()


def test_what_an_agent_says_is_a_short_line() -> None:
    assert one_line("a\nb\u202ec\x1b[0m" + "x" * 1000).startswith("a b c [0mx")
    assert len(one_line("x" * 1000)) == 300


def test_errors_of_this_machines_own_ue_are_raised() -> None:
    skipped = Skipped(lambda _: None)
    with pytest.raises(AgentError), skipped.at_fault(Place(name="here", distance_m=1)):
        raise AgentError("no")
    with skipped.at_fault(Place(name="there", distance_m=1, ue="tcp://a:1")):
        raise AgentError("no")
    assert "tcp://a:1" in skipped and None not in skipped
    with pytest.raises(TestbedError, match=r"tcp://a:1 failed, for the reasons above; b did not answer; later"):
        check_answered(["b"], skipped.addresses()["failed"], "later")
