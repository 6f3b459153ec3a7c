"""A sweep killed at random moments in processes of their own, small enough for every run of the tests; more of it, with
whole command lines, in tests/e2e/test_sweep.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from testbed.experiments.sweep.grid import load_sweep, run_sweep

SWEEP = """
run: {channel: 'kind=virtual,profile=wisv,rtt_ms=50', methods: [greedy], prompts: 1, max_tokens: 16,
  engine: transformers}
grid: {window: [4, 8], rate_mbps: [5, 50, 500], per: [0, 0.1]}
"""
POINTS = 12
KILLS = 3
AHEAD = 1
"""Points that a process may finish beyond the one after which it is to be killed; then it waits for that."""
SCRIPT = """
import os, pathlib, random, signal, sys, time
import llama_cpp, testbed.bs.engines.transformers, torch._dynamo, transformers.models.llama.modeling_llama  # once
from testbed.experiments.sweep.grid import load_sweep, run_sweep

config, out, kills, ahead = load_sweep(pathlib.Path(sys.argv[1])), pathlib.Path(sys.argv[2]), *map(int, sys.argv[3:])
dice = random.Random(1)

def finished():
    return len(list(out.glob("points/*/summary.json")))

def sweep(most):
    if process := os.fork():
        return process
    try:
        run_sweep(config, out, lambda *_: finished() >= most and time.sleep(600))
        os._exit(0)
    finally:
        os._exit(1)

for kill in range(kills):
    wanted = finished() + dice.randint(1, 2)
    process = sweep(wanted + ahead)
    while finished() < wanted and os.waitpid(process, os.WNOHANG) == (0, 0):
        time.sleep(0.001)
    time.sleep(dice.uniform(0, 0.1))
    os.kill(process, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
    print(finished(), flush=True)
process = sweep(10**6)
assert os.waitpid(process, 0)[1] == 0
"""


def test_a_sweep_killed_three_times_has_the_rows_of_one_never_killed(tmp_path: Path) -> None:
    path, out = tmp_path / "sweep.yaml", tmp_path / "out"
    path.write_text(SWEEP)
    arguments = [str(path), str(out), str(KILLS), str(AHEAD)]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], check=False, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    finished = [int(word) for word in done.stdout.split()]
    assert len(finished) == KILLS and 0 < finished[0] < finished[1] < finished[2] < POINTS
    whole = run_sweep(load_sweep(path), tmp_path / "whole", lambda *_: None)
    found = json.loads((out / "summary.json").read_text())["rows"]
    assert len(found) == POINTS and found == json.loads(json.dumps(whole["rows"]))
    assert not [left for left in out.glob("points/**/.*") if left.is_file()]  # halves of files
