"""What leaves this machine for an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.config import RunConfig
from testbed.errors import BadInput
from testbed.experiments.field.devices.remote import AgentDevice
from testbed.protocols.orders import Order, State
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
    refuse(lambda: remote.put(str(tmp_path / "none")), BadInput, "none is not a file or a folder of 1 to 32 files")
