"""Threads of engines and drafters: how many, and how long idle ones poll."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.bs.engines.target import Target
from testbed.llama.library import default_threads
from testbed.process.cores import LARGE_BYTES, POLLS, available_cores, model_threads

LLAMA = "from testbed.llama.library import library; library()"
TORCH = "from testbed.bs.engines.registry import leave_a_core; leave_a_core({}); import torch"
VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "LD_PRELOAD")
"""Removed from the environment; vLLM, when other tests import it, preloads an OpenMP library for child processes."""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh process in which OpenMP says what it has read from its environment."""
    clean = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True,
        env={**clean, "OMP_DISPLAY_ENV": "verbose", **environment},
    )  # fmt: skip


def setting(name: str, done: subprocess.CompletedProcess[str]) -> int:
    """Settings reported by the one OpenMP library that is loaded."""
    (found,) = re.findall(rf"{name} = '(\d+)'", done.stderr)
    return int(found)


@pytest.mark.parametrize("code", [LLAMA, TORCH.format("")], ids=["llama.cpp", "torch"])
def test_idle_threads_sleep_soon(code: str) -> None:
    assert setting("GOMP_SPINCOUNT", run(code)) == POLLS
    assert setting("GOMP_SPINCOUNT", run(code, GOMP_SPINCOUNT="77")) == 77
    assert setting("GOMP_SPINCOUNT", run(code, OMP_WAIT_POLICY="passive")) == 0


@pytest.mark.parametrize(
    ("asked", "environment", "expected"),
    [
        ("", {}, max(1, available_cores() - 1)),
        ("None, 2 * 2**30", {}, max(min(available_cores(), 2), available_cores() - 1)),
        ("", {"OMP_NUM_THREADS": "3"}, 3),
        ("2", {"OMP_NUM_THREADS": "3"}, 2),
    ],
)
def test_threads_of_an_engine(asked: str, environment: dict[str, str], expected: int) -> None:
    """An option has precedence over the environment, which has precedence over the default."""
    assert setting("OMP_NUM_THREADS", run(TORCH.format(asked), **environment)) == expected


@pytest.mark.parametrize(("cores", "small", "large"), [(1, 1, 1), (2, 1, 2), (3, 2, 2), (4, 3, 3), (16, 15, 15)])
def test_large_models_take_both_of_two_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, small: int, large: int
) -> None:
    monkeypatch.setattr("testbed.process.cores.available_cores", lambda: cores)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert (model_threads(LARGE_BYTES - 1), model_threads(LARGE_BYTES)) == (small, large)
    assert default_threads(LARGE_BYTES) == min(large, 8)


def test_the_size_of_a_targets_weights(tmp_path: Path) -> None:
    target = Target(tmp_path, "", 8, (), 64)
    for name, size in (("model-1.safetensors", 300), ("model-2.safetensors", 200), ("model-3.safetensors", 100)):
        (tmp_path / name).write_bytes(bytes(size))
    named = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": named}))
    assert target.weights_bytes == 500
    assert replace(target, path=tmp_path / "model-1.safetensors").weights_bytes == 300


def test_cores_that_a_process_may_use() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
        "from testbed.process.cores import available_cores"
    )
    assert run(f"{code}; print(available_cores())").stdout.split() == ["1"]
