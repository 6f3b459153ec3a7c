"""What leaves this machine for an agent."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from testbed.config import RunConfig
from testbed.errors import AgentError, BadInput
from testbed.experiments.field.devices.agents import AgentConnection
from testbed.experiments.field.devices.remote import AgentDevice
from testbed.protocols.orders import File, Order, Running, State
from tests.support.refusals import refuse


class RecordedAgent:
    """Connection that records what is sent."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.orders: list[Order] = []
        self.asked: list[str] = []

    def put(self, name: str, path: Path) -> None:
        self.files[name] = path.read_bytes()

    def order(self, order: Order) -> None:
        self.orders.append(order)

    def state(self, order: str) -> State:
        self.asked.append(order)
        return State(id=order, state="waiting")


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    """A run that reads files, and a folder."""
    (tmp_path / "predictor").mkdir()
    for name in ("drafter.gguf", "prompts.jsonl", "predictor/a.json", "predictor/b.npz"):
        (tmp_path / name).write_text(name)
    drafter, dataset, predictor = (str(tmp_path / name) for name in ("drafter.gguf", "prompts.jsonl", "predictor"))
    return RunConfig(drafter=drafter, dataset=dataset, predictor=predictor)


def device(agent: Any) -> AgentDevice:
    return AgentDevice(agent, "hall", None, 0.0, lambda _: None)


def test_collecting_sends_an_id_and_no_file(config: RunConfig, tmp_path: Path) -> None:
    """A directory of somebody else's names the agent, and the files."""
    given, asked, out = RecordedAgent(), RecordedAgent(), tmp_path / "cells" / "near" / "1-fh"
    device(given).expect([(config, out)])
    assert sorted(given.files.values()) == [b"drafter.gguf", b"predictor/a.json", b"predictor/b.npz", b"prompts.jsonl"]
    assert not device(asked).collect(config, out)
    assert asked.files == {} and asked.orders == []
    assert asked.asked == [order.id for order in given.orders]


def test_an_order_holds_the_digests_of_its_files(config: RunConfig, tmp_path: Path) -> None:
    agent, trace = RecordedAgent(), tmp_path / "trace.csv"
    trace.write_text("trace")
    AgentDevice(agent, "hall", str(trace), 0.0, lambda _: None).expect([(config, tmp_path / "near" / "1-fh")])  # type: ignore[arg-type]
    (order,) = agent.orders
    assert isinstance(order.what, Running)
    sent = {name: hashlib.blake2b(data, digest_size=16).hexdigest() for name, data in agent.files.items()}
    assert len(sent) == 5 and order.what.digests == sent


def test_files_are_uploaded_once_and_known_by_their_contents(config: RunConfig, tmp_path: Path) -> None:
    agent = RecordedAgent()
    remote = device(agent)
    assert config.drafter is not None and config.predictor is not None
    name, folder = remote.put(config.drafter), remote.put(config.predictor)
    assert agent.files[name] == b"drafter.gguf" and name.endswith("/drafter.gguf")
    assert agent.files[f"{folder}/b.npz"] == b"predictor/b.npz"
    agent.files.clear()
    assert (remote.put(config.drafter), agent.files) == (name, {})
    Path(config.drafter).write_text("another")
    assert device(agent).put(config.drafter) != name
    for file in ("a.json", "b.npz"):  # a change of either gives the folder another name
        (Path(config.predictor) / file).write_text("another")
        changed = device(agent).put(config.predictor)
        assert changed != folder
        folder = changed
    refuse(lambda: remote.put(str(tmp_path / "none")), BadInput, "none is not a file or a folder of 1 to 32 files")


def fetch(out: Path, *files: tuple[str, bytes], size: int | None = None) -> None:
    """Fetch results from an agent without a network."""
    agent, contents = AgentConnection.__new__(AgentConnection), dict(files)
    agent.address = "tcp://ue:1"
    agent._chunk = lambda name, file, offset: contents[file.name][offset : offset + 3]  # type: ignore[method-assign]
    entries = [
        File(name, len(data) if size is None else size, hashlib.blake2b(data, digest_size=16).hexdigest())
        for name, data in files
    ]
    agent.fetch(State(id="x", state="done", files=tuple(entries)), out)


def test_results_are_not_written_through_hidden_links(tmp_path: Path) -> None:
    """Files that are being fetched are hidden, which links in a directory of somebody else's may be, too."""
    victim, out = tmp_path / "victim", tmp_path / "out"
    victim.write_text("precious")
    out.mkdir()
    for name in (".rounds.parquet.part", f".rounds.parquet.{os.getpid()}"):
        (out / name).symlink_to(victim)
    fetch(out, ("rounds.parquet", b"abcdefgh"), ("summary.json", b"{}"))
    assert (out / "rounds.parquet").read_bytes() == b"abcdefgh"
    assert victim.read_text() == "precious"


def test_results_that_cannot_be_stored_are_refused(tmp_path: Path) -> None:
    refuse(lambda: fetch(tmp_path, ("a", b"1"), ("a/b", b"2")), AgentError, "a/b of order x cannot be stored")
    refuse(lambda: fetch(tmp_path, ("c/d", b"1"), ("c", b"2")), AgentError, "cannot write")
    refuse(lambda: fetch(tmp_path, ("e", b"1"), size=2**60), AgentError, "e of order x has 1152921504606846976 bytes")
