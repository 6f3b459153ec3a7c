"""Compiled mode on a CPU: the same outputs, and compiled code that a second start reads from disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from testbed.bs.engines.vllm.engine import VllmEngine
from testbed.errors import EngineError
from tests.bs.oracle import ask, tokens, verify_and_check
from tests.support.models import TOKENS
from tests.support.reference import Reference

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")

SCRIPT = """
import sys
from tests.bs.engines.vllm.test_compiled import rounds_in_compiled_mode
if __name__ == "__main__":
    rounds_in_compiled_mode(sys.argv[1])
"""


def rounds_in_compiled_mode(directory: str) -> None:
    """Runs in a process of its own: code stays compiled in a process. Prints vLLM's counters of compilations."""
    reference, rng = Reference(Path(directory), TOKENS), np.random.default_rng(0)
    engine = VllmEngine(
        directory, vocab_size=TOKENS, max_batch_tokens=64, compiled=True, extra={"kv_cache_memory_bytes": 64 << 20}
    )
    sessions = {name: tokens(rng, length).tolist() for name, length in (("a", 32), ("b", 5), ("c", 150))}
    verify_and_check(engine, reference, *(ask(name, prefix) for name, prefix in sessions.items()))
    for _ in range(15):
        drafts = {name: tokens(rng, int(rng.integers(0, 17))).tolist() for name in sessions if rng.random() < 0.7}
        rounds = [ask(name, sessions[name], draft) for name, draft in drafts.items()]
        for (name, draft), result in zip(drafts.items(), verify_and_check(engine, reference, *rounds), strict=True):
            assert result.cached == len(sessions[name]) - 1
            sessions[name] += [*draft[: int(rng.integers(len(draft) + 1))], int(tokens(rng, 1)[0])]
    engine.close()
    from vllm.compilation.counter import compilation_counter

    print(
        json.dumps(
            {"compiled": compilation_counter.num_aot_compiles, "read": compilation_counter.num_aot_artifacts_loaded}
        )
    )


@pytest.mark.long
@pytest.mark.parametrize("kind", ["llama", "qwen2-padded", "qwen3"])
def test_compiled_once_and_equal_to_transformers(kind: str, random_models: dict[str, Path], tmp_path: Path) -> None:
    """Windows of many lengths and a prompt in chunks, with other passes than those that the code was traced with."""
    environment = {**os.environ, "VLLM_CACHE_ROOT": str(tmp_path / "vllm")}
    counts = []
    for start in ("first", "second"):
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path / start)  # such as /tmp, which a restart empties
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(random_models[kind])], capture_output=True, text=True, timeout=900,
            env=environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        counts.append(json.loads(done.stdout.splitlines()[-1]))
    assert counts == [{"compiled": 1, "read": 0}, {"compiled": 0, "read": 1}]


def test_without_a_compiler(random_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(EngineError, match=r"needs a C\+\+ compiler, and no-such-compiler is not installed") as caught:
        VllmEngine(random_models["llama"], compiled=True)
    assert "\n" not in str(caught.value)
