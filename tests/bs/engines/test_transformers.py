"""TransformersEngine, the cached reference, against the same model without a cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from testbed.bs.engines.transformers import TransformersEngine
from testbed.errors import BadInput, EngineError
from tests.bs.oracle import ask, decode, tokens, verify_and_check
from tests.support.models import TOKENS
from tests.support.reference import Reference

Pair = tuple[TransformersEngine, Reference]


@pytest.fixture(scope="module", params=["llama", "qwen2-padded", "qwen3-tied"])
def pair(request: pytest.FixtureRequest, random_models: dict[str, Path]) -> Pair:
    directory = random_models[request.param]
    return TransformersEngine(directory, vocab_size=TOKENS, device="cpu"), Reference(directory, TOKENS)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    return np.random.default_rng(list(request.node.name.encode()))


@pytest.mark.parametrize("window", [0, 1, 8, 64])
def test_windows(pair: Pair, rng: np.random.Generator, window: int) -> None:
    verify_and_check(*pair, ask("first", tokens(rng, 1), tokens(rng, window)))
    verify_and_check(*pair, ask("second", tokens(rng, 33), tokens(rng, window)))


def test_follow_ups_that_diverge(pair: Pair, rng: np.random.Generator) -> None:
    """The cache is rolled back to what a session's next prefix shares with it, be it nothing."""
    prefix, draft = tokens(rng, 30).tolist(), tokens(rng, 8).tolist()
    other = (draft[3] + 1) % TOKENS
    for committed in (
        prefix,
        [*prefix, *draft[:3], other],
        [*prefix, *draft[:3], other, *draft],
        [*prefix, *draft[:3]],
        prefix[:5],
        prefix,
        [(prefix[0] + 1) % TOKENS, *prefix[1:]],
    ):
        verify_and_check(*pair, ask("a", committed, draft))
        verify_and_check(
            *pair, ask("a", committed, draft), ask("b", prefix, draft[::-1]), ask("a", committed, draft[:2])
        )


def test_only_new_positions_are_computed(pair: Pair, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, reference = pair
    lengths: list[int] = []
    prefix, draft = tokens(rng, 30).tolist(), tokens(rng, 8).tolist()
    with monkeypatch.context() as patch:
        forward = type(engine._model.base_model).forward

        def counting(self: object, input_ids: np.ndarray, **rest: object) -> object:
            lengths.append(input_ids.shape[1])
            return forward(self, input_ids, **rest)

        patch.setattr(type(engine._model.base_model), "forward", counting)
        for committed in (prefix, [*prefix, *draft[:5], 1], [*prefix, *draft[:5], 1]):
            engine.verify([ask("c", committed, draft)])
    assert lengths == [38, 9, 9]
    verify_and_check(engine, reference, ask("c", [*prefix, *draft[:5], 1, 2], draft))


@pytest.mark.parametrize("window", [0, 5])
def test_decoding_gives_the_targets_own_output(pair: Pair, rng: np.random.Generator, window: int) -> None:
    engine, reference = pair
    prompt = tokens(rng, 29).tolist()
    assert decode(engine, prompt, 40, window, rng) == reference.greedy(prompt, 40)


def test_a_forgotten_session_costs_a_prefill(random_models: dict[str, Path], rng: np.random.Generator) -> None:
    directory = random_models["llama"]
    engine, reference = TransformersEngine(directory, max_sessions=2), Reference(directory, TOKENS)
    requests = [ask(name, tokens(rng, 20), tokens(rng, 4)) for name in "abc"]
    for _ in range(2):
        verify_and_check(engine, reference, *requests)
        assert list(engine._sessions) == ["b", "c"]
    engine.verify([requests[1]])
    engine.verify([requests[0]])
    assert list(engine._sessions) == ["b", "a"], "the least recently used one goes"
    engine.release("b")
    engine.release("unknown")
    assert list(engine._sessions) == ["a"]
    verify_and_check(engine, reference, *requests)


def test_a_failed_pass_changes_no_session(
    pair: Pair, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, reference = pair
    request = ask("a", tokens(rng, 20), tokens(rng, 4))
    engine.verify([request])
    with monkeypatch.context() as patch:
        patch.setattr(type(engine._model), "get_output_embeddings", lambda self: None)
        with pytest.raises(EngineError, match="session a"):
            engine.verify([request])
    verify_and_check(engine, reference, request)


def test_bfloat16(random_models: dict[str, Path], rng: np.random.Generator) -> None:
    engine = TransformersEngine(random_models["llama"], dtype="bfloat16")
    reference = Reference(random_models["llama"], TOKENS)
    request = ask("a", tokens(rng, 60), tokens(rng, 40))
    (result,) = engine.verify([request])
    logits, hidden = (rows[59:] for rows in reference.outputs([*request.prefix.tolist(), *request.draft.tolist()]))
    assert result.hidden is not None and result.hidden.dtype == np.float32
    assert 1e-3 < np.abs(result.hidden - hidden).max() < 0.5, "rounded, but not another model"
    ordered = np.sort(logits, axis=-1)
    clear = ordered[:, -1] - ordered[:, -2] > 1.0
    assert clear.sum() > 10
    assert (result.argmax == logits.argmax(-1))[clear].all()


def test_bad_requests(pair: Pair) -> None:
    for prefix, complaint in (([], "empty"), ([TOKENS], "outside"), ([1] * 512, "513 positions")):
        with pytest.raises(BadInput, match=complaint):
            pair[0].verify([ask("a", prefix)])
    assert pair[0].verify([]) == []


def test_closing(random_models: dict[str, Path]) -> None:
    engine = TransformersEngine(random_models["qwen2"])
    assert (engine.vocab_size, engine.hidden_size, engine.max_positions) == (TOKENS, 128, 512)
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.verify([ask("a", [1])])


def test_a_prefix_in_pieces_says_the_same(pair: Pair, rng: np.random.Generator) -> None:
    """Pieces are computed for the cache; the round that follows computes the rest."""
    prefix, draft = tokens(rng, 200), tokens(rng, 6)
    for end in (64, 128, 192):
        verify_and_check(*pair, ask("pieces", prefix[:end], []))
    (result,) = verify_and_check(*pair, ask("pieces", prefix, draft))
    assert result.cached == 192
