"""Field runs as users start them: the rehearsal in small and, on demand, whole; agents as processes, behind keys."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.channel.trace import read_trace
from testbed.cli.main import main
from testbed.config import ServeConfig
from testbed.experiments.field.devices.agents import AgentConnection
from testbed.experiments.runs.journal import NAME as JOURNAL
from testbed.experiments.runs.processes import base_station
from testbed.models.bundle import bundled

BRIEF = """
max_tokens: 24
warmup: 0
handshakes: 6
iperf3_s: 0
threads: 1
pad: wisv
"""
SMALL = (
    BRIEF
    + """\
name: small
places: [{name: near, distance_m: 2}, {name: far, distance_m: 40}]
methods:
  - {name: greedy, protocol: greedy, window: 6}
  - {name: wisv, protocol: fh, window: 6, threshold: 0.5}
repeats: 1
prompts: 2
model: {anchors: [[2, 50], [40, 1]], bandwidth_hz: 2000000, fading: none, seconds: 60}
judge: head
head: bundled
"""
)

pytestmark = pytest.mark.slow


def run(*arguments: str, code: int = 0) -> Any:
    """Run a command here; its document, or what it said. What it starts are processes of their own."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        found = main(arguments)
    assert found == code, err.getvalue()
    return json.loads(out.getvalue()) if code == 0 and "--json" in arguments else err.getvalue()


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A rehearsal in small, and its document."""
    folder = tmp_path_factory.mktemp("rehearsal")
    (folder / "small.yaml").write_text(SMALL)
    out = folder / "run"
    return out, run("field", "run", str(folder / "small.yaml"), "--emulated", "--out", str(out), "--json")


def test_a_rehearsal_leaves_all_that_its_analysis_needs(rehearsed: tuple[Path, dict[str, Any]]) -> None:
    out, document = rehearsed
    assert document["emulated"] and document["left"] == 0 and not document["notes"]
    rows = {(row["place"], row["setting"], row["way"]): row for row in document["rows"]}
    assert len(rows) == 2 * 2 * 3
    for way in ("field", "replay", "virtual"):
        assert 0 <= rows["far", "wisv", way]["permissiveness"] <= 1
        assert rows["far", "wisv", way]["gain"] > 0
    for way in ("field", "virtual"):  # 24 KB a round take 200 ms at 40 m, on any machine
        assert rows["near", "wisv", way]["latency_s"] < rows["far", "wisv", way]["latency_s"]
    learnt = read_trace(out / "cells" / "far" / "0-wisv" / "link.csv").uplink_mbps  # from the rounds alone, 100 before
    assert learnt.min() < 60
    # greedy output depends on no link: real sockets and virtual time decode the same tokens
    assert all(
        rows[place, "greedy", way]["same_outputs"] == 1 for place in ("near", "far") for way in ("replay", "virtual")
    )
    for place in ("near", "far"):
        recorded = read_trace(out / "places" / place / "link.csv")
        assert recorded.means()["rtt_ms"] > 5  # type: ignore[operator]
    page = (out / "report.html").read_text()
    for figure in ("latency_s", "gain", "permissiveness"):
        assert f"alt='{figure}'" in page
    visits = [event for event in document["visits"] if event["event"] == "visit"]
    assert [visit["place"] for visit in visits] == ["near", "far"]
    assert abs(visits[0]["measured"]["clock"]["offset_s"]) < 1  # one machine, one clock


def test_a_second_run_has_nothing_to_do_and_another_plan_is_refused(rehearsed: tuple[Path, dict[str, Any]]) -> None:
    out, _ = rehearsed
    plan = out.parent / "small.yaml"
    before = (out / "log.jsonl").read_bytes()
    found = run("field", "run", str(plan), "--emulated", "--out", str(out), "--check", "--json")
    assert found["left"] == 0 and [place["done"] for place in found["places"]] == [2, 2]
    assert (out / "log.jsonl").read_bytes() == before
    moved = out.parent / "moved.yaml"
    moved.write_text(SMALL.replace("distance_m: 40", "distance_m: 30"))
    said = run("field", "run", str(moved), "--emulated", "--out", str(out), code=2)
    assert "far was at 40 m before, not at 30 m" in said and len(said.splitlines()) == 1
    said = run("field", "run", str(plan), "--out", str(out), code=2)
    assert "somebody must say where the UE is" in said
    assert "was emulated" in run("field", "run", str(plan), "--yes", "--out", str(out), code=2)
    rows = run("field", "report", str(out), "--no-replay", "--json")["rows"]
    assert {row["way"] for row in rows} == {"field"}


TOGETHER = (
    BRIEF
    + """\
name: both
places: [{name: left, distance_m: 40}, {name: right, distance_m: 41}]
methods: [{name: fh, protocol: fh, window: 6}]
together: true
repeats: 1
prompts: 3
model: {anchors: [[2, 50], [40, 1]], bandwidth_hz: 2000000, fading: none, jitter_ms: 0, seconds: 60}
engine: llama
"""
)


def test_ues_at_once_take_each_others_link_and_nothing_else(tmp_path: Path) -> None:
    """24 KB a round take 200 ms of the radio, so that two UEs wait for each other on any machine."""
    (tmp_path / "both.yaml").write_text(TOGETHER)
    out = tmp_path / "run"
    document = run("field", "run", str(tmp_path / "both.yaml"), "--emulated", "--out", str(out), "--json")
    assert document["left"] == 0 and not document["notes"] and set(document["agreement"]) <= {"replay", "virtual"}
    left, right, both = document["together"]
    assert (left["place"], right["place"], both["place"]) == ("left", "right", "all places")
    for row in (left, right):
        assert row["overlap"] > 0.3 and row["share"] < 0.9 and row["link_ratio"] > 1.2
    assert both["goodput_tps"] == pytest.approx(left["goodput_tps"] + right["goodput_tps"])
    rows = {(row["place"], row["way"]): row for row in document["rows"]}
    assert all(rows[place, "together"]["same_outputs"] == 1 for place in ("left", "right"))
    assert "All places at the same time" in (out / "report.html").read_text()


# ---------------------------------------------------------------- agents


@contextlib.contextmanager
def agent(keys: Path, workdir: Path, listen: str = "tcp://127.0.0.1:*") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """An agent as a process, and where it listens."""
    command = [sys.executable, "-m", "testbed", "ue", "agent", "--json", "--listen", listen]
    command += ["--keys", str(keys), "--workdir", str(workdir)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    try:
        yield process, json.loads(_line(process))["listen"]
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _line(process: subprocess.Popen[str]) -> str:
    said: queue.SimpleQueue[str] = queue.SimpleQueue()
    assert process.stdout is not None
    threading.Thread(target=lambda: said.put(process.stdout.readline()), daemon=True).start()  # type: ignore[union-attr]
    return said.get(timeout=60)


def until(there: Any, wait_s: float = 120.0) -> None:
    """Wait for something to become true."""
    end_s = time.monotonic() + wait_s
    while not there():
        assert time.monotonic() < end_s
        time.sleep(0.02)


@pytest.fixture(scope="module")
def station() -> Iterator[str]:
    model = str(bundled().require("target"))
    config = ServeConfig(engine="transformers", model=model, threads=1, bind="tcp://127.0.0.1:*")
    with base_station(config) as ready:
        yield ready["bind"]


@pytest.mark.long
def test_an_agent_that_is_killed_and_a_lab_machine_that_is_lost_cost_nothing(station: str, tmp_path: Path) -> None:
    """The lab machine orders two runs and is killed; so is the agent, in the midst of the first. Both come back."""
    keys, workdir = tmp_path / "keys", tmp_path / "agent"
    run("keys", "new", str(keys))
    run("keys", "new", str(keys), "--ue", "lab", "--out", str(tmp_path / "lab"))
    with contextlib.ExitStack() as held:
        first, address = held.enter_context(agent(keys, workdir))
        plan = tmp_path / "plan.yaml"
        place = f"{{name: desk, distance_m: 2, ue: '{address}', ue_keys: '{tmp_path / 'lab'}'}}"
        plan.write_text(
            f"{{name: lost, bs: '{station}', places: [{place}], repeats: 1, prompts: 6, warmup: 0, handshakes: 6, "
            "methods: [{name: greedy, protocol: greedy}, {name: sh, protocol: sh}]}"
        )
        out = tmp_path / "run"
        arguments = ["field", "run", str(plan), "--yes", "--no-replay", "--out", str(out), "--json"]
        lab = subprocess.Popen(
            [sys.executable, "-m", "testbed", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        orders = workdir / "orders"
        until(lambda: any(path.stat().st_size > 2500 for path in orders.glob(f"lost-desk-*/result/{JOURNAL}")))
        for process in (lab, first):
            process.send_signal(signal.SIGKILL)
            process.wait()
        journal = next(iter(orders.glob(f"lost-desk-*/result/{JOURNAL}")))
        kept, before = journal.read_bytes(), journal.stat().st_size
        assert not list(out.glob("cells/*/*/summary.json"))
        held.enter_context(agent(keys, workdir, address))
        # nobody asks, and it goes on: both runs end, the first with the prompts that it had
        until(lambda: (journal.exists() and journal.stat().st_size > before) or not journal.exists())
        assert not journal.exists() or journal.read_bytes().startswith(kept)
        until(lambda: len(list(orders.glob("lost-desk-0-*/state.json"))) == 2)
        found = run("field", "collect", str(out), "--json")
        assert (found["collected"], found["left"]) == (2, 0)
        assert not list(orders.glob("lost-desk-0-*"))  # collected, and dropped
        document = run(*arguments)
    assert {row["requests"] for row in document["rows"]} == {6}
    tokens = {row["setting"]: row["aal"] for row in document["rows"]}
    assert tokens["greedy"] == tokens["sh"]  # strict: the same rounds
    for cell in out.glob("cells/desk/*"):
        assert json.loads((cell / "summary.json").read_text())["rows"][0]["requests"] == 6


def test_agents_start_together(station: str, tmp_path: Path) -> None:
    """Two agents decode the same prompts at the same time, each into a directory of its own."""
    with contextlib.ExitStack() as held:
        places = []
        for name in ("left", "right"):
            keys = tmp_path / f"{name}-keys"
            run("keys", "new", str(keys))
            run("keys", "new", str(keys), "--ue", "lab", "--out", str(tmp_path / f"{name}-lab"))
            _, address = held.enter_context(agent(keys, tmp_path / name))
            places.append(f"{{name: {name}, distance_m: 2, ue: '{address}', ue_keys: '{tmp_path / name}-lab'}}")
        plan = tmp_path / "plan.yaml"
        content = (
            f"{{name: both, bs: '{station}', together: true, places: [{', '.join(places)}], repeats: 1, prompts: 4, "
            "warmup: 0, handshakes: 6, methods: [{name: greedy, protocol: greedy}]}"
        )
        plan.write_text(
            content.replace(places[1].split("ue: ")[1].split(",")[0], places[0].split("ue: ")[1].split(",")[0])
        )
        refused = run("field", "run", str(plan), "--yes", "--out", str(tmp_path / "same"), code=2)
        assert "an agent of its own at every place" in refused
        plan.write_text(content)
        arguments = ["field", "run", str(plan), "--yes", "--no-replay", "--out", str(tmp_path / "run"), "--json"]
        document = run(*arguments)
    assert document["left"] == 0
    *ues, whole = document["together"]
    assert [row["place"] for row in ues] == ["left", "right"] and whole["overlap"] > 0
    assert {row["same_outputs"] for row in document["rows"] if row["way"] == "together"} == {1.0}


def test_deploy_asks_agents_how_they_stand_and_passes_over_silent_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = tmp_path / "keys"
    run("keys", "new", str(keys))
    run("keys", "new", str(keys), "--ue", "lab", "--out", str(tmp_path / "lab"))
    drafter = tmp_path / "d.gguf"
    drafter.write_bytes(os.urandom(3 * 2**20 + 7))
    with agent(keys, tmp_path / "agent") as (process, address):
        plan = tmp_path / "plan.yaml"
        place = f"name: desk, distance_m: 2, ue: '{address}', ue_keys: '{tmp_path / 'lab'}'"
        plan.write_text(f"{{drafter: '{drafter}', places: [{{{place}}}], methods: [{{name: g, protocol: greedy}}]}}")
        (row,) = run("field", "deploy", str(plan), "--json")["agents"]
        (stored,) = (tmp_path / "agent" / "files").glob(
            f".*/{row['files'][0]}"
        )  # in the folder of the lab machine's key
        assert stored.read_bytes() == drafter.read_bytes()
        assert abs(row["clock"]["offset_s"]) <= row["clock"]["error_s"]  # one machine, one clock
        assert row["places"] == ["desk"] and row["error"] is None
        silent = "name: lost, distance_m: 9, ue: 'tcp://127.0.0.1:1'"
        plan.write_text(f"{{places: [{{{silent}}}, {{{place}}}], methods: [{{name: g, protocol: greedy}}]}}")
        monkeypatch.setattr(
            "testbed.experiments.field.fleet.AgentConnection", functools.partial(AgentConnection, timeout_s=5.0)
        )
        assert main(["field", "deploy", str(plan), "--json"]) == 1
        told = capsys.readouterr()
        rows = {tuple(row["places"]): row for row in json.loads(told.out)["agents"]}
        assert "did not answer" in rows["lost",]["error"] and rows["desk",]["host"]
        assert told.err.splitlines()[-1].startswith("testbed: tcp://127.0.0.1:1 did not answer")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_an_order_is_cancelled_from_the_command_line(tmp_path: Path) -> None:
    keys, workdir, plan = tmp_path / "keys", tmp_path / "agent", tmp_path / "plan.yaml"
    run("keys", "new", str(keys))
    run("keys", "new", str(keys), "--ue", "lab", "--out", str(tmp_path / "lab"))
    with agent(keys, workdir) as (_, address):
        place = f"{{name: desk, distance_m: 2, ue: '{address}', ue_keys: '{tmp_path / 'lab'}'}}"
        plan.write_text(
            f"{{name: hall, bs: 'tcp://127.0.0.1:9', places: [{place}], methods: [{{name: g, protocol: greedy}}]}}"
        )
        command = [sys.executable, "-m", "testbed", "field", "run", str(plan), "--yes", "--out", str(tmp_path / "run")]
        lab = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        until(lambda: list((workdir / "orders").glob("hall-desk-*/result")))  # measuring a link to nowhere
        assert "known: desk" in run("field", "cancel", str(plan), "--place", "far", code=2)
        assert run("field", "cancel", str(plan), "--json") == {"cancelled": 1, "silent": [], "failed": []}
        _, said = lab.communicate(timeout=60)
    assert lab.returncode == 1 and "failed: cancelled; its runs are postponed" in said


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_whole_rehearsal_takes_less_than_ten_minutes_and_virtual_time_agrees(tmp_path: Path) -> None:
    """Results are checked on any machine; duration and the error of virtual time only on an idle one."""
    began_s, busy_s, own_s = time.monotonic(), machine_s(), sum(os.times()[:4])
    document = run("field", "run", "rehearsal", "--emulated", "--out", str(tmp_path / "run"), "--json")
    wall_s, own_s = time.monotonic() - began_s, sum(os.times()[:4]) - own_s
    others = (machine_s() - busy_s - own_s) / wall_s
    assert own_s < 600
    assert len(document["rows"]) == 4 * 3 * 3 and not document["notes"]
    assert all(
        row["same_outputs"] == 1 for row in document["rows"] if row["setting"] == "greedy" and row["way"] != "field"
    )
    off = document["agreement"]["virtual"]
    if others > 0.2:
        pytest.skip(f"others used {others:.1f} processors meanwhile: {wall_s:.0f} s, virtual time off by {off:.1%}")
    assert wall_s < 600
    assert off < 0.1


def machine_s() -> float:
    """Processor time that this machine has spent on programs since it started (proc_stat(5): user, nice, system)."""
    ticks = Path("/proc/stat").read_text().split(maxsplit=4)[1:4]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
