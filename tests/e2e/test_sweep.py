"""Sweeps as processes: killed at random moments, in several workers, on Ray; always the same rows."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from testbed.cli.main import main

SWEEP = """
run: {channel: 'kind=virtual,profile=wisv,rtt_ms=50', methods: [greedy, fh], prompts: 2, max_tokens: 32,
  engine: transformers}
grid: {window: [4, 8], rate_mbps: [5, 500], per: [0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3]}
"""
POINTS = 32
"""Enough for three kills before the last point on a fast machine, too."""
PATIENCE_S = 400

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The sweep's file, and its rows as one process makes them that is left alone."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "sweep.yaml").write_text(SWEEP)
    subprocess.run(command(folder / "sweep.yaml", folder / "whole"), check=True, timeout=PATIENCE_S)
    return folder / "sweep.yaml", rows_of(folder / "whole")


def command(path: Path, out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "testbed", "sweep", str(path), "--out", str(out), *more]


def rows_of(out: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((out / "summary.json").read_text())["rows"]
    return found


def finished(out: Path) -> int:
    return len(list(out.glob("points/*/summary.json")))


def test_a_sweep_killed_three_times_has_the_rows_of_one_never_killed(
    rows: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    dice = random.Random(1)
    out, before = tmp_path / "out", 0
    for kill in range(3):
        process = subprocess.Popen(command(rows[0], out), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        wanted, end = before + dice.randint(1, 2), time.monotonic() + PATIENCE_S
        while finished(out) < wanted and process.poll() is None and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(dice.uniform(0, 0.1))
        process.send_signal(signal.SIGKILL)
        assert process.wait(PATIENCE_S) == -signal.SIGKILL, f"ended before kill {kill + 1}"
        assert wanted <= finished(out) < POINTS
        before = finished(out)
    made = {path: path.stat().st_mtime_ns for path in out.glob("points/*/summary.json")}
    subprocess.run(command(rows[0], out), check=True, timeout=PATIENCE_S)
    assert all(path.stat().st_mtime_ns == when for path, when in made.items())  # what was done was not done again
    assert rows_of(out) == rows[1]
    assert not [path for path in out.rglob(".*") if path.is_file() and path.name != ".lock" and path.parent != out]


def test_workers_make_the_same_rows(rows: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    subprocess.run(command(rows[0], tmp_path / "out", "--workers", "2"), check=True, timeout=PATIENCE_S)
    assert rows_of(tmp_path / "out") == rows[1]


def test_ray_makes_the_same_rows(rows: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    done = subprocess.run(
        command(rows[0], tmp_path / "out", "--executor", "ray", "--workers", "2"),
        check=False, timeout=PATIENCE_S, capture_output=True, text=True, env={**os.environ, "RAY_ADDRESS": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert rows_of(tmp_path / "out") == rows[1]


def test_a_directory_where_a_sweep_runs_is_refused(
    rows: tuple[Path, list[dict[str, Any]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen(command(rows[0], out), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + PATIENCE_S
        while not (out / "config.yaml").exists() and time.monotonic() < end:
            time.sleep(0.01)
        assert main(["sweep", str(rows[0]), "--out", str(out)]) == 2
        assert "another process is running the sweep" in capsys.readouterr().err
    finally:
        process.kill()
        process.wait()
    assert main(["sweep", str(rows[0]), "--dry-run", "--out", str(out)]) == 0
