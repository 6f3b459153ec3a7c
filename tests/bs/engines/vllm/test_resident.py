"""Resident sessions: rounds compute what is new, and share, lose or give back blocks without a wrong result."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.bs.engines.vllm.engine import VllmEngine
from tests.bs.oracle import ask, tokens, verify_and_check
from tests.support.models import TOKENS
from tests.support.reference import Reference

BLOCK = 32

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")


@pytest.fixture(scope="module")
def directory(random_models: dict[str, Path]) -> Path:
    return random_models["llama"]


@pytest.fixture(scope="module")
def reference(directory: Path) -> Reference:
    return Reference(directory, TOKENS)


@pytest.fixture(scope="module")
def small(directory: Path) -> Iterator[VllmEngine]:
    """An engine with sixteen blocks, fewer than its sessions would like to hold."""
    engine = VllmEngine(
        directory, vocab_size=TOKENS, max_batch=32, max_batch_tokens=256, extra={"num_gpu_blocks_override": 17}
    )
    yield engine
    engine.close()


@pytest.fixture(autouse=True)
def nothing_left(small: VllmEngine) -> Iterator[None]:
    """Every test begins with all blocks free, and leaves none behind once its sessions are closed."""
    scheduler = scheduler_of(small)
    small.forget()
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    yield
    for session in list(scheduler.parked):
        small.release(session)
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free == 16
    assert not scheduler.requests


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    return np.random.default_rng(list(request.node.name.encode()))


def scheduler_of(engine: VllmEngine) -> Any:
    assert engine._runner is not None
    return engine._runner._scheduler


def test_hundreds_of_rounds_compute_their_own_tokens_alone(
    small: VllmEngine, reference: Reference, rng: np.random.Generator
) -> None:
    """Two sessions have room enough: after its prompt each computes K+1 tokens a round, wherever blocks end."""
    sessions = {name: tokens(rng, 20).tolist() for name in ("a", "b")}
    verify_and_check(small, reference, *(ask(name, prefix) for name, prefix in sessions.items()))
    for _ in range(120):
        for name, prefix in sessions.items():
            draft = tokens(rng, int(rng.integers(0, 9))).tolist()
            (result,) = verify_and_check(small, reference, ask(name, prefix, draft))
            assert result.cached == len(prefix) - 1
            kept = int(rng.integers(len(draft) + 1))
            prefix += [*draft[:kept], int(tokens(rng, 1)[0])]
            if len(prefix) > 200:
                small.release(name)
                prefix[:] = tokens(rng, 20).tolist()
                verify_and_check(small, reference, ask(name, prefix))


def test_more_sessions_than_blocks(small: VllmEngine, reference: Reference, rng: np.random.Generator) -> None:
    """Eight sessions of up to five blocks each: the longest idle ones give way, and come back by a prefill."""
    sessions = {str(i): tokens(rng, int(rng.integers(10, 60))).tolist() for i in range(8)}
    lost = 0
    for _ in range(60):
        names = [name for name in sessions if rng.random() < 0.4]
        drafts = {name: tokens(rng, int(rng.integers(0, 9))).tolist() for name in names}
        results = verify_and_check(small, reference, *(ask(name, sessions[name], drafts[name]) for name in names))
        lost += sum((result.cached or 0) < len(sessions[name]) - 9 for name, result in zip(names, results, strict=True))
        for name in names:
            kept = int(rng.integers(len(drafts[name]) + 1))
            sessions[name] = [*sessions[name], *drafts[name][:kept], int(tokens(rng, 1)[0])][-150:]
    assert lost > 5


def test_rounds_that_hold_all_blocks_do_not_wait_for_each_other(
    small: VllmEngine, reference: Reference, rng: np.random.Generator
) -> None:
    """Two sessions fill the cache to the last block, and both need another one in the same pass."""
    left, right = tokens(rng, 8 * BLOCK).tolist(), tokens(rng, 8 * BLOCK).tolist()
    for name, prefix in (("left", left), ("right", right)):
        verify_and_check(small, reference, ask(name, prefix))
    draft = tokens(rng, 4)
    verify_and_check(small, reference, ask("left", [*left, 1], draft), ask("right", [*right, 2], draft))


def test_going_back_behind_the_committed_prefix(
    small: VllmEngine, reference: Reference, rng: np.random.Generator
) -> None:
    prefix = tokens(rng, 100).tolist()
    for end in (100, 70, 71, 32, 33, 64, 5, 90):
        verify_and_check(small, reference, ask("a", prefix[:end], tokens(rng, 6)))


def test_a_shared_prompt_is_computed_once_and_never_overwritten(
    small: VllmEngine, reference: Reference, rng: np.random.Generator
) -> None:
    """The second session reads the first one's blocks; going back into one, either gets blocks of its own."""
    prompt = tokens(rng, 104).tolist()
    verify_and_check(small, reference, ask("a", prompt, tokens(rng, 3)))
    (second,) = verify_and_check(small, reference, ask("b", prompt, tokens(rng, 3)))
    assert second.cached == 96
    for name in ("b", "a", "b", "a"):
        verify_and_check(small, reference, ask(name, prompt[: int(rng.integers(40, 100))], tokens(rng, 8)))
        verify_and_check(small, reference, ask("b", prompt, tokens(rng, 5)), ask("a", prompt, tokens(rng, 5)))


def test_drafted_tokens_are_never_found_in_the_prefix_cache(
    small: VllmEngine, reference: Reference, rng: np.random.Generator
) -> None:
    """A window fills blocks and is rejected; a stranger who sends the same tokens as a prompt computes them."""
    prefix, draft = tokens(rng, 30).tolist(), tokens(rng, 70).tolist()
    verify_and_check(small, reference, ask("a", prefix, draft))
    verify_and_check(small, reference, ask("a", [*prefix, 1], tokens(rng, 70)))
    (stranger,) = verify_and_check(small, reference, ask("b", [*prefix, *draft]))
    assert stranger.cached == 0


def test_two_rounds_of_one_session_in_one_pass(
    small: VllmEngine, reference: Reference, rng: np.random.Generator
) -> None:
    prefix = tokens(rng, 50).tolist()
    for _ in range(3):
        verify_and_check(small, reference, ask("a", prefix, tokens(rng, 4)), ask("a", prefix, tokens(rng, 2)))
        prefix += tokens(rng, 2).tolist()


def test_the_engine_knows_which_sessions_lost_their_blocks(
    small: VllmEngine, reference: Reference, rng: np.random.Generator
) -> None:
    prompts = {name: tokens(rng, 70).tolist() for name in "abcdefgh"}
    for name, prompt in prompts.items():
        assert small.own(ask(name, prompt, [])) == 0
        verify_and_check(small, reference, ask(name, prompt, []))
        assert small.own(ask(name, prompt, [])) is None
    known = {name: small.own(ask(name, prompt, [])) for name, prompt in prompts.items()}
    assert known["a"] == known["b"] == 0 and known["g"] is known["h"] is None
    for name in "hga":
        (result,) = verify_and_check(small, reference, ask(name, [*prompts[name], 1], []))
        assert (result.cached == 70) is (name != "a")


def test_ten_thousand_sessions_leave_no_block_behind(small: VllmEngine, rng: np.random.Generator) -> None:
    """Opened and closed, opened and dropped, opened again under the same name: `nothing_left` counts the blocks."""
    for start in range(0, 10_000, 25):
        names = [str(i % 700) for i in range(start, start + 25)]
        small.verify([ask(name, tokens(rng, 4), tokens(rng, 2), hidden=False, logprobs=False) for name in names])
        for name in names[::2]:
            small.release(name)
    assert len(scheduler_of(small).parked) <= 16


def test_without_what_it_needs_rounds_read_the_prefix_cache(
    small: VllmEngine, directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A future vLLM that ignores the blocks it is given: the self-test notices, and the engine still verifies."""
    from testbed.bs.engines.vllm import runner as module
    from testbed.bs.engines.vllm.resident import ResidentScheduler

    args = module.engine_args
    closed: list[bool] = []
    monkeypatch.setattr(
        ResidentScheduler, "_adopt", lambda self, request, parked: self._pool.free_blocks(parked.blocks)
    )
    assert small._runner is not None
    monkeypatch.setattr(module.VllmRunner, "close", lambda self: closed.append(True))
    monkeypatch.setattr(module, "VllmRunner", lambda *_, **__: small._runner)
    with caplog.at_level(logging.WARNING):
        module.load_runner(args(check(directory), "float32", {}, {}))
    assert closed == [True]
    assert "sessions are not resident with this vLLM (a round computed" in caplog.text


def check(directory: Path) -> Any:
    from testbed.bs.engines.model_files import check_files

    return check_files(directory, dtype="float32", vocab_size=TOKENS, max_model_len=None)
