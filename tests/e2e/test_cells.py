"""Several cells as processes: on Ray, and killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PATIENCE_S = 400
CELLS = """
seconds: 4
warmup_s: 1
radio: {bandwidth_hz: 10.0e6, duplex: tdd, wired_ms: 2.0, source: {kind: model}}
cells: {stations: [{name: west, at_m: [0, 0]}, {name: east, at_m: [200, 0], azimuths_deg: [90, 270]}]}
ues:
  - {name: driving, count: 6, protocol: fh, path_m: [[60, 10], [140, 10]], speed_mps: 30}
  - {name: walking, count: 6, distance_m: [10, 100], speed_mps: 2}
"""

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def command(path: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "testbed", "cell", "run", str(path), "--json", *more]


def printed(path: Path, *more: str) -> object:
    environment = {**os.environ, "RAY_ADDRESS": ""}
    done = subprocess.run(
        command(path, *more), check=False, timeout=PATIENCE_S, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_ray_gives_the_rows_of_one_process(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    (path := tmp_path / "cells.yaml").write_text(CELLS)
    alone = printed(path)
    assert isinstance(alone, dict)
    assert alone["rows"][0]["handovers_per_ue"] >= 1
    assert printed(path, "--executor", "ray", "--workers", "2") == alone


def test_a_process_that_is_killed_ends_the_run_with_one_line(tmp_path: Path) -> None:
    (path := tmp_path / "cells.yaml").write_text(CELLS.replace("seconds: 4", "seconds: 4000"))
    run = subprocess.Popen(
        command(path, "--workers", "2"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        end, children = time.monotonic() + PATIENCE_S, list[str]()
        while len(children) < 2 and time.monotonic() < end:
            time.sleep(0.1)
            found = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
            children = [pid for pid in found if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        time.sleep(2.0)
        os.kill(int(children[-1]), signal.SIGKILL)
        _, errors = run.communicate(timeout=PATIENCE_S)
    finally:
        run.kill()
        run.wait()
    assert run.returncode == 1
    assert errors.strip().splitlines()[-1].endswith("was killed; begin the run again")
