"""Ctrl-C on a terminal, which strikes a command and all its processes: one line, no process left, and what was done so
far is whole and taken up by the same command again.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.bs.scheduling.estimator_csv import read_samples
from testbed.experiments.results.directory import read_summary

SWEEP = """
run: {channel: 'kind=virtual,profile=wisv,rtt_ms=50', methods: [greedy], prompts: 2, max_tokens: 24,
  engine: transformers}
grid: {window: [4, 8], rate_mbps: [5, 500]}
"""
SMALL = ["--set", "prompt=[20, 60]", "--set", "response=[10, 30]", "--set", "kv_tokens=2000", "--set", "max_batch=2"]
SMALL += ["--set", "warmup_s=3", "--set", "judged=8", "--horizon-s", "5"]
COST = '{"cost": {"c1_draft": 1e-10, "c2_draft": 0.002, "c1_verify": 1e-10, "c2_verify": 0.004}}'
PATIENCE_S = 240.0


def interrupted(
    arguments: list[str], log: Path, begun: Callable[[], bool], pause_s: float = 0.0, alone: bool = False
) -> None:
    """Start a command as a shell does, in a process group of its own, and interrupt all of it, or only the command
    itself (`alone`), once it has begun; what it says goes into `log`.
    """
    command = [sys.executable, "-m", "testbed", *arguments]
    with log.open("w") as stream:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stream, text=True, start_new_session=True)
    end_s = time.monotonic() + PATIENCE_S
    try:
        while not begun():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end_s, "it never began"
            time.sleep(0.02)
        time.sleep(pause_s)
        (os.kill if alone else os.killpg)(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    said = log.read_text()
    assert process.returncode == 130 and said.endswith("testbed: interrupted\n") and "Traceback" not in said, said
    assert output == ""
    gone(process.pid)


def gone(group: int) -> None:
    """No process of a group is left, soon."""
    for _ in range(500):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    raise AssertionError("processes are left")


def again(arguments: list[str]) -> str:
    """The same command, left alone."""
    command = [sys.executable, "-m", "testbed", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def whole(paths: list[Path]) -> dict[Path, int]:
    """JSON files that can be read, and when each was written."""
    for path in paths:
        json.loads(path.read_text())
    return {path: path.stat().st_mtime_ns for path in paths}


def test_a_search_for_capacities(tmp_path: Path) -> None:
    out = tmp_path / "study"
    command = [
        "capacity",
        *SMALL,
        "--systems",
        "fcfs-cache,sled",
        "--classes",
        "12",
        "--jobs",
        "2",
        "--out",
        str(out),
    ]
    points = out / "points"
    interrupted([*command, "--json"], tmp_path / "log", lambda: len(list(points.glob("*.json"))) >= 2)
    done = whole(list(points.glob("*.json")))
    assert not (out / "summary.json").exists()
    again(command)
    assert len(read_summary(out)["rows"]) == 2
    assert {path: path.stat().st_mtime_ns for path in done} == done


def test_measuring_an_engine(tmp_path: Path) -> None:
    out, log = tmp_path / "passes.csv", tmp_path / "log"
    command = ["estimator", "profile", "--engine", "synthetic", "--repeats", "100", "--out", str(out)]
    interrupted(command, log, lambda: "measuring 17" in log.read_text(), 1.5)
    assert 1 <= len(read_samples(out)) < 170
    assert f"wrote {out}: {len(read_samples(out))} of" in log.read_text()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.long
def test_a_sweep(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    command = ["sweep", str(tmp_path / "sweep.yaml"), "--out", str(out)]
    interrupted(command, tmp_path / "log", lambda: len(list(out.glob("points/*/summary.json"))) >= 1)
    done = whole(list(out.glob("points/*/summary.json")))
    assert 1 <= len(done) < 4 and not (out / "summary.json").exists()
    again(["report", str(out), "--out", str(tmp_path / "report")])  # of what there is
    again(command)
    assert len(read_summary(out)["rows"]) == 4
    assert {path: path.stat().st_mtime_ns for path in done} == done


@pytest.mark.long
def test_measuring_a_base_station_under_load(tmp_path: Path) -> None:
    out = tmp_path / "load"
    command = [
        "latency", "measure", "--engine", "llama", "--windows", "0,2", "--rates", "1", "--requests", "8",
        "--at-once", "4", "--max-tokens", "16", "--out", str(out),
    ]  # fmt: skip
    log = tmp_path / "log"
    interrupted(command, log, lambda: "window 0" in log.read_text(), 3.0)
    done = whole([out / "outputs.json"])
    interrupted(command, log, lambda: "window 0" in log.read_text())  # what was there was not measured again
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert {path.name for path in out.glob(".*")} <= {".lock"} and not (out / "summary.json").exists()


@pytest.mark.long
def test_carrying_a_plan_out(tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    (tmp_path / "cost.json").write_text(COST)
    command = [
        "optim", "run", "--engine", "transformers", "--tasks", "3", "--max-tokens", "12", "--window", "2", "--repeats",
        "40", "--modes", "sequential,pipeline", "--cost", str(tmp_path / "cost.json"), "--out", str(out),
    ]  # fmt: skip
    interrupted(command, log, lambda: "run 4 of" in log.read_text())
    with (out / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 3 and {row["mode"] for row in rows} <= {"sequential", "pipeline", "target-only"}
    assert {path.name for path in out.iterdir()} >= {"config.yaml", "plan.json", "steps.csv", "uploads.csv"}
    assert not (out / "summary.json").exists()


def test_a_load_whose_base_station_starts(tmp_path: Path) -> None:
    """It went on until the base station had decoded everything."""
    (tmp_path / "ramp.yaml").write_text(
        "{kind: real, engine: transformers, windows: [0, 2], alpha: 0.75, steps: 2, requests: 20, seeds: [0]}"
    )
    log = tmp_path / "log"
    asked = ["latency", "ramp", "--config", str(tmp_path / "ramp.yaml"), "--out", str(tmp_path / "out")]
    interrupted(asked, log, lambda: "the target's own outputs" in log.read_text(), alone=True)


@pytest.mark.parametrize("alone", [False, True], ids=["the terminal's processes", "the demo alone"])
def test_a_demo(tmp_path: Path, alone: bool) -> None:
    """It said "interrupted" twice, and without the terminal nothing about what is kept."""
    out, log = tmp_path / "run", tmp_path / "log"
    command = ["demo", "--engine", "llama", "--methods", "target-only", "--prompts", "200", "--out", str(out)]
    journal = out / "journal"
    interrupted(command, log, lambda: journal.exists() and journal.stat().st_size > 3000, alone=alone)
    said = log.read_text()
    assert said.count("interrupted") == 1
    assert f"finished requests kept in {out}: " in said and "resume with the same command and --resume" in said
