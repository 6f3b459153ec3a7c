"""What an agent keeps of unfinished uploads, and what waiting orders cost it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from testbed.config import RunConfig
from testbed.errors import BadInput, ProtocolError, TestbedError
from testbed.experiments.agent import files as agent_files
from testbed.experiments.agent import stored_orders
from testbed.experiments.agent.files import IDLE_PART_S, MOST_PARTS, PART_S, PARTS, SPARE_BYTES, Files
from testbed.experiments.agent.owners import owner_name
from testbed.experiments.agent.runner import MOST_WAIT_S, OrderRunner
from testbed.experiments.agent.serve import Agent, AgentSetup, run_agent
from testbed.experiments.agent.stored_orders import StoredOrder
from testbed.protocols.orders import Ask, Cancel, Drop, Order, Probing, Put, Running, digest_of
from testbed.tasks import cancel
from tests.support.refusals import refuse


def upload(files: Files, number: int, begin: int = 0, end: int = 60, owner: bytes = b"") -> int:
    """Send a piece of the file of 100 bytes of a number; returns the stored size."""
    data = bytes([number]) * 100
    message = Put(name=f"f{number}", offset=begin, total=100, digest=hashlib.blake2b(data, digest_size=16).hexdigest())
    return files.put(message, np.frombuffer(data[begin:end], np.uint8), owner).size


def parts(workdir: Path) -> list[Path]:
    """Unfinished uploads, the least recently continued first."""
    return sorted((workdir / PARTS).iterdir(), key=lambda part: part.stat().st_mtime_ns)


def age(part: Path, seconds: float) -> None:
    """Have an upload been continued last at an earlier time."""
    then_s = time.time() - seconds
    os.utime(part, (then_s, then_s))


@pytest.mark.parametrize("restarted", [False, True])
def test_an_upload_that_nobody_continues_is_deleted_after_a_day(tmp_path: Path, restarted: bool) -> None:
    files = Files(tmp_path)
    for number in range(2):
        upload(files, number)
    old, young = parts(tmp_path)
    age(old, PART_S + 60)
    age(young, PART_S - 60)
    if restarted:
        Agent(AgentSetup("", tmp_path), lambda _: None)
        assert parts(tmp_path) == [young]
    else:
        upload(files, 2)
        assert len(parts(tmp_path)) == 2 and parts(tmp_path)[0] == young
    assert upload(files, 1, 60, 100) == 100  # the younger one goes on
    assert upload(files, 0, 60, 100) == 0  # the older one begins again
    assert upload(files, 0) == 60 and upload(files, 0, 60, 100) == 100
    assert files.path("f0").read_bytes() == bytes(100)


def test_unfinished_uploads_are_bounded_in_number(tmp_path: Path) -> None:
    files = Files(tmp_path)
    for number in range(MOST_PARTS + 5):
        upload(files, number)
        age(parts(tmp_path)[-1], 200 - number)
        assert len(parts(tmp_path)) <= MOST_PARTS
    assert len(parts(tmp_path)) == MOST_PARTS == len(files._hashes)
    assert upload(files, 5, 60, 100) == 100  # the sixth is the oldest that is kept
    assert upload(files, 4, 60, 100) == 0


def test_one_lab_machine_does_not_end_the_uploads_of_others(tmp_path: Path) -> None:
    """32 new uploads replaced those of all others."""
    data = bytes(100)
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()

    def send(files: Files, owner: bytes, name: str, begin: int, end: int) -> int:
        chunk = np.frombuffer(data[begin:end], np.uint8)
        return files.put(Put(name=name, offset=begin, total=100, digest=digest), chunk, owner).size

    files = Files(tmp_path)
    for number in range(3):
        assert send(files, b"honest", f"h{number}", 0, 60) == 60
    for number in range(2 * MOST_PARTS):
        assert send(files, b"hog", f"g{number}", 0, 60) == 60
        files = Files(tmp_path) if number == MOST_PARTS else files  # the agent was started again
        assert len(parts(tmp_path)) <= MOST_PARTS
    assert send(files, b"late", "l", 0, 60) == 60
    for owner, name in ((b"honest", "h0"), (b"honest", "h1"), (b"honest", "h2"), (b"late", "l")):
        assert send(files, owner, name, 60, 100) == 100
    assert send(files, b"honest", "h0", 0, 60) == 100  # the same file is there
    assert send(files, b"hog", "h0", 0, 60) == 60  # another one's is not


def test_uploads_that_nobody_continues_make_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(tmp_path)
    upload(files, 0)
    upload(files, 1)
    idle, recent = parts(tmp_path)
    monkeypatch.setattr(agent_files, "free_bytes", lambda _: SPARE_BYTES + (150 if len(parts(tmp_path)) < 2 else 50))
    refuse(lambda: upload(files, 2), BadInput, "not enough disk space")
    assert parts(tmp_path) == [idle, recent]
    age(idle, IDLE_PART_S + 60)
    assert upload(files, 2) == 60
    assert idle not in parts(tmp_path) and recent in parts(tmp_path)


def test_uploaded_files_are_bounded_in_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_files, "MAX_FILES", 3)
    agent = Files(tmp_path)
    for number in range(3):
        assert upload(agent, number, 0, 100) == 100
    for again in (agent, Files(tmp_path)):
        refuse(lambda: upload(again, 3, 0, 100), BadInput, "already keeps 3 files")  # noqa: B023
        assert upload(again, 2, 0, 100) == 100
        changed = Put(name="f1", offset=0, total=1, digest=hashlib.blake2b(b"x", digest_size=16).hexdigest())
        assert again.put(changed, np.frombuffer(b"x", np.uint8)).size == 1  # in place of another
        assert upload(again, 1, 0, 100) == 100
    (tmp_path / agent_files.FILES / "f0").unlink()
    assert upload(Files(tmp_path), 3, 0, 100) == 100


def test_one_lab_machine_leaves_room_for_files_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_files, "MAX_FILES", 8)
    agent = Files(tmp_path)
    for number in range(4):
        assert upload(agent, number, 0, 100, b"a") == 100
    for again in (agent, Files(tmp_path)):
        words = "4 files of this lab machine and 0 of others: each may keep half of what the others leave of 8"
        refuse(lambda: upload(again, 4, 0, 100, b"a"), BadInput, words)  # noqa: B023
        assert upload(again, 3, 0, 100, b"a") == 100
    for number in (3, 4):
        assert upload(again, number, 0, 100, b"b") == 100
    refuse(lambda: upload(again, 5, 0, 100, b"b"), BadInput, "2 files of this lab machine and 4 of others")
    assert upload(again, 5, 0, 100, b"c") == 100
    for name, numbers in ((b"a", range(4)), (b"b", (3, 4)), (b"c", (5,))):
        assert sorted(path.name for path in again.folder(owner_name(name)).iterdir()) == [f"f{n}" for n in numbers]


def test_no_lab_machine_touches_files_of_another_one(tmp_path: Path) -> None:
    """A file in place of a folder, or beside the files of one, kept uploads and orders of others from working."""
    agent, mine, another = Files(tmp_path), owner_name(b"mine"), owner_name(b"another")

    def put(name: str, owner: bytes, data: bytes) -> int:
        digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        message = Put(name=name, offset=0, total=len(data), digest=digest)
        return agent.put(message, np.frombuffer(data, np.uint8), owner).size

    assert put("model", b"another", b"x") == 1
    assert put("model/weights", b"mine", b"mine") == 4
    assert put("head/own", b"mine", b"mine") == put("head/zzz", b"another", b"more") == 4
    assert put("head/own", b"another", b"else") == 4
    assert agent.path("head/own", mine).read_bytes() == b"mine"
    assert [path.name for path in agent.path("head", mine).iterdir()] == ["own"]
    assert agent.path("model", another).read_bytes() == b"x"
    refuse(lambda: agent.path("model"), BadInput, "no file")


def test_one_lab_machine_leaves_room_for_orders_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_orders, "MAX_ORDERS", 4)
    agent = Agent(AgentSetup("", tmp_path), lambda _: None)
    for name in ("a", "b"):
        agent.answer(order(name, 3600), {}, b"one")
    for again in (agent, Agent(AgentSetup("", tmp_path), lambda _: None)):
        refuse(lambda: again.answer(order("c", 3600), {}, b"one"), BadInput, "2 orders of this lab machine")  # noqa: B023
    again.answer(order("c", 3600), {}, b"two")
    assert [kept.owner for kept in again._orders.named("c", owner_name(b"two"))] == [owner_name(b"two")]


def test_an_order_begins_when_the_lab_machine_says_that_gave_it(tmp_path: Path) -> None:
    agent = Agent(AgentSetup("", tmp_path), lambda _: None)
    agent.answer(order("a", 3600), {}, b"one")
    kept = agent._orders.get("a")
    assert kept is not None
    begin_s = kept.start_s
    agent.answer(order("a", -1), {}, b"two")
    assert kept.start_s == begin_s
    kept.end({"state": "failed", "note": "", "began_s": 0.0, "ended_s": 0.0, "files": []})
    agent.answer(order("a", -1), {}, b"two")
    assert kept.ended is not None
    agent.answer(order("a", -1), {}, b"one")
    assert kept.ended is None and kept.start_s < begin_s


def test_an_order_that_cannot_be_stored_leaves_nothing(tmp_path: Path) -> None:
    """Its header with all defaults is longer than the agent reads. Such orders filled the disk and were not counted."""
    agent = Agent(AgentSetup("", tmp_path), lambda _: None)
    long = Order(id="x", what=Running(RunConfig(), digests={f"{n:03}": "0" * 32 for n in range(100)}))
    refuse(lambda: agent.answer(long, {}), ProtocolError, "header of")
    assert not list((tmp_path / "orders").iterdir()) and agent._orders.get("x") is None


@pytest.mark.parametrize("text", ["[]", "{}", "1", '{"state": "done"}', '{"state": "lost", "note": 1}', "nonsense"])
def test_an_order_whose_end_is_damaged_is_carried_out_again(tmp_path: Path, text: str) -> None:
    Agent(AgentSetup("", tmp_path), lambda _: None).answer(order("x", 3600), {})
    (tmp_path / "orders" / "x" / "state.json").write_text(text)
    again = Agent(AgentSetup("", tmp_path), lambda _: None)
    assert again.answer(Ask(id="x"), {})[0].state == "waiting"  # type: ignore[attr-defined]
    assert again.answer(Cancel(prefix="x"), {})[0].count == 1  # type: ignore[attr-defined]


def test_an_order_in_place_of_one_that_cannot_be_read_has_no_results_yet(tmp_path: Path) -> None:
    agent = Agent(AgentSetup("", tmp_path), lambda _: None)
    agent.answer(order("x", 3600), {})
    assert agent.runner.cancel("x") == 1
    (tmp_path / "orders" / "x" / "order").write_bytes(b"damaged")
    again = Agent(AgentSetup("", tmp_path), lambda _: None)
    assert again.answer(order("x", 3600), {})[0].state == "waiting"  # type: ignore[attr-defined]


def test_a_lab_machine_learns_and_cancels_nothing_of_others(tmp_path: Path) -> None:
    """One counted the ids of another's orders by their prefixes, and stored its own orders under these ids."""
    agent = Agent(AgentSetup("", tmp_path), lambda _: None)
    agent.answer(order("secret-1", 3600), {}, b"one")
    for prefix in ("s", "secret-1"):
        assert agent.answer(Cancel(prefix=prefix), {}, b"other")[0].count == 0  # type: ignore[attr-defined]
    assert agent.answer(Ask(id="secret-1"), {})[0].state == "waiting"  # type: ignore[attr-defined]
    assert agent.answer(Cancel(prefix="s"), {}, b"one")[0].count == 1  # type: ignore[attr-defined]


def test_uploads_are_not_deleted_for_one_that_would_not_fit_even_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(tmp_path)
    for name in ("a", "b"):
        files.put(Put(name=name, offset=0, total=100, digest="0" * 32), np.zeros(50, np.uint8), name.encode())
    parts = list((tmp_path / "parts").iterdir())
    for part in parts:
        os.utime(part, (time.time() - 700, time.time() - 700))
    monkeypatch.setattr("testbed.experiments.agent.files.free_bytes", lambda _: SPARE_BYTES + 120)
    large, small = (Put(name="c", offset=0, total=total, digest="0" * 32) for total in (1000, 150))
    refuse(lambda: files.put(large, np.zeros(1, np.uint8), b"c"), BadInput, "not enough disk space")
    assert sorted((tmp_path / "parts").iterdir()) == sorted(parts)
    refuse(lambda: files.put(small, np.zeros(1, np.uint8), b"c"), BadInput, "not enough disk space")  # as it is patched
    assert not list((tmp_path / "parts").iterdir())


def order(name: str, in_s: float) -> Order:
    """A measurement that begins after some time."""
    return Order(id=name, what=Probing("tcp://127.0.0.1:1", None, 1, 1, 1.0), start_s=time.perf_counter() + in_s)


@contextlib.asynccontextmanager
async def working(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Agent, asyncio.Queue[str], list[int]]]:
    """An agent whose orders end at once: the agent, the orders in the sequence of their start, and the number of
    waiting orders at each look at them.
    """
    agent, begun, looks = Agent(AgentSetup("", workdir), lambda _: None), asyncio.Queue[str](), list[int]()
    waiting = agent._orders.waiting

    async def carry_out(kept: StoredOrder) -> None:
        assert not 0 < kept.order.start_s - time.perf_counter() < MOST_WAIT_S
        kept.end({"state": "done", "note": "", "began_s": 0.0, "ended_s": 0.0, "files": []})
        begun.put_nowait(kept.order.id)

    def looked() -> list[StoredOrder]:
        looks.append(len(waiting()))
        return waiting()

    monkeypatch.setattr(agent.runner, "_carry_out", carry_out)
    monkeypatch.setattr(agent._orders, "waiting", looked)
    task = asyncio.create_task(agent.runner.work())
    try:
        yield agent, begun, looks
    finally:
        await cancel(task)


async def test_waiting_orders_cost_nothing_until_one_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state files of all waiting orders were looked for five times a second."""
    async with working(tmp_path, monkeypatch) as (agent, begun, looks):
        for number in range(20):
            agent.answer(order(f"later-{number}", 3600), {})
        await asyncio.sleep(0)
        looks.clear()
        shutil.rmtree(tmp_path / "orders")  # nothing is read from there
        await asyncio.sleep(0.5)
        assert looks == [] and begun.empty()
        assert len(agent._orders.waiting()) == 20


async def test_orders_begin_at_their_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with working(tmp_path, monkeypatch) as (agent, begun, looks):
        for name, in_s in (("far", 3600), ("second", 0.4), ("first", 0.2), ("now", -1), ("reboot", 1e7)):
            agent.answer(order(name, in_s), {})
        names = [await asyncio.wait_for(begun.get(), 30) for _ in range(4)]
        assert names == ["now", "reboot", "first", "second"]
        assert [kept.order.id for kept in agent._orders.waiting()] == ["far"]
        assert len(looks) < 20


async def test_lab_machines_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with working(tmp_path, monkeypatch) as (agent, begun, _):
        for owner, names in ((b"one", "abcd"), (b"two", "xy")):
            for name in names:
                agent.answer(order(name, -1), {}, owner)
        assert [await asyncio.wait_for(begun.get(), 30) for _ in range(6)] == list("axbycd")


def test_orders_keep_the_sequence_of_their_arrival(tmp_path: Path) -> None:
    agent = Agent(AgentSetup("", tmp_path), lambda _: None)
    for number, name in enumerate("cab"):
        agent.answer(order(name, 3600), {})
        os.utime(tmp_path / "orders" / name / "order", ns=(number, number))
    again = Agent(AgentSetup("", tmp_path), lambda _: None)
    for found in (agent, again):
        assert [kept.order.id for kept in found._orders.waiting()] == ["c", "a", "b"]


# ---------------------------------------------------------------- ends


def test_bad_input_while_it_serves_is_no_bad_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that ends with exit status 2 is not started again by systemd."""

    async def failing(self: OrderRunner) -> None:
        raise BadInput("cannot write state.json")

    monkeypatch.setattr(OrderRunner, "work", failing)
    ready: list[str] = []
    with pytest.raises(TestbedError, match="the agent failed: cannot write") as caught:
        run_agent(AgentSetup("tcp://127.0.0.1:*", tmp_path), ready.append, lambda _: None)
    assert ready and not isinstance(caught.value, BadInput)


async def test_an_order_that_was_cancelled_and_dropped_ends_without_a_trace(tmp_path: Path) -> None:
    """Its process crashed at the same moment, and the agent ended when it counted the crash."""
    agent = Agent(AgentSetup("", tmp_path), lambda _: None)
    agent.answer(order("x", 0), {})
    (kept,) = agent._orders.waiting()
    agent.answer(Cancel(prefix="x"), {})
    agent.answer(Drop(id="x"), {})
    for code in (-9, 0, 1):
        await agent.runner._end(kept, code, "", 0.0)
    assert not kept.folder.exists()


async def test_an_order_may_be_dropped_while_its_results_are_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lab machine ended the agent so, and with it the orders of others."""
    agent = Agent(AgentSetup("", tmp_path), lambda _: None)
    agent.answer(order("x", 0), {})
    (kept,) = agent._orders.waiting()
    kept.result.mkdir()
    (kept.result / "rounds.parquet").write_bytes(b"abc")

    def dropped(path: Path) -> str:
        agent.answer(Cancel(prefix="x"), {})
        agent.answer(Drop(id="x"), {})
        return digest_of(path)

    monkeypatch.setattr(stored_orders, "digest_of", dropped)
    await agent.runner._end(kept, 0, "", 0.0)
    assert not kept.folder.exists()


async def test_results_that_cannot_be_read_are_a_failed_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent(AgentSetup("", tmp_path), lambda _: None)
    agent.answer(order("x", 0), {})
    (kept,) = agent._orders.waiting()
    kept.result.mkdir()
    (kept.result / "summary.json").write_bytes(b"{}")

    def broken(path: Path) -> str:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(stored_orders, "digest_of", broken)
    await agent.runner._end(kept, 0, "", 0.0)
    assert kept.ended is not None and kept.ended["state"] == "failed" and "Input/output" in kept.ended["note"]
