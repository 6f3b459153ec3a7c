"""An agent without a network: chunked uploads, persistent orders, and refused configurations."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from testbed.config import RunConfig
from testbed.errors import BadInput
from testbed.experiments.agent.files import FILES, Files, OrderStore, chunk_of, result_files, state_of
from testbed.experiments.agent.serve import Agent, AgentSetup, run_agent
from testbed.experiments.agent.work import ALLOWED, CHECKED, FILED, resolve_files
from testbed.protocols.orders import (
    MAX_CHUNK_BYTES,
    Ask,
    Call,
    Drop,
    Get,
    Order,
    Probing,
    Put,
    Running,
    Standing,
    State,
)
from tests.support.refusals import refuse


def put(files: Files, name: str, data: bytes, pieces: int = 1, digest: str | None = None) -> list[int]:
    """Upload a file; returns the stored size after every chunk."""
    mark = digest or hashlib.blake2b(data, digest_size=16).hexdigest()
    sizes, step = [], max(1, -(-len(data) // pieces))
    for at in range(0, max(1, len(data)), step):
        message = Put(name=name, offset=at, total=len(data), digest=mark)
        sizes.append(files.put(message, np.frombuffer(data[at : at + step], np.uint8)).size)
    return sizes


def test_a_file_counts_once_it_is_whole(tmp_path: Path) -> None:
    files, data = Files(tmp_path), bytes(range(256)) * 40
    mark = hashlib.blake2b(data, digest_size=16).hexdigest()
    half = Put(name="a/drafter.gguf", offset=0, total=len(data), digest=mark)
    assert files.put(half, np.frombuffer(data[:5000], np.uint8)).size == 5000
    refuse(lambda: files.path("a/drafter.gguf"), BadInput, "no file 'a/drafter.gguf'")
    again = Files(tmp_path)  # the agent was started anew
    assert again.put(half, np.zeros(0, np.uint8)).size == 5000
    late = msgspec.structs.replace(half, offset=9000)
    assert again.put(late, np.frombuffer(data[9000:], np.uint8)).size == 5000  # told where to go on
    rest = msgspec.structs.replace(half, offset=5000)
    assert again.put(rest, np.frombuffer(data[5000:], np.uint8)).size == len(data)
    assert again.path("a/drafter.gguf").read_bytes() == data
    assert again.put(half, np.zeros(0, np.uint8)).size == len(data)  # there already
    assert put(again, "empty", b"") == [0] and again.path("empty").read_bytes() == b""
    assert put(again, "many", data, pieces=7)[-1] == len(data)


def test_what_did_not_arrive_as_it_was_sent_is_not_kept(tmp_path: Path) -> None:
    files = Files(tmp_path)
    refuse(lambda: put(files, "a", b"xyz", digest="0" * 32), BadInput, "corrupted in transfer")
    refuse(lambda: files.path("a"), BadInput, "no file")
    mark = "1" * 32
    longer = Put(name="b", offset=0, total=2, digest=mark)
    refuse(lambda: files.put(longer, np.zeros(3, np.uint8)), BadInput, "longer than")
    refuse(lambda: files.put(longer, np.zeros(MAX_CHUNK_BYTES + 1, np.uint8)), BadInput, "a chunk must be")
    huge = Put(name="c", offset=0, total=2**45, digest=mark)
    refuse(lambda: files.put(huge, np.zeros(3, np.uint8)), BadInput, "not enough disk space")


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    files = Files(tmp_path / "agent")
    (tmp_path / "secret").write_text("x")
    os.symlink(tmp_path / "secret", tmp_path / "agent" / FILES / "in")
    refuse(lambda: files.path("in"), BadInput, "no file 'in'")
    refuse(lambda: files.path("../secret"), BadInput, "bad file name")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"keys": "elsewhere"}, "may not set keys"),
        ({"insecure": True}, "may not set insecure"),
        ({"local_bs": "tcp://h:1"}, "may not set local_bs"),
        ({"bs": "ipc:///run/other.sock"}, "tcp://HOST:PORT"),
        ({"csi": "/etc/passwd"}, "an order may not use channel state"),
        ({"csi": "trace=x"}, "an order may not use channel state"),
        ({"pad": "/etc/passwd"}, "unknown profile"),
        ({"power": "/etc/passwd"}, "unknown power source"),
        ({"dataset": "hf:gsm8k"}, "bad file name"),
        ({"dataset": "/etc/passwd"}, "bad file name"),
        ({"drafter": "../drafter.gguf"}, "bad file name"),
        ({"drafter": "drafter.gguf"}, "no file 'drafter.gguf'"),
    ],
)
def test_an_order_names_nothing_but_files_that_were_put(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    refuse(lambda: resolve_files(RunConfig(**fields), Files(tmp_path)), BadInput, words)


def test_a_good_order_is_grounded_in_the_agents_folder(tmp_path: Path) -> None:
    files = Files(tmp_path)
    put(files, "ab/d.gguf", b"x")
    found = resolve_files(RunConfig(drafter="ab/d.gguf", csi="link", pad="wisv", methods=("fh",)), files)
    assert found.drafter == str(tmp_path / FILES / "ab/d.gguf")
    assert (found.dataset, found.csi, found.pad, found.methods) == ("bundled:test", "link", "wisv", ("fh",))


def test_every_field_of_a_run_is_thought_of() -> None:
    """A new field of a run is refused in orders until it is classified."""
    known = {*FILED, *ALLOWED, *CHECKED}
    assert known <= set(RunConfig.__struct_fields__)
    assert {"keys", "insecure", "local_bs"}.isdisjoint(known)


def agent(tmp_path: Path) -> Agent:
    return Agent(AgentSetup("tcp://127.0.0.1:*", tmp_path), lambda _: None)


def test_orders_outlive_the_agent(tmp_path: Path) -> None:
    one = Order(id="hall-1", what=Running(RunConfig(limit=3), link="a"))
    first = agent(tmp_path)
    assert first.answer(one, {})[0].state == "waiting"  # type: ignore[attr-defined]
    again = agent(tmp_path)
    found = again.answer(Ask(id="hall-1"), {})[0]
    assert isinstance(found, State) and found.state == "waiting"
    other_link = msgspec.structs.replace(one, what=Running(RunConfig(limit=3), link="b"))
    assert again.answer(other_link, {})[0] == found  # the same order, after another measurement
    another = msgspec.structs.replace(one, what=Running(RunConfig(limit=4)))
    refuse(lambda: again.answer(another, {}), BadInput, "exists with different content")
    standing = again.answer(Call(version=1, token=5), {})[0]
    assert isinstance(standing, Standing) and (standing.waiting, standing.token) == (1, 5)
    refuse(lambda: again.answer(Call(version=9, token=5), {}), BadInput, "version 9")
    unknown = again.answer(Ask(id="nothing"), {})[0]
    assert isinstance(unknown, State) and unknown.state == "unknown"


def test_results_are_given_out_when_an_order_is_done_and_dropped_when_told(tmp_path: Path) -> None:
    shelf = OrderStore(tmp_path)
    kept = shelf.add(Order(id="hall-1", what=Probing("tcp://127.0.0.1:1", None, 1, 1, 1.0)))
    kept.result.mkdir()
    (kept.result / "rounds.parquet").write_bytes(b"abc")
    refuse(lambda: chunk_of(kept, Get(id="hall-1", name="rounds.parquet", offset=0)), BadInput, "has no file")
    shelf.drop("hall-1")  # not before it has ended
    assert shelf.get("hall-1") is not None
    kept.end({"state": "done", "note": "", "began_s": 1.0, "ended_s": 2.0, "files": result_files(kept.result)})
    again = OrderStore(tmp_path).get("hall-1")
    assert again is not None
    state = state_of(again, False)
    assert state.state == "done" and [(f.name, f.size) for f in state.files] == [("rounds.parquet", 3)]
    assert chunk_of(again, Get(id="hall-1", name="rounds.parquet", offset=1)).tobytes() == b"bc"
    refuse(lambda: chunk_of(again, Get(id="hall-1", name="order", offset=0)), BadInput, "has no file")
    shelf.drop("hall-1")
    assert shelf.get("hall-1") is None and not kept.folder.exists()
    first = agent(tmp_path)
    refuse(lambda: first.answer(Get(id="hall-1", name="x", offset=0), {}), BadInput, "no order hall-1")
    assert first.answer(Drop(id="hall-1"), {})[0].state == "unknown"  # type: ignore[attr-defined]


def test_a_failed_order_is_tried_again_when_it_is_given_again(tmp_path: Path) -> None:
    first, one = agent(tmp_path), Order(id="x", what=Running(RunConfig()))
    first.answer(one, {})
    kept = OrderStore(tmp_path).get("x")
    assert kept is not None
    assert [kept.count_crash() for _ in range(3)] == [1, 2, 3]
    kept.end({"state": "failed", "note": "no BS", "began_s": 1.0, "ended_s": 2.0, "files": []})
    second = agent(tmp_path)
    assert second.answer(Ask(id="x"), {})[0].state == "failed"  # type: ignore[attr-defined]
    assert second.answer(one, {})[0].state == "waiting"  # type: ignore[attr-defined]
    assert kept.count_crash() == 1


def test_an_agent_loads_nothing_that_a_ue_does_not_have() -> None:
    heavy = ("torch", "transformers", "vllm", "scipy", "sklearn", "matplotlib")
    code = f"import sys, testbed.experiments.agent.serve; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_an_agent_needs_keys_beyond_this_machine_and_a_folder_of_its_own(tmp_path: Path) -> None:
    open_ = AgentSetup("tcp://0.0.0.0:*", tmp_path / "a")
    refuse(lambda: run_agent(open_, lambda _: None, lambda _: None), BadInput, "give --keys DIR")
    (tmp_path / "file").touch()
    on_file = AgentSetup("tcp://127.0.0.1:*", tmp_path / "file")
    refuse(lambda: run_agent(on_file, lambda _: None, lambda _: None), BadInput, "cannot create")
