"""The journal of a run under way: nothing that was decoded is lost, nothing else is taken up."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.channel.csi import Csi
from testbed.config import Config, DemoConfig, RunConfig, save
from testbed.errors import BadInput, TestbedError
from testbed.experiments.inputs.formats import Example
from testbed.experiments.runs.journal import NAME, Heading, Journal, check_folder, kept
from testbed.experiments.runs.prepare import Prompt, Workload
from testbed.experiments.sweep.points import SweepConfig
from testbed.files import held
from testbed.protocols.messages import VERSION, Welcome
from testbed.ue.records import RequestRecord, RoundRecord
from testbed.ue.run import Outcome
from tests.support.refusals import refuse

CONFIG = RunConfig(methods=("greedy", "fh"), limit=3)


def work(*prompts: list[int]) -> Workload:
    return Workload([Prompt(ids, Example("")) for ids in prompts or ([1, 2], [3])], [], None, "x.gguf")


def round_record(number: int, gap: float = 0.25) -> RoundRecord:
    csi = Csi(uplink_mbps=1.5, downlink_mbps=2.5, rtt_ms=3.5) if number % 2 else None
    return RoundRecord(
        number, "fh", 10 + number, 4, 3, 4, 1, 1, 2, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 100, 50, gap, csi=csi, choice="near"
    )


def outcome(request: int, method: str = "fh", rounds: int = 3) -> Outcome:
    records = [round_record(i) for i in range(rounds)]
    return Outcome(method, request, RequestRecord(2, [5, 6, 7 + request], "stop", 1.25, 300, 200, records))


def test_what_was_added_is_there_when_the_run_goes_on(tmp_path: Path) -> None:
    journal = Journal.begin(tmp_path / "run", CONFIG, work())
    journal.add(outcome(0))
    journal.add(outcome(1, "greedy"))
    journal.close()  # as a killed process leaves it
    again = Journal.resume(tmp_path / "run", CONFIG, work())
    assert again.done == [outcome(0), outcome(1, "greedy")] and again.identity == journal.identity
    again.add(outcome(1))
    again.close()
    third = Journal.resume(tmp_path / "run", CONFIG, work())
    assert [o.request for o in third.done] == [0, 1, 1]
    third.finish()
    assert not (tmp_path / "run" / NAME).exists()


@given(cut=st.integers(0, 2000))
def test_a_journal_cut_off_anywhere_loses_no_more_than_its_last_block(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    out = tmp_path_factory.mktemp("run")
    journal = Journal.begin(out, CONFIG, work())
    sizes = [(out / NAME).stat().st_size]
    journal.greet(welcome())
    for request in range(3):
        journal.add(outcome(request))
        sizes.append((out / NAME).stat().st_size)
    journal.close()
    path = out / NAME
    path.write_bytes(path.read_bytes()[:cut])
    if cut < sizes[0]:
        refuse(lambda: Journal.resume(out, CONFIG, work()), BadInput, "has no complete heading")
        return
    again = Journal.resume(out, CONFIG, work())
    whole = sum(size <= cut for size in sizes[1:])
    assert again.done == [outcome(request) for request in range(whole)]
    again.add(outcome(7))
    again.close()
    last = Journal.resume(out, CONFIG, work())
    assert last.done == [*again.done, outcome(7)]
    last.close()


@pytest.mark.parametrize("gap", [math.inf, -math.inf, math.nan, 1e-300, -0.0])
def test_numbers_come_back_as_they_were(tmp_path: Path, gap: float) -> None:
    journal = Journal.begin(tmp_path, CONFIG, work())
    record = RequestRecord(2, [5], "stop", 0.1 + 0.2, 3, 2, [round_record(0, gap)])
    journal.add(Outcome("fh", 0, record))
    journal.close()
    again = Journal.resume(tmp_path, CONFIG, work())
    found = again.done[0].record
    again.close()
    assert found.latency_s == 0.1 + 0.2
    assert found.rounds[0].gap == gap or (math.isnan(gap) and math.isnan(found.rounds[0].gap))


@pytest.mark.parametrize("name", ["candidates", "queried", "batch_size", "kept", "hint"])
def test_requests_with_numbers_that_results_cannot_hold_are_decoded_again(name: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    journal = Journal.begin(path, CONFIG, work())
    lied = outcome(0)
    lied.record.rounds[1] = msgspec.structs.replace(lied.record.rounds[1], **{name: 2**63})
    for one in (lied, outcome(1)):
        journal.add(one)
    journal.close()
    assert kept(path).startswith(f"finished requests kept in {path}: 1;")
    again = Journal.resume(path, CONFIG, work())
    assert again.done == [outcome(1)]
    again.add(outcome(0))
    again.close()
    with contextlib.closing(Journal.resume(path, CONFIG, work())) as third:
        assert third.done == [outcome(1), outcome(0)]


def test_requests_with_what_is_no_token_are_decoded_again(tmp_path: Path) -> None:
    """A token -1 of a base station that lied ended each resumption."""
    journal = Journal.begin(tmp_path, CONFIG, work())
    lied = outcome(0)
    lied.record.token_ids[1] = -1
    for one in (lied, outcome(1)):
        journal.add(one)
    journal.close()
    with contextlib.closing(Journal.resume(tmp_path, CONFIG, work())) as again:
        assert again.done == [outcome(1)]


def test_only_the_same_run_is_gone_on_with(tmp_path: Path) -> None:
    Journal.begin(tmp_path, CONFIG, work()).close()
    other = msgspec.structs.replace(CONFIG, window=9, seed=4)
    refuse(lambda: Journal.resume(tmp_path, other, work()), BadInput, "seed 0", "window 8", "the same")
    refuse(lambda: Journal.resume(tmp_path, CONFIG, work([1, 2], [4])), BadInput, "other prompts")
    elsewhere = msgspec.structs.replace(CONFIG, bs="tcp://127.0.0.1:7777", timeout_s=5.0, keys="pi", failover_s=9.0)
    Journal.resume(tmp_path, elsewhere, work()).close()


def test_a_run_goes_on_with_the_same_files_only(tmp_path: Path) -> None:
    """A channel state may have been measured again."""
    drafter, link, out = tmp_path / "d.gguf", tmp_path / "link.json", tmp_path / "run"
    for file in (drafter, link):
        file.write_text("before")
    config = msgspec.structs.replace(CONFIG, drafter=str(drafter), csi=str(link))
    Journal.begin(out, config, work()).close()
    link.write_text("after")
    Journal.resume(out, config, work()).close()
    drafter.write_text("after")
    refuse(lambda: Journal.resume(out, config, work()), BadInput, f"{drafter} has changed since the run in {out}")
    drafter.write_text("before")
    Journal.resume(out, config, work()).close()


def test_a_run_begins_among_no_other_files(tmp_path: Path) -> None:
    """A user's `config.yaml` in the directory was replaced."""
    check_folder(tmp_path / "new")
    check_folder(tmp_path)
    (tmp_path / "config.yaml").write_text("# three weeks of notes")
    refuse(lambda: check_folder(tmp_path), BadInput, f"{tmp_path} is not empty", "choose another --out")


@pytest.mark.parametrize(
    ("config", "also", "reserved"),
    [
        (DemoConfig(prompts=3), "", True),
        (DemoConfig(prompts=3), "rounds.parquet", False),
        (SweepConfig(), "", False),
        (SweepConfig(), "points", False),
    ],
)
def test_only_a_demo_reserves_a_directory_for_its_ue(config: Config, also: str, reserved: bool, tmp_path: Path) -> None:
    """The `config.yaml` of a sweep that was interrupted, or still running, was replaced."""
    with held(tmp_path, ""):
        save(config, tmp_path / "config.yaml")
        (tmp_path / "profile.yaml").touch()
        if also:
            (tmp_path / also).touch()
        if reserved:
            check_folder(tmp_path)
        else:
            refuse(lambda: check_folder(tmp_path), BadInput, f"{tmp_path} is not empty", "choose another --out")


def welcome(weights: str = "abc", model: str = "m") -> Welcome:
    return Welcome(
        version=VERSION, model=model, hidden_size=1, vocab_size=9, end_ids=(1, 2), protocols=(), max_window=1,
        max_positions=1, weights=weights,
    )  # fmt: skip


def test_a_run_goes_on_with_the_same_target_only(tmp_path: Path) -> None:
    journal = Journal.begin(tmp_path, CONFIG, work())
    journal.greet(welcome())
    journal.add(outcome(0))
    journal.close()
    size = (tmp_path / NAME).stat().st_size
    for _ in range(2):
        again = Journal.resume(tmp_path, CONFIG, work())
        assert again.done == [outcome(0)]
        refuse(
            lambda again=again: again.greet(welcome("xyz")),  # type: ignore[misc]
            BadInput,
            f"the BS serves another model than the run in {tmp_path} began with: weights 'xyz', not 'abc'",
        )
        again.greet(welcome(model="renamed"))
        again.close()
        assert (tmp_path / NAME).stat().st_size == size


def test_a_run_that_ended_before_the_greeting_goes_on_with_any_target(tmp_path: Path) -> None:
    Journal.begin(tmp_path, CONFIG, work()).close()
    again = Journal.resume(tmp_path, CONFIG, work())
    again.greet(welcome("xyz"))
    again.close()
    third = Journal.resume(tmp_path, CONFIG, work())
    refuse(lambda: third.greet(welcome()), BadInput, "weights 'abc', not 'xyz'")
    third.close()


def test_an_unfinished_run_is_not_written_over(tmp_path: Path) -> None:
    journal = Journal.begin(tmp_path, CONFIG, work())
    journal.add(outcome(0))
    journal.close()
    before = (tmp_path / NAME).read_bytes()
    refuse(lambda: Journal.begin(tmp_path, CONFIG, work()), BadInput, "unfinished run", "--resume")
    assert (tmp_path / NAME).read_bytes() == before


KILLED = """
import os, signal
from pathlib import Path
from tests.experiments.runs.test_journal import CONFIG, Journal, work
os.fsync = lambda _: os.kill(os.getpid(), signal.{signal})
Journal.begin(Path({out!r}), CONFIG, work())
"""


@pytest.mark.parametrize("number", ["SIGINT", "SIGKILL"])
def test_a_run_that_ends_while_its_heading_is_written_can_begin_again(tmp_path: Path, number: str) -> None:
    """It left a journal without a heading, and neither a new run nor --resume took it."""
    out = tmp_path / "run"
    ended = subprocess.run([sys.executable, "-c", KILLED.format(signal=number, out=str(out))], check=False)
    assert ended.returncode == -getattr(signal, number)
    assert kept(out) == f"nothing is kept in {out}"
    refuse(lambda: Journal.resume(out, CONFIG, work()), BadInput, "no unfinished run")
    check_folder(out)
    journal = Journal.begin(out, CONFIG, work())
    journal.add(outcome(0))
    journal.close()
    again = Journal.resume(out, CONFIG, work())
    assert again.done == [outcome(0)]
    again.finish()
    assert number == "SIGKILL" or not list(out.iterdir())


@pytest.mark.parametrize("links", [True, False])
def test_of_two_runs_that_begin_at_once_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """A file system without hard links has the check before alone."""
    if not links:
        monkeypatch.setattr(os, "link", refuse_link)
    first = Journal.begin(tmp_path, CONFIG, work())
    if links:
        monkeypatch.setattr("testbed.experiments.runs.journal.check_new", lambda _: None)
    refuse(lambda: Journal.begin(tmp_path, CONFIG, work()), BadInput, NAME)
    first.add(outcome(0))
    first.close()
    again = Journal.resume(tmp_path, CONFIG, work())
    assert again.done == [outcome(0)] and [path.name for path in tmp_path.iterdir()] == [NAME]
    again.close()


def refuse_link(*_: object) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


def test_a_finished_run_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("{}")
    refuse(lambda: Journal.begin(tmp_path, CONFIG, work()), BadInput, "finished run", "another --out")
    refuse(lambda: Journal.resume(tmp_path, CONFIG, work()), BadInput, "finished run: nothing is left to resume")
    assert (tmp_path / "summary.json").read_text() == "{}" and len(list(tmp_path.iterdir())) == 1


def test_what_is_kept_is_said_with_the_way_to_go_on(tmp_path: Path) -> None:
    journal = Journal.begin(tmp_path, CONFIG, work())
    journal.add(outcome(0))
    journal.add(outcome(1))
    journal.close()
    assert kept(tmp_path) == f"finished requests kept in {tmp_path}: 2; resume with the same command and --resume"
    assert "--out DIR" in kept(None) and kept(tmp_path / "none") == f"nothing is kept in {tmp_path / 'none'}"


def test_a_heading_that_is_nested_deeply_is_refused(tmp_path: Path) -> None:
    heading = msgspec.msgpack.encode(Heading(1, {"a": 0}, "", b"x"))
    block = heading.replace(b"\xa1a\x00", b"\xa1a" + b"\x91" * 100_000 + b"\x00")
    (tmp_path / NAME).write_bytes(len(block).to_bytes(4, "big") + block)
    refuse(lambda: Journal.resume(tmp_path, CONFIG, work()), BadInput, "is not a journal of this version")


def test_a_heading_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    heading = msgspec.msgpack.encode({"schema": 1, "config": {}, "prompts": "PLACE", "identity": b""})
    block = heading.replace(b"PLACE", b"\xff\xfe\xff\xfe\xff")
    (tmp_path / NAME).write_bytes(len(block).to_bytes(4, "big") + block)
    with pytest.raises(BadInput, match="not a journal of this version"):
        Journal.resume(tmp_path, CONFIG, work())


def test_a_journal_that_is_a_link_is_not_resumed(tmp_path: Path) -> None:
    Journal.begin(tmp_path / "theirs", CONFIG, work()).close()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / NAME).symlink_to(tmp_path / "theirs" / NAME)
    refuse(lambda: Journal.resume(tmp_path / "run", CONFIG, work()), BadInput, f"{NAME} is a link")


def test_a_resumed_run_replays_its_trace_from_the_beginning(tmp_path: Path) -> None:
    before, after = (msgspec.structs.replace(CONFIG, csi=f"trace=a.csv,origin_s={at}") for at in (1.5, 9.25))
    Journal.begin(tmp_path, before, work()).close()
    Journal.resume(tmp_path, after, work()).close()
    other = msgspec.structs.replace(CONFIG, csi="trace=b.csv,origin_s=1.5")
    refuse(lambda: Journal.resume(tmp_path, other, work()), BadInput, "csi")


def test_there_must_be_something_to_go_on_with(tmp_path: Path) -> None:
    refuse(lambda: Journal.resume(tmp_path, CONFIG, work()), BadInput, "no unfinished run")
    (tmp_path / NAME).write_bytes(b"\0\0\0\5hello and more")
    refuse(lambda: Journal.resume(tmp_path, CONFIG, work()), BadInput, "not a journal of this version")
    (tmp_path / "file").write_text("")
    refuse(lambda: Journal.begin(tmp_path / "file", CONFIG, work()), BadInput, "file")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("buffering", [0, 8192])
def test_a_full_disk_is_one_line(buffering: int) -> None:
    path = Path("/dev/full")
    journal = Journal(path, path.open("r+b", buffering=buffering), b"", [], None)
    refuse(lambda: journal.add(outcome(0)), TestbedError, "cannot write /dev/full", "No space left")
    journal.close()  # says it no second time


def test_a_run_that_cannot_be_begun_leaves_no_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    refuse(lambda: Journal.begin(tmp_path / "run", CONFIG, work()), TestbedError, "cannot write", "No space left")
    monkeypatch.undo()
    Journal.begin(tmp_path / "run", CONFIG, work()).close()


def test_a_run_that_is_going_on_is_not_resumed_beside_it(tmp_path: Path) -> None:
    out = tmp_path / "run"
    journal = Journal.begin(out, CONFIG, work())
    journal.add(outcome(0))
    for _ in range(2):
        with pytest.raises(BadInput, match=rf"the run in {out} is still going on in another process"):
            Journal.resume(out, CONFIG, work())
    journal.add(outcome(1))
    journal.close()
    resumed = Journal.resume(out, CONFIG, work())
    assert [o.request for o in resumed.done] == [0, 1]
    with pytest.raises(BadInput, match="still going on"):
        Journal.resume(out, CONFIG, work())
    resumed.finish()
    assert not (out / NAME).exists()
