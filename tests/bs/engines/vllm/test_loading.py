"""Loading, closing and refusing targets on vLLM."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.bs.engines.vllm.engine import VllmEngine
from testbed.errors import BadInput, EngineError, ModelError
from tests.bs.oracle import ask, check, tokens, verify_and_check
from tests.support.models import TOKENS, edit_config, make_model
from tests.support.reference import Reference

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")

SMALL: dict[str, Any] = {"kv_cache_memory_bytes": 64 << 20}


def test_bfloat16_closing_and_another_thread(random_models: dict[str, Path]) -> None:
    directory, rng = random_models["llama"], np.random.default_rng(0)
    reference = Reference(directory, TOKENS)
    prefix, draft = tokens(rng, 100).tolist(), tokens(rng, 64).tolist()
    request = ask("a", prefix, draft)
    logits, hidden = (rows[99:] for rows in reference.outputs([*prefix, *draft]))
    ordered = np.sort(logits, axis=-1)

    engine = VllmEngine(directory, dtype="bfloat16", vocab_size=TOKENS, extra=SMALL)
    (result,) = engine.verify([request])
    assert result.hidden is not None
    assert 1e-3 < np.abs(result.hidden - hidden).max() < 0.5, "rounded, but not another model"
    assert (result.margin * 2**7 % 1 == 0).all(), "the head, too, is computed in bfloat16"
    clear = ordered[:, -1] - ordered[:, -2] > 1.0
    assert clear.sum() > 10
    assert (result.argmax == logits.argmax(-1))[clear].all()
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.verify([request])

    with ThreadPoolExecutor(1) as thread:
        engine = thread.submit(VllmEngine, str(directory), vocab_size=TOKENS, extra=SMALL).result()
        (result,) = thread.submit(engine.verify, [request]).result()
        thread.submit(engine.close).result()
    check(result, request, reference)


def test_an_engine_that_nobody_holds_makes_room(random_models: dict[str, Path]) -> None:
    engine = VllmEngine(random_models["qwen2"], extra=SMALL)
    assert engine.vocab_size == TOKENS
    del engine
    gc.collect()
    engine = VllmEngine(random_models["qwen2"], max_model_len=64, max_batch_tokens=512, extra=SMALL)
    assert engine.max_positions == 64
    engine.close()


def test_experts_say_what_they_say_under_transformers(tmp_path: Path) -> None:
    """Qwen3-MoE: two of four experts a token, a router with clear choices; windows and a follow-up from the cache."""
    directory, rng = make_model("qwen3-moe", tmp_path, 5), np.random.default_rng(5)
    reference = Reference(directory, TOKENS)
    first, other = ask("a", tokens(rng, 70), tokens(rng, 8)), ask("b", tokens(rng, 5), tokens(rng, 16))
    engine = VllmEngine(directory, vocab_size=TOKENS, max_model_len=256, extra=SMALL)
    try:
        verify_and_check(engine, reference, first, other)
        verify_and_check(engine, reference, ask("a", [*first.prefix, *first.draft[:3], 7], tokens(rng, 4)))
        assert engine.stats.cached_tokens >= 64
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("overrides", "fields", "complaint"),
    [
        ({}, {"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel .* LlamaForCausalLM, Qwen2ForCausalLM"),
        ({"hidden_size": 64}, {}, "heads of size 16; .* 32, 64"),
    ],
)
def test_models_it_cannot_run(
    tmp_path: Path, overrides: dict[str, Any], fields: dict[str, Any], complaint: str
) -> None:
    directory = make_model("llama", tmp_path, 1, **overrides)
    edit_config(directory, **fields)
    with pytest.raises(ModelError, match=complaint) as caught:
        VllmEngine(directory)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("extra", "complaint"),
    [
        ({"kv_cache_bytes": 1}, "no engine argument kv_cache_bytes"),
        ({"runner": "generate"}, "sets vLLM's runner itself"),
    ],
)
def test_engine_arguments_are_not_dropped(
    random_models: dict[str, Path], extra: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(BadInput, match=complaint):
        VllmEngine(random_models["llama"], extra=extra)


def test_what_vllm_refuses_is_an_engine_error(random_models: dict[str, Path]) -> None:
    with pytest.raises(EngineError, match="could not load") as caught:
        VllmEngine(random_models["llama"], extra={"kv_cache_memory_bytes": 1})
    assert caught.value.__cause__ is not None
    assert "\n" not in str(caught.value)


def test_the_environment_is_set_before_vllm_is_imported() -> None:
    """A fresh process: importing the engine imports no vLLM, and so reads none of its variables."""
    code = (
        "import sys; import testbed.bs.engines.vllm.engine; print(any(m.split('.')[0] == 'vllm' for m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


TENSOR_PARALLEL = """
import sys
from tests.bs.engines.vllm.test_loading import verify_on_two_workers
if __name__ == "__main__":
    verify_on_two_workers(sys.argv[1])
"""


def verify_on_two_workers(directory: str) -> None:
    """Runs in a process of its own, since vLLM starts the workers from its main module."""
    engine = VllmEngine(directory, tensor_parallel_size=2, vocab_size=TOKENS - 20, extra=SMALL)
    rng = np.random.default_rng(0)
    requests = [ask(name, tokens(rng, 64) % engine.vocab_size, tokens(rng, 8) % engine.vocab_size) for name in "ab"]
    for _ in range(2):
        verify_and_check(engine, Reference(Path(directory), TOKENS - 20), *requests)
    assert engine.stats.computed_tokens == 2 * (72 + 9) and engine.stats.redone_requests == 0
    engine.close()


@pytest.mark.long
def test_tensor_parallel(random_models: dict[str, Path]) -> None:
    """Worker processes know the models, and those that do not gather the logits say nothing."""
    environment = {**os.environ, "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", TENSOR_PARALLEL, str(random_models["llama"])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
