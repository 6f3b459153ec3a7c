"""VllmEngine against transformers: one engine per architecture, all tests on it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.bs.engines.vllm.engine import VllmEngine
from testbed.errors import BadInput, EngineError
from tests.bs.oracle import ask, check, decode, tokens, verify_and_check
from tests.support.models import TOKENS
from tests.support.reference import Reference

BLOCK = 32
CHUNK = 256
"""New tokens that one pass takes; the models have 512 positions."""

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")


@pytest.fixture(scope="module", params=["llama", "qwen2-padded", "qwen3-tied", "llama-blockwise"])
def pair(request: pytest.FixtureRequest, random_models: dict[str, Path]) -> Iterator[tuple[VllmEngine, Reference]]:
    directory = random_models[request.param.removesuffix("-blockwise")]
    engine = VllmEngine(
        directory, vocab_size=TOKENS, max_batch=32, max_batch_tokens=CHUNK, extra={"kv_cache_memory_bytes": 64 << 20},
        resident=not request.param.endswith("-blockwise"),
    )  # fmt: skip
    yield engine, Reference(directory, TOKENS)
    engine.close()


@pytest.fixture
def engine(pair: tuple[VllmEngine, Reference]) -> VllmEngine:
    return pair[0]


@pytest.fixture
def reference(pair: tuple[VllmEngine, Reference]) -> Reference:
    return pair[1]


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator of its own for every test, so that no test finds another's prompts in the cache."""
    return np.random.default_rng(list(request.node.name.encode()))


@pytest.fixture
def resident(engine: VllmEngine) -> bool:
    return engine.block_size == 1


class Spent:
    """Increase of the engine's counters since the last call."""

    def __init__(self, engine: VllmEngine) -> None:
        self._stats = engine.stats
        self._before = (0, 0, 0, 0)
        self()

    def __call__(self) -> tuple[int, int, int, int]:
        """Passes, computed tokens, cached tokens, redone requests."""
        stats = self._stats
        now = (stats.passes, stats.computed_tokens, stats.cached_tokens, stats.redone_requests)
        before, self._before = self._before, now
        return (now[0] - before[0], now[1] - before[1], now[2] - before[2], now[3] - before[3])


@pytest.mark.parametrize("window", [0, 1, 8, 64])
def test_windows(engine: VllmEngine, reference: Reference, rng: np.random.Generator, window: int) -> None:
    spent = Spent(engine)
    verify_and_check(engine, reference, ask("a", tokens(rng, 40), tokens(rng, window)))
    assert spent() == (1, 40 + window, 0, 0)


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK])
def test_prefix_lengths_around_a_block(
    engine: VllmEngine, reference: Reference, rng: np.random.Generator, length: int
) -> None:
    prefix = tokens(rng, length)
    verify_and_check(engine, reference, ask("a", prefix, tokens(rng, 8)))
    verify_and_check(engine, reference, ask("a", [*prefix, *tokens(rng, BLOCK - 8)], tokens(rng, 8)))


def test_follow_up_reads_the_cache(
    engine: VllmEngine, reference: Reference, rng: np.random.Generator, resident: bool
) -> None:
    prefix, draft = tokens(rng, 100).tolist(), tokens(rng, 8).tolist()
    verify_and_check(engine, reference, ask("a", prefix, draft))
    spent = Spent(engine)
    verify_and_check(engine, reference, ask("a", [*prefix, *draft, 7], tokens(rng, 8)))
    assert spent() == ((1, 9, 108, 0) if resident else (1, 117 - 96, 96, 0))


def test_rejected_tokens_leave_no_trace(engine: VllmEngine, reference: Reference, rng: np.random.Generator) -> None:
    """The rejected window fills blocks; other tokens in its place must not find them."""
    prefix, draft = tokens(rng, 50).tolist(), tokens(rng, 64).tolist()
    verify_and_check(engine, reference, ask("a", prefix, draft))
    for accepted in (0, 13, 14, 15, 50):
        committed = [*prefix, *draft[:accepted], (draft[accepted] + 1) % TOKENS]
        verify_and_check(engine, reference, ask("a", committed, tokens(rng, 64)))


@pytest.mark.parametrize(
    ("length", "window"), [(64, 8), (64, 0), (60, 8), (60, 3), (40, 64), (64, 64), (300, 64), (31, 1), (32, 32)]
)
def test_a_prompt_seen_before(
    engine: VllmEngine, reference: Reference, rng: np.random.Generator, length: int, window: int, resident: bool
) -> None:
    """The cache then holds positions that are asked for; they are computed again, and little besides."""
    request = ask("a", tokens(rng, length), tokens(rng, window))
    verify_and_check(engine, reference, request)
    spent = Spent(engine)
    verify_and_check(engine, reference, request)
    passes, computed, _, redone = spent()
    if resident:
        assert (passes, computed, redone) == (1, window + 1, 0)
        return
    served = (length + window - 1) // BLOCK * BLOCK
    assert redone == (served >= length)
    assert passes == 1 + redone
    tail_block = (length - 1) // BLOCK * BLOCK
    assert computed == length + window - (tail_block if redone else served)


@pytest.mark.parametrize(("length", "window"), [(300, 8), (CHUNK - 4, 8), (CHUNK - 30, 64), (CHUNK, 1)])
def test_prompts_longer_than_a_pass(
    engine: VllmEngine, reference: Reference, rng: np.random.Generator, length: int, window: int
) -> None:
    """In all but the first case the tail straddles two chunks."""
    spent = Spent(engine)
    verify_and_check(engine, reference, ask("a", tokens(rng, length), tokens(rng, window)))
    assert spent() == (2, length + window, 0, 0)


def test_tail_that_straddles_chunks_and_starts_in_the_cache(
    engine: VllmEngine, reference: Reference, rng: np.random.Generator, resident: bool
) -> None:
    """The other prompt takes most of the pass, so the repeated one's uncached part is cut in two."""
    request = ask("a", tokens(rng, BLOCK), tokens(rng, 31))
    verify_and_check(engine, reference, request)
    spent = Spent(engine)
    verify_and_check(engine, reference, ask("b", tokens(rng, CHUNK - 20)), request)
    assert spent() == ((2, CHUNK - 20 + 32, 31, 0) if resident else (3, CHUNK - 20 + 31 + BLOCK, BLOCK, 1))


def test_mixed_batch(engine: VllmEngine, reference: Reference, rng: np.random.Generator) -> None:
    first, repeated = ask("a", tokens(rng, 64), tokens(rng, 8)), ask("b", tokens(rng, 33), tokens(rng, 40))
    verify_and_check(engine, reference, first, repeated)
    verify_and_check(
        engine,
        reference,
        ask("new", tokens(rng, 20), tokens(rng, 8), hidden=False),
        ask("a", [*first.prefix, *first.draft[:3], 5], tokens(rng, 4), logprobs=False),
        repeated,
        ask("long", tokens(rng, 400), tokens(rng, 1), hidden=False, logprobs=False),
        ask("plain", tokens(rng, 1)),
        first,
    )


def test_one_pass_for_sixteen_sessions(
    engine: VllmEngine, reference: Reference, rng: np.random.Generator, resident: bool
) -> None:
    prefixes = [tokens(rng, 32 + i % 4).tolist() for i in range(16)]
    for i, prefix in enumerate(prefixes):
        engine.verify([ask(str(i), prefix)])
    spent = Spent(engine)
    requests = [ask(str(i), [*prefix, 3], tokens(rng, 8)) for i, prefix in enumerate(prefixes)]
    verify_and_check(engine, reference, *requests)
    passes, computed, cached, redone = spent()
    assert (passes, redone) == (1, 0)
    assert cached == (sum(map(len, prefixes)) if resident else 16 * 32)
    assert computed == sum(len(prefix) + 9 for prefix in prefixes) - cached


def test_more_than_one_pass_takes(engine: VllmEngine, reference: Reference, rng: np.random.Generator) -> None:
    spent = Spent(engine)
    requests = [ask(str(i), tokens(rng, 60), tokens(rng, 8), hidden=False, logprobs=False) for i in range(10)]
    verify_and_check(engine, reference, *requests)
    assert spent() == (-(-680 // CHUNK), 680, 0, 0)


def test_more_sessions_than_a_pass_takes(engine: VllmEngine, reference: Reference, rng: np.random.Generator) -> None:
    spent = Spent(engine)
    verify_and_check(engine, reference, *(ask(str(i), tokens(rng, 2)) for i in range(33)))
    assert spent()[0] == 2


def test_an_empty_batch(engine: VllmEngine) -> None:
    spent = Spent(engine)
    assert engine.verify([]) == []
    assert spent() == (0, 0, 0, 0)


def test_window_equals_single_tokens(engine: VllmEngine, rng: np.random.Generator) -> None:
    """The losslessness gate: a window says what K+1 plain decoding steps say."""
    for _ in range(5):
        prefix, draft = tokens(rng, int(rng.integers(1, 120))).tolist(), tokens(rng, 16).tolist()
        steps = [engine.verify([ask("a", [*prefix, *draft[:i]])])[0] for i in range(17)]
        (window,) = engine.verify([ask("a", prefix, draft)])
        assert window.argmax.tolist() == [int(step.argmax[0]) for step in steps]
        assert window.hidden is not None
        np.testing.assert_allclose(
            window.hidden, np.concatenate([step.hidden for step in steps if step.hidden is not None]), atol=1e-4
        )


@pytest.mark.parametrize("window", [1, 5, 24])
def test_decoding_gives_the_targets_own_output(
    engine: VllmEngine, reference: Reference, rng: np.random.Generator, window: int
) -> None:
    prompt = tokens(rng, 29).tolist()
    assert decode(engine, prompt, 70, window, rng) == reference.greedy(prompt, 70)


def test_many_sessions_that_share_much(
    engine: VllmEngine, reference: Reference, rng: np.random.Generator, resident: bool
) -> None:
    """Hardly any variety, so that sessions run into each other's blocks all the time."""
    sessions: dict[str, list[int]] = {str(i): [1] * (BLOCK - 2 + i % 3) for i in range(5)}

    def words(count: int) -> list[int]:
        return rng.choice([1, 2], count, p=[0.97, 0.03]).tolist()

    spent = Spent(engine)
    for _ in range(30):
        names = [name for name in sessions if rng.random() < 0.6]
        drafts = {name: words(int(rng.integers(0, 20))) for name in names}
        verify_and_check(engine, reference, *(ask(name, sessions[name], drafts[name]) for name in names))
        for name in names:
            kept = int(rng.integers(len(drafts[name]) + 1))
            sessions[name] = [*sessions[name], *drafts[name][:kept], *words(1)][-300:]
    assert spent()[3] == 0 if resident else spent()[3] > 5


def test_padded_rows_are_never_chosen(engine: VllmEngine, reference: Reference, rng: np.random.Generator) -> None:
    rows = int(reference.model.config.vocab_size)
    request = ask("a", tokens(rng, 60), tokens(rng, 40))
    (result,) = engine.verify([request])
    assert result.logprobs is not None
    assert result.logprobs.shape == (41, TOKENS)
    np.testing.assert_allclose(np.exp(result.logprobs.astype(np.float64)).sum(-1), 1.0, atol=1e-5)
    everything = Reference.__new__(Reference)
    everything.model, everything.tokens = reference.model, rows
    unmasked = everything.outputs([*request.prefix.tolist(), *request.draft.tolist()])[0].argmax(-1)
    assert (unmasked >= TOKENS).any() == (rows > TOKENS)
    assert (result.argmax < TOKENS).all()


def test_a_failed_pass_leaves_nothing_behind(
    engine: VllmEngine, reference: Reference, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failed pass's blocks count as cached without having been computed, so that the cache must be dropped."""
    from vllm.model_executor.layers.logits_processor import LogitsProcessor

    prefix = tokens(rng, 100).tolist()
    requests = [ask("a", prefix, tokens(rng, 8)), ask("b", tokens(rng, 300), tokens(rng, 8))]

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of memory\n  and more")

    with monkeypatch.context() as patch:
        patch.setattr(LogitsProcessor, "forward", fail)
        with pytest.raises(EngineError, match=r"pass of 2 requests: out of memory and more$"):
            engine.verify(requests)
    spent = Spent(engine)
    verify_and_check(engine, reference, *requests)
    assert spent() == (2, 108 + 308, 0, 0)


@pytest.mark.parametrize(
    ("prefix", "draft", "complaint"),
    [
        ([], [1], "prefix is empty"),
        ([1, TOKENS], [], "outside the vocabulary"),
        ([1], [-1], "outside the vocabulary"),
        ([1] * 500, [1] * 12, "513 positions"),
    ],
)
def test_bad_requests(engine: VllmEngine, prefix: list[int], draft: list[int], complaint: str) -> None:
    spent = Spent(engine)
    with pytest.raises(BadInput, match=complaint):
        engine.verify([ask("ok", [1]), ask("a", prefix, draft)])
    assert spent() == (0, 0, 0, 0)


def test_the_last_position(engine: VllmEngine, reference: Reference, rng: np.random.Generator) -> None:
    verify_and_check(engine, reference, ask("a", tokens(rng, 500), tokens(rng, 11)))


def test_release(engine: VllmEngine) -> None:
    request = ask("a", [1, 2, 3], [4])
    before = engine.verify([request])[0]
    engine.release("a")
    engine.release("unknown")
    assert engine.verify([request])[0].argmax.tolist() == before.argmax.tolist()


def test_what_it_says_of_itself(engine: VllmEngine, reference: Reference) -> None:
    assert engine.vocab_size == TOKENS
    assert engine.hidden_size == reference.model.config.hidden_size
    assert (engine.max_positions, engine.max_batch_tokens) == (512, CHUNK)


def test_a_second_engine_is_refused(engine: VllmEngine, reference: Reference, random_models: dict[str, Path]) -> None:
    with pytest.raises(EngineError, match="close it first"):
        VllmEngine(random_models["llama"])
    request = ask("a", [1, 2, 3], [4])
    check(engine.verify([request])[0], request, reference)


def test_a_prefix_in_pieces_says_the_same(
    engine: VllmEngine, reference: Reference, rng: np.random.Generator, resident: bool
) -> None:
    """Pieces are computed for the cache; the round that follows computes the rest, beside another's follow-up."""
    assert engine.block_size in (1, BLOCK) and (engine.kv_tokens or 0) > 512
    other, prefix = tokens(rng, 70).tolist(), tokens(rng, 200)
    verify_and_check(engine, reference, ask("other", other, tokens(rng, 4)))
    for end in (64, 128, 192):
        results = verify_and_check(
            engine, reference, ask("pieces", prefix[:end], []), ask("other", other, tokens(rng, 4))
        )
        assert [result.cached for result in results] == [end - 64, 69 if resident else 64]
    (result,) = verify_and_check(engine, reference, ask("pieces", prefix, tokens(rng, 6)))
    assert result.cached == 192


def test_without_a_prefix_cache_everything_is_computed_anew(
    engine: VllmEngine, reference: Reference, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine._runner, "_prefix_cache", False)
    prefix = tokens(rng, 100).tolist()
    verify_and_check(engine, reference, ask("a", prefix, tokens(rng, 8)))
    spent = Spent(engine)
    (result,) = verify_and_check(engine, reference, ask("a", [*prefix, 7], tokens(rng, 8)))
    assert spent() == (1, 109, 0, 0) and result.cached == 0
