"""What leaves this machine for an agent."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from testbed.channel.measuring.offset import Offset
from testbed.config import RunConfig, resolved
from testbed.errors import AgentError, BadInput
from testbed.experiments.field.devices import remote as remote_module
from testbed.experiments.field.devices.agents import AgentConnection
from testbed.experiments.field.devices.arrived import check_arrived
from testbed.experiments.field.devices.base import Probe, Reach
from testbed.experiments.field.devices.remote import AgentDevice
from testbed.experiments.results.directory import summary, write_summary
from testbed.experiments.results.files import REQUESTS, ROUNDS, _write, read_rounds, request_columns, write_round_rows
from testbed.protocols.orders import File, Order, Running, Standing, State
from testbed.ue.records import RoundRecord
from tests.support.refusals import refuse

REACH = Reach("tcp://bs:1", None)


class RecordedAgent:
    """Connection that records what is sent."""

    address, offset = "tcp://ue:1", Offset(1.0, 0.0, 0.0)
    standing = Standing(1, 0, 0.0, "ue", "0", 0, 0)

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.orders: list[Order] = []
        self.asked: list[str] = []
        self.cancelled: list[str] = []
        self.dropped: list[str] = []
        self.offsets: list[float] = []
        """Offsets that are measured next."""
        self.brings = Path()
        """Folder with the results of every order."""
        self.twice = False
        """Whether each of its files is listed twice."""

    def put(self, name: str, path: Path) -> None:
        self.files[name] = path.read_bytes()

    def order(self, order: Order) -> None:
        self.orders.append(order)

    def cancel(self, prefix: str) -> int:
        self.cancelled.append(prefix)
        return 0

    def states(self, order: str) -> Iterator[State]:
        self.asked.append(order)
        files = tuple(File(path.name, 1, "0" * 32) for path in self.brings.iterdir()) if self.brings.name else ()
        yield State(id=order, state="done", files=files * (1 + self.twice))

    def fetch(self, state: State, out: Path, most: int) -> None:
        """Bring what was prepared."""
        for file in state.files:
            out.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.brings / file.name, out)

    def synchronise(self) -> None:
        if self.offsets:
            self.offset = Offset(self.offsets.pop(0), 0.0, 0.0)

    def drop(self, order: str) -> None:
        self.dropped.append(order)

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


def device(agent: Any, run: str = "") -> AgentDevice:
    return AgentDevice(agent, "hall", None, 0.0, lambda _: None, run)


def test_results_of_another_directory_are_not_taken_for_those_of_this_one(config: RunConfig, tmp_path: Path) -> None:
    """A run into a new directory got the results of the one before, and two lab machines each other's."""
    agent, out = RecordedAgent(), tmp_path / "cells" / "near" / "1-fh"
    for run in ("", "a", "b", "a"):
        device(agent, run).expect([(config, out)])
    ids = [order.id for order in agent.orders]
    pattern = r"hall-near-[0-9a-f]{8}-1-fh-[0-9a-f]{8}-[0-9a-f]{10}"
    assert len(set(ids)) == 3 and ids[1] == ids[3] and all(re.fullmatch(pattern, name) for name in ids)


def test_a_step_begins_by_the_clock_that_the_agent_has_now(config: RunConfig, tmp_path: Path) -> None:
    """After its machine had been started again, the agent waited for as long as that had been up before."""
    agent, out = RecordedAgent(), tmp_path / "cells" / "near" / "together-1-fh"
    remote, agent.offsets = device(agent), [25_000.0, -3.0]
    for start_s, offset_s in ((5.0, 25_000.0), (9.0, -3.0)):
        remote.begin(config, tmp_path, out, start_s)
        assert agent.orders[-1].start_s == start_s + offset_s == start_s + remote.offset_s


def test_a_step_in_which_an_agents_clock_begins_anew_does_not_count(config: RunConfig, tmp_path: Path) -> None:
    agent, out = RecordedAgent(), tmp_path / "cells" / "near" / "together-1-fh"
    remote, agent.offsets = device(agent), [25_000.0, -3.0]
    remote._bring = lambda *_: None  # type: ignore[method-assign]
    remote.begin(config, tmp_path, out, 5.0)
    refuse(lambda: remote.run(config, tmp_path, out), AgentError, "tcp://ue:1 began anew")
    agent.offsets = [7.0, 7.5]
    remote.begin(config, tmp_path, out, 5.0)
    remote.run(config, tmp_path, out)


def test_a_step_that_begins_anew_takes_no_earlier_result(config: RunConfig, tmp_path: Path) -> None:
    agent, out = RecordedAgent(), tmp_path / "cells" / "near" / "together-1-fh"
    for _ in range(2):
        remote = device(agent, "a")
        remote.begin(config, tmp_path, out, 5.0)
        refuse(lambda: remote.run(config, tmp_path, out), AgentError, "brought no run")  # noqa: B023
    first, again, second, _ = agent.orders
    assert first == again and first.id != second.id and first.start_s == second.start_s == 6.0
    (prefix,) = set(agent.cancelled)
    assert len(agent.cancelled) == 2 and first.id.startswith(prefix) and second.id.startswith(prefix)
    assert agent.asked == agent.dropped == [first.id, second.id]


def test_an_order_that_goes_on_is_told_of_and_a_measurement_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that always answered "running" held a field run in silence for ever."""
    said: list[str] = []
    clock = iter(range(0, 10_000, 25))
    times = SimpleNamespace(monotonic=lambda: float(next(clock)), time_ns=time.time_ns)
    monkeypatch.setattr(remote_module, "time", times)

    class Endless(RecordedAgent):
        standing = Standing(1, 0, 0.0, "ue", "0", 0, -5)

        def states(self, order: str) -> Iterator[State]:
            yield from [State(id=order, state="waiting")] * 30
            while True:
                yield State(id=order, state="running")

    remote = AgentDevice(Endless(), "hall", None, 0.0, said.append)  # type: ignore[arg-type]
    measure = lambda: remote.measure(REACH, Probe(3, 5, 30.0), tmp_path)  # noqa: E731
    refuse(measure, AgentError, "has been running for 220 s")
    assert len(said) == 13 and "is waiting, after 1 min" in said[0] and "is running, after 16 min" in said[-1]


# ---------------------------------------------------------------- runs that arrive


def a_run(out: Path, requests: dict[str, Any] | None = None, rounds: dict[str, Any] | None = None) -> Path:
    """A run of two requests with two rounds each; the last row of each file has other values."""
    plain = dict.fromkeys(RoundRecord.__struct_fields__, 0) | {
        "protocol": "fh", "drafted": 4, "accepted": 2, "csi": None, "choice": "", "throttled": "", "streamed": False,
    }  # fmt: skip
    state = {
        "csi_uplink_mbps": 20.0, "csi_downlink_mbps": 20.0, "csi_rtt_ms": 5.0, "csi_per_up": 0.0, "csi_per_down": 0.0,
        "csi_time_s": 0.0, "csi_source": "passive",
    }  # fmt: skip
    played = []
    for number in range(4):
        times_s = {name: float(number) for name in ("begin_s", "sent_s", "verdict_s", "end_s")}
        played.append({"method": "fh", "request": number // 2, **plain, **state, **times_s})
    asked = [
        {"method": "fh", "request": number, "prompt_len": 3, "token_ids": [1, 2, 3], "finish_reason": "stop",
         "latency_s": 1.5, "uplink_bytes": 9, "rounds": 2, "tokens": 3, "text": "x"}
        for number in range(2)
    ]  # fmt: skip
    played[-1] |= rounds or {}
    asked[-1] |= requests or {}
    out.mkdir(parents=True, exist_ok=True)
    write_round_rows(out, played)
    _write(out / REQUESTS, asked, request_columns())
    write_summary(out, summary({}, 0, {}, []))
    return out


def test_a_sound_run_passes(tmp_path: Path) -> None:
    check_arrived(a_run(tmp_path), 2, 3)
    refuse(lambda: check_arrived(tmp_path, 3, 3), BadInput, "it has 2 requests and 4 rounds; ordered were 3 requests")
    refuse(lambda: check_arrived(tmp_path, 2, 0), BadInput, "ordered were 2 requests of up to 0 tokens")


def test_a_run_with_other_settings_than_ordered_is_refused(tmp_path: Path) -> None:
    """That of another method stood in its place, and the report showed its figures."""
    ordered, run = RunConfig(bs="tcp://edge:5", methods=("fh",), window=8, limit=2, max_tokens=3), a_run(tmp_path)

    def said(**other: object) -> None:
        config = resolved(msgspec.structs.replace(ordered, bs="tcp://127.0.0.1:9", csi="link", **other))
        write_summary(run, summary(config, 0, {}, []))

    said()
    check_arrived(run, 2, 3, ordered)
    for other, words in (({"window": 2}, "window 2; ordered was 8"), ({"methods": ("sh",)}, r"methods \['sh'\]")):
        said(**other)
        with pytest.raises(BadInput, match=words):
            check_arrived(run, 2, 3, ordered)
    write_summary(run, summary({}, 0, {}, []))  # of an older version, which says less
    check_arrived(run, 2, 3, ordered)


@pytest.mark.parametrize(
    ("requests", "rounds"),
    [
        ({"request": None}, {}),
        ({"request": 7}, {}),
        ({"request": 0}, {}),
        ({"latency_s": None}, {}),
        ({"latency_s": 0.0}, {}),
        ({"latency_s": float("nan")}, {}),
        ({"latency_s": 1e9}, {}),
        ({"tokens": None}, {}),
        ({"tokens": 4}, {}),
        ({"token_ids": [], "tokens": 0}, {}),
        ({"uplink_bytes": -1}, {}),
        ({"rounds": 1}, {}),
        ({}, {"request": 0}),
        ({}, {"request": None}),
        ({}, {"link_s": None}),
        ({}, {"link_s": float("inf")}),
        ({}, {"draft_s": 1e300}),
        ({}, {"drafted": -4}),
        ({}, {"accepted": 5}),
        ({}, {"protocol": "weird"}),
        ({}, {"begin_s": None}),
        ({}, {"end_s": 1e9}),
        ({}, {"csi_uplink_mbps": float("inf")}),
        ({}, {"csi_rtt_ms": None}),
        ({}, {"csi_time_s": 1e9}),
        ({}, {"csi_time_s": 5e5}),
        ({}, {"csi_uplink_mbps": 1e-300}),
        ({}, {"csi_uplink_mbps": 1.7e308}),
        ({}, {"csi_per_up": 1 - 1e-16}),
        ({}, {"csi_rtt_ms": 1e10}),
        ({}, {"csi_snr_db": 1e308}),
        ({}, {"verify_s": 9e14}),
        ({}, {"draft_s": 2e6}),
        ({"token_ids": [1] * 4, "tokens": 4}, {}),
        ({"latency_s": 1e-320}, {}),
        ({}, {"link_s": 5.0}),
        ({}, {"queue_s": -1.0}),
    ],
)
def test_a_run_with_impossible_rows_is_refused(
    tmp_path: Path, requests: dict[str, Any], rounds: dict[str, Any]
) -> None:
    """One such run kept `field report` from working for all places."""
    with pytest.raises(BadInput):
        check_arrived(a_run(tmp_path, requests, rounds), 2, 3)


def test_a_run_that_takes_no_time_is_refused(tmp_path: Path) -> None:
    """The overlap of places that ran together was divided by the time of each."""
    run = a_run(tmp_path)
    rows = read_rounds(run).to_pylist()
    for row in rows:
        row |= dict.fromkeys(("begin_s", "sent_s", "verdict_s"), 0.0) | {"end_s": 1e-30}
    write_round_rows(run, rows)
    refuse(lambda: check_arrived(run, 2, 3), BadInput, "its rounds take no time")


def test_a_run_that_was_refused_is_not_done_and_is_made_again(config: RunConfig, tmp_path: Path) -> None:
    agent, out = RecordedAgent(), tmp_path / "cells" / "near" / "1-fh"
    config = replace(config, limit=2, max_tokens=3)
    agent.brings = a_run(tmp_path / "bad", {"latency_s": None})
    remote = device(agent)
    refuse(lambda: remote.run(config, tmp_path, out), AgentError, "brought no run")
    assert not out.exists() and not list(out.parent.glob(".*")) and agent.dropped == [agent.orders[0].id]
    agent.brings = a_run(tmp_path / "good")
    remote.run(config, tmp_path, out)
    check_arrived(out, 2, 3)
    assert not list(out.parent.glob(".*"))


def test_a_file_that_is_listed_twice_is_refused(config: RunConfig, tmp_path: Path) -> None:
    """It ended `field run` with a traceback, before the places that came later, and every run after it."""
    agent, out = RecordedAgent(), tmp_path / "cells" / "near" / "1-fh"
    agent.brings, agent.twice = a_run(tmp_path / "good"), True
    remote = device(agent)
    refuse(lambda: remote.run(replace(config, limit=2, max_tokens=3), tmp_path, out), AgentError, "lists a file twice")
    assert not out.exists() and agent.dropped


def test_what_a_broken_fetch_left_is_no_part_of_a_run(config: RunConfig, tmp_path: Path) -> None:
    """The run was complete with files of an earlier fetch, which were not kept."""
    agent, out = RecordedAgent(), tmp_path / "cells" / "near" / "1-fh"
    a_run(out.with_name(".1-fh.arriving"))
    agent.brings = a_run(tmp_path / "good")
    (agent.brings / ROUNDS).unlink()
    remote = device(agent)
    refuse(lambda: remote.run(replace(config, limit=2, max_tokens=3), tmp_path, out), AgentError, "brought no run")
    assert not out.exists()


def test_outputs_beyond_what_was_ordered_take_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 7 kB took 8 GB before it was refused."""
    run = a_run(tmp_path, {"token_ids": [1] * 1000, "tokens": 1000})
    monkeypatch.setattr("testbed.experiments.field.devices.arrived._check_requests", None)
    refuse(lambda: check_arrived(run, 2, 3), BadInput, "more than 3 tokens")


@pytest.mark.parametrize("damage", ["text", "schema", "twice", "cut"])
def test_files_that_no_library_reads_are_refused_in_one_line(config: RunConfig, tmp_path: Path, damage: str) -> None:
    """One ended `field run` and `field collect` for all places, and counted as done afterwards."""
    agent, out, bad = RecordedAgent(), tmp_path / "cells" / "near" / "1-fh", a_run(tmp_path / "bad")
    table = pq.read_table(bad / REQUESTS)
    if damage == "text":
        invalid = pa.Array.from_buffers(
            pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]
        )
        table = table.set_column(table.column_names.index("text"), "text", invalid)
    elif damage == "schema":
        table = table.replace_schema_metadata({b"testbed.schema": b"\xff"})
    elif damage == "twice":
        table = table.append_column("request", table["request"])
    pq.write_table(table, bad / REQUESTS)
    if damage == "cut":
        (bad / REQUESTS).write_bytes((bad / REQUESTS).read_bytes()[:300])
    agent.brings = bad
    remote = device(agent)
    refuse(lambda: remote.run(replace(config, limit=2, max_tokens=3), tmp_path, out), AgentError, "brought no run")
    assert not out.exists()


def test_ids_of_orders_begin_with_those_of_no_other_place_or_plan() -> None:
    """Cancelling `a` cancelled `a-far`, too, and plan `hall` the orders of `hall-a`."""
    names = [
        AgentDevice(RecordedAgent(), plan, None, 0.0, print)._place(place)  # type: ignore[arg-type]
        for plan, place in (("hall", "a"), ("hall", "a-far"), ("hall-a", "far"))
    ]
    assert not [(one, other) for one in names for other in names if one != other and f"{other}-".startswith(f"{one}-")]


def test_a_measurement_is_one_file(tmp_path: Path) -> None:
    """Another one, `model.csv`, changed the report of its place."""
    agent = RecordedAgent()
    agent.brings = tmp_path / "brings"
    agent.brings.mkdir()
    for name in ("link.json", "model.csv"):
        (agent.brings / name).write_text("{}")
    refuse(lambda: device(agent).measure(REACH, Probe(1, 1, 1.0), tmp_path / "near"), AgentError, "model.csv")


def test_a_measurement_without_a_file_is_not_that_of_the_day_before(tmp_path: Path) -> None:
    """It was written down as today's, and compared with itself."""
    agent, place = RecordedAgent(), tmp_path / "near"
    place.mkdir()
    (place / "link.json").write_text("{}")
    refuse(lambda: device(agent).measure(REACH, Probe(1, 1, 1.0), place), AgentError, "but: no file")


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
    agent._timeout_s = 30.0
    agent.fetch(State(id="x", state="done", files=tuple(entries)), out, 2**20)


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
    refuse(lambda: fetch(tmp_path, ("e", b"1"), size=2**60), AgentError, "1 files of 1152921504606846976 bytes")
    many = [(f"f{i}", b"1") for i in range(17)]
    refuse(lambda: fetch(tmp_path, *many), AgentError, "at most 16 of")
