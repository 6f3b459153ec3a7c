"""Continuous passes on every engine: rounds join between passes, long prompts go in pieces, and results are those of
transformers' plain forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.bs.engines.base import VerifyEngine
from testbed.bs.engines.llama import LlamaEngine
from testbed.bs.engines.transformers import TransformersEngine
from testbed.bs.engines.vllm.engine import VllmEngine
from tests.bs.engines.continuous import Traffic
from tests.support.models import TOKENS
from tests.support.reference import Reference

CHUNK = 64
Load = Callable[[str, Path, Path], VerifyEngine]


def vllm(directory: Path, _: Path, **options: Any) -> VerifyEngine:
    if find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    return VllmEngine(
        directory, vocab_size=TOKENS, max_batch=24, max_batch_tokens=256, chunk_tokens=CHUNK,
        extra={"num_gpu_blocks_override": 64}, **options,
    )  # fmt: skip


def blockwise(directory: Path, gguf: Path) -> VerifyEngine:
    return vllm(directory, gguf, resident=False)


def transformers(directory: Path, _: Path) -> VerifyEngine:
    return TransformersEngine(
        directory, vocab_size=TOKENS, max_sessions=10, max_batch_tokens=256, chunk_tokens=CHUNK, device="cpu"
    )


def llama(_: Path, gguf: Path) -> VerifyEngine:
    return LlamaEngine(gguf, vocab_size=TOKENS, max_sessions=10, threads=1, chunk_tokens=CHUNK)


ENGINES = {"vllm": vllm, "blockwise": blockwise, "transformers": transformers, "llama": llama}
SHORT = [("vllm", "qwen3"), ("transformers", "llama"), ("llama", "qwen2")]
LONG = [(engine, model) for engine in ENGINES for model in ("llama", "qwen2", "qwen3")]


@pytest.fixture
def loaded(
    request: pytest.FixtureRequest,
    random_models: dict[str, Path],
    random_ggufs: dict[str, Path],
    references: dict[str, Reference],
) -> Iterator[tuple[VerifyEngine, Reference]]:
    kind, model = request.param
    engine = ENGINES[kind](random_models[model], random_ggufs[model])
    yield engine, references[model]
    engine.close()


def traffic(loaded: tuple[VerifyEngine, Reference], passes: int, sessions: int, seed: int) -> Traffic:
    atol = 1e-3 if isinstance(loaded[0], LlamaEngine) else 1e-4
    found = Traffic(*loaded, np.random.default_rng(seed), atol=atol)
    found.run(passes, sessions)
    return found


@pytest.mark.parametrize("loaded", SHORT, indirect=True, ids="-".join)
def test_rounds_of_all_kinds_join_between_passes(loaded: tuple[VerifyEngine, Reference]) -> None:
    found = traffic(loaded, 30, 12, seed=0)
    assert found.rounds > 80 and found.pieces > 10 and found.opened > 12


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("loaded", LONG, indirect=True, ids="-".join)
@pytest.mark.parametrize("seed", [1, 2])
def test_hundreds_of_passes(loaded: tuple[VerifyEngine, Reference], seed: int) -> None:
    """Sixteen sessions on 64 blocks, or on ten sequences: many are evicted."""
    found = traffic(loaded, 400, 16, seed)
    assert found.rounds > 900 and found.pieces > 100 and found.lost > 10
