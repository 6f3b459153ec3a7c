"""An agent without a network: chunked uploads, persistent orders, and refused configurations."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from testbed.config import RunConfig
from testbed.errors import BadInput, TestbedError
from testbed.experiments.agent import files as agent_files
from testbed.experiments.agent.files import FILES, Files, part_of
from testbed.experiments.agent.runner import _wait_s
from testbed.experiments.agent.serve import MOST_CHUNKS, Agent, AgentSetup, WaitingChunks, run_agent
from testbed.experiments.agent.stored_orders import CLOCK, ORDERS, OrderStore, chunk_of, result_files, state_of
from testbed.experiments.agent.work import CHECKED, carry_out, check_digests, resolve_files
from testbed.experiments.field.devices.base import ALLOWED, FILED
from testbed.experiments.results.directory import SUMMARY
from testbed.experiments.runs.journal import NAME as JOURNAL
from testbed.protocols.codec import Packet, encode
from testbed.protocols.orders import (
    CANCELLED,
    MAX_CHUNK_BYTES,
    VERSION,
    Ask,
    Call,
    Cancel,
    Cancelled,
    Drop,
    Get,
    Order,
    Probing,
    Put,
    Refused,
    Running,
    Standing,
    State,
    Stored,
    decode_report,
)
from testbed.tasks import cancel
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


def test_no_file_is_stored_below_or_in_place_of_another(tmp_path: Path) -> None:
    """The first chunk was refused, and the next one reported as stored, although there was no such file."""
    files = Files(tmp_path)
    put(files, "a", b"file")
    put(files, "d/e", b"below")
    for name in ("a/b", "a/b/c", "d"):
        for _ in range(3):
            refuse(lambda name=name: put(files, name, b"other"), BadInput, f"{name} cannot be stored")  # type: ignore[misc]
    assert files._held == {"": 2} and files.path("a").read_bytes() == b"file"
    assert files.path("d/e").read_bytes() == b"below" and not list((tmp_path / "parts").iterdir())


def test_an_upload_that_was_received_but_not_put_in_its_place_is_stored_after_a_restart(tmp_path: Path) -> None:
    files, data = Files(tmp_path), b"received"
    sent = [hashlib.blake2b(one, digest_size=16).hexdigest() for one in (data, b"sent")]
    (tmp_path / "parts" / part_of(Put(name="a", offset=0, total=len(data), digest=sent[0]))).write_bytes(data)
    assert put(files, "a", data) == [len(data)] and files.path("a").read_bytes() == data
    (tmp_path / "parts" / part_of(Put(name="b", offset=0, total=4, digest=sent[1]))).write_bytes(b"torn")
    refuse(lambda: put(files, "b", b"sent"), BadInput, "corrupted in transfer")
    assert put(files, "b", b"sent") == [4] and files._held == {"": 2}


@pytest.mark.parametrize("change", [{"name": "w.bin"}, {"total": 5}, {"name": "w.bin", "total": 5}])
def test_an_upload_is_not_ended_by_another_of_the_same_digest(tmp_path: Path, change: dict[str, Any]) -> None:
    """Lab machines that knew a digest could have another one's upload begin again."""
    files, data = Files(tmp_path), b"x" * 10
    message = Put(name="v.bin", offset=0, total=10, digest=hashlib.blake2b(data, digest_size=16).hexdigest())
    assert files.put(message, np.frombuffer(data[:5], np.uint8)).size == 5
    other = msgspec.structs.replace(message, **change)
    for offset, sent in ((5, b""), (5, b"yyyyy"), (0, b"yyyyy")):
        with contextlib.suppress(BadInput):
            files.put(msgspec.structs.replace(other, offset=offset), np.frombuffer(sent, np.uint8))
    message = msgspec.structs.replace(message, offset=5)
    assert files.put(message, np.frombuffer(data[5:], np.uint8)).size == 10
    assert files.path("v.bin").read_bytes() == data


def test_every_byte_is_hashed_once_while_it_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the same size was hashed again for each of its chunks: 69 s for 200 MB."""
    read: list[str] = []
    hash_of = agent_files.hash_of
    monkeypatch.setattr(agent_files, "hash_of", lambda *path: (read.extend(p.name for p in path), hash_of(*path))[1])
    monkeypatch.setattr(agent_files, "digest_of", lambda path: (read.append(path.name), hash_of(path).hexdigest())[1])
    first, second = bytes(range(256)) * 40, bytes(range(1, 256)) * 40 + bytes(40)
    put(Files(tmp_path), "d.gguf", first, pieces=20)
    assert read == []
    files = Files(tmp_path)  # the agent was started again
    assert put(files, "d.gguf", second, pieces=20)[-1] == len(first)
    assert files.path("d.gguf").read_bytes() == second and read == ["d.gguf"]
    assert put(files, "d.gguf", second, pieces=20) == [len(second)] * 20
    put(files, "d.gguf", first, pieces=20)
    assert files.path("d.gguf").read_bytes() == first and read == ["d.gguf"]


def test_an_upload_goes_on_after_a_restart_and_after_a_chunk_that_was_written_in_part(tmp_path: Path) -> None:
    data = bytes(range(256)) * 40
    message = Put(name="d.gguf", offset=0, total=len(data), digest=hashlib.blake2b(data, digest_size=16).hexdigest())

    def send(files: Files, begin: int, end: int) -> int:
        chunk = np.frombuffer(data[begin:end], np.uint8)
        return files.put(msgspec.structs.replace(message, offset=begin), chunk).size

    files = Files(tmp_path)
    assert send(files, 0, 3000) == 3000
    with (tmp_path / "parts" / part_of(message)).open("ab") as part:  # the disk was full half-way through the next one
        part.write(data[3000:3100])
    assert send(files, 3000, 4000) == 3100 and send(files, 3100, 5000) == 5000
    again = Files(tmp_path)
    assert send(again, 5000, len(data)) == len(data)
    assert again.path("d.gguf").read_bytes() == data


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
        ({"timeout_s": 86_401.0}, "an order may not wait longer than 86400 s"),
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


def test_a_run_fails_whose_files_were_replaced(tmp_path: Path) -> None:
    """Another lab machine put a file of the same name before the run began."""
    files, contents = Files(tmp_path), {"d/a.gguf": b"drafter", "p/one": b"1", "p/two": b"2", "t.csv": b"trace"}
    for name, data in contents.items():
        put(files, name, data)
    digests = {name: hashlib.blake2b(data, digest_size=16).hexdigest() for name, data in contents.items()}
    config = RunConfig(drafter="d/a.gguf", predictor="p", bs="tcp://127.0.0.1:9")
    order = Order(id="x", what=Running(config, trace="t.csv", digests=digests))
    assert isinstance(order.what, Running)
    check_digests(order.what, files)
    for name, data in contents.items():
        put(files, name, b"another")
        refuse(lambda: check_digests(order.what, files), BadInput, f"{name} at the agent is not the file")
        check_digests(Running(config, trace="t.csv"), files)  # of a lab machine that knows no digests
        put(files, name, data)
    put(files, "p/three", b"3")
    refuse(lambda: check_digests(order.what, files), BadInput, "p/three at the agent")
    OrderStore(tmp_path).add(order)
    refuse(lambda: carry_out(tmp_path, "x", None, True, lambda _: None), BadInput, "p/three at the agent")
    (tmp_path / FILES / "p/three").unlink()
    (tmp_path / FILES / "p/two").unlink()
    refuse(lambda: check_digests(order.what, files), BadInput, "p/two at the agent")


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
    standing = again.answer(Call(version=VERSION, token=5), {})[0]
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


def test_a_message_that_the_agent_fails_on_does_not_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = agent(tmp_path)
    packet: Packet[Call] = Packet(Call(version=VERSION, token=5), {}, 1)
    monkeypatch.setattr(first, "answer", lambda message, arrays: {}["missing"])
    assert first._reply(packet)[0] == Refused(reason="internal error; the agent's log says more")


def test_waiting_orders_are_known_without_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of them would otherwise keep the event loop busy."""
    shelf = OrderStore(tmp_path)
    for name in ("a", "b"):
        shelf.add(Order(id=name, what=Probing("tcp://127.0.0.1:1", None, 1, 1, 1.0)))
    for method in ("stat", "open"):
        monkeypatch.setattr(Path, method, lambda *_, **__: pytest.fail("the disk was asked"))
    assert [kept.order.id for kept in shelf.waiting()] == ["a", "b"]


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
    again = OrderStore(tmp_path).get("x")
    assert again is not None and again.count_crash() == 1


def test_an_order_that_is_given_again_begins_at_its_new_start(tmp_path: Path) -> None:
    """It waited for the first one, for up to a day after the machine had been started again."""
    first, one = agent(tmp_path), Order(id="x", what=Running(RunConfig()), start_s=time.perf_counter() + 9000.0)
    first.answer(one, {})
    assert _wait_s(first._orders.waiting()[0]) > 8000
    first.answer(msgspec.structs.replace(one, start_s=time.perf_counter() + 5.0), {})
    first.answer(msgspec.structs.replace(one, start_s=0.0), {})  # which names none: a device waits for its orders so
    for found in (first, agent(tmp_path)):
        assert 0 < _wait_s(found._orders.waiting()[0]) <= 5


@pytest.mark.parametrize("clock", ["another-boot 1.0", "{boot} {later!r}", "", None])
def test_no_order_waits_for_a_time_of_a_clock_that_has_begun_anew(clock: str | None, tmp_path: Path) -> None:
    agent(tmp_path).answer(Order(id="x", what=Running(RunConfig()), start_s=time.perf_counter() + 9000.0), {})
    path = tmp_path / ORDERS / "x" / CLOCK
    if clock is None:
        path.unlink()
    else:
        boot = path.read_text().split()[0]
        path.write_text(clock.format(boot=boot, later=time.perf_counter() + 1000.0))
    (kept,) = agent(tmp_path)._orders.waiting()
    assert _wait_s(kept) == 0


def test_a_run_that_was_complete_when_its_process_ended_is_done(tmp_path: Path) -> None:
    """It failed, each time: the folder held a finished run."""
    agent(tmp_path).answer(Order(id="x", what=Running(RunConfig(bs="tcp://127.0.0.1:1", timeout_s=0.5))), {})
    kept = OrderStore(tmp_path).get("x")
    assert kept is not None
    kept.result.mkdir()
    (kept.result / SUMMARY).write_text("{}")
    carry_out(tmp_path, "x", None, False, lambda _: None)  # reaches no base station
    (kept.result / JOURNAL).write_text("")
    with pytest.raises(TestbedError):
        carry_out(tmp_path, "x", None, False, lambda _: None)


class Talk:
    """A lab machine's end and an agent's in one: messages in, reports out."""

    def __init__(self) -> None:
        self.orders: asyncio.Queue[tuple[bytes, list[bytes]]] = asyncio.Queue()
        self.reports: asyncio.Queue[Any] = asyncio.Queue()

    async def recv(self) -> tuple[bytes, list[bytes]]:
        return await self.orders.get()

    async def send(self, peer: bytes, frames: list[bytes]) -> None:
        self.reports.put_nowait(decode_report(frames).message)

    async def ask(self, message: Any, data: bytes | None = None) -> Any:
        arrays = None if data is None else {"data": np.frombuffer(data, np.uint8)}
        self.orders.put_nowait((b"lab", [bytes(frame) for frame in encode(message, arrays)]))
        return await asyncio.wait_for(self.reports.get(), 30)


async def test_messages_are_answered_while_a_file_is_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, hashing = agent(tmp_path), threading.Event()
    put(Files(tmp_path), "d.gguf", b"before")
    monkeypatch.setattr(agent_files, "digest_of", lambda path: (hashing.wait(30), "0" * 32)[1])
    talk: Any = Talk()
    serving = [asyncio.create_task(found.listen(talk)), asyncio.create_task(found.store(talk))]
    with contextlib.suppress(asyncio.TimeoutError):
        message = Put(name="d.gguf", offset=0, total=6, digest="1" * 32)
        await asyncio.wait_for(talk.ask(message, b""), 0.2)
    assert isinstance(await talk.ask(Call(version=VERSION, token=5)), Standing)
    hashing.set()
    assert await asyncio.wait_for(talk.reports.get(), 30) == Stored(name="d.gguf", size=0)
    await cancel(*serving)


def processes(**wanted: int) -> list[int]:
    """Running processes with this `parent` or `group`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent, group = path.read_text().rpartition(")")[2].split()[:3]
            number = {"parent": int(parent), "group": int(group)}
            found += [int(path.parent.name)] if state != "Z" and wanted.items() <= number.items() else []
    return found


async def until(there: Any, wait_s: float = 60.0) -> None:
    end_s = time.monotonic() + wait_s
    while not there():
        assert time.monotonic() < end_s
        await asyncio.sleep(0.05)


async def test_a_cancelled_order_ends_with_its_process_and_its_processes(tmp_path: Path) -> None:
    found, before = agent(tmp_path), processes(parent=os.getpid())
    put(
        Files(tmp_path),
        "t.csv",
        b"t_s,uplink_mbps,downlink_mbps,rtt_ms,per_up,per_down,snr_db\n0,5,5,20,0,0,\n9,5,5,20,0,0,\n",
    )
    config = RunConfig(bs="tcp://127.0.0.1:9", limit=1)
    orders = [Order(id=f"hall-far-{i}", what=Running(config, trace="t.csv")) for i in range(2)]
    orders += [Order(id="hall-near-0", what=Running(config), start_s=time.perf_counter() + 3600)]
    for order in orders:
        found.answer(order, {})
    working = asyncio.create_task(found.runner.work())

    def running() -> list[int]:
        new = [pid for pid in processes(parent=os.getpid()) if pid not in before]
        return [pid for leader in new for pid in processes(group=leader)]

    await until(lambda: len(running()) >= 2)  # the order's process, and its relay
    alive = running()
    assert found.answer(Ask(id="hall-far-0"), {})[0].state == "running"  # type: ignore[attr-defined]
    answer = Cancelled(prefix="hall-far-", count=2)
    assert found.answer(Cancel(prefix="hall-far-"), {})[0] == answer == found.answer(Cancel(prefix="hall-far-"), {})[0]
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in alive))
    for i in range(2):
        state = found.answer(Ask(id=f"hall-far-{i}"), {})[0]
        assert isinstance(state, State) and (state.state, state.note) == ("failed", CANCELLED)
    assert found.answer(Ask(id="hall-near-0"), {})[0].state == "waiting"  # type: ignore[attr-defined]
    await cancel(working)
    again = agent(tmp_path)
    assert again.answer(Ask(id="hall-far-0"), {})[0].state == "failed"  # type: ignore[attr-defined]
    assert again.answer(orders[0], {})[0].state == "waiting"  # type: ignore[attr-defined]


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


async def test_chunks_of_one_lab_machine_leave_others_their_turn() -> None:
    """A flood of one filled the queue, and what others sent was dropped for more than their timeout."""
    chunks = WaitingChunks()

    def send(owner: bytes, count: int) -> None:
        for number in range(count):
            chunks.put(owner, (owner, Packet(Ask(id=str(number)), {}, 1)))

    async def taken(count: int) -> list[tuple[bytes, str]]:
        return [(peer, packet.message.id) for peer, packet in [await chunks.get() for _ in range(count)]]

    send(b"flood", 1000)
    send(b"honest", 1)
    assert await taken(3) == [(b"flood", "0"), (b"honest", "0"), (b"flood", "1")]
    send(b"flood", 1000)
    send(b"honest", 3)
    order = await taken(6)
    assert [owner for owner, _ in order] == [b"flood", b"honest"] * 3
    assert [number for owner, number in order if owner == b"honest"] == ["0", "1", "2"]
    for number in range(2 * MOST_CHUNKS):
        send(b"%d" % number, 1)
    left = [await asyncio.wait_for(chunks.get(), 1.0) for _ in range(MOST_CHUNKS)]
    assert len({owner for owner, _ in left}) > MOST_CHUNKS // 2
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(chunks.get(), 0.05)
