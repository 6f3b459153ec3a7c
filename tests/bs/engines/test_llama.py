"""LlamaEngine against transformers' plain forward pass, on random models exported to GGUF in float32.

Keys and values are float32, too. llama.cpp multiplies rotary angles up, so that differences grow with the position:
within the first 200 positions hidden states, margins and gaps agree with transformers within 1e-4, beyond within 1e-3.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.bs.engines.base import VerifyRequest
from testbed.bs.engines.llama import LlamaEngine
from testbed.bs.engines.llama_options import LOGITS_BYTES
from testbed.errors import BadInput, EngineError, ModelError
from testbed.llama.context import MAX_BATCH
from testbed.llama.group import LlamaGroup, SequenceInput
from tests.bs.oracle import ask, decode, tokens, verify_and_check
from tests.support.ggufs import write_gemma3, write_mamba
from tests.support.models import TOKENS
from tests.support.reference import Reference

Pair = tuple[LlamaEngine, Reference]


@pytest.fixture(scope="module", params=["llama", "qwen2-padded", "qwen3-tied"])
def pair(
    request: pytest.FixtureRequest, random_ggufs: dict[str, Path], references: dict[str, Reference]
) -> Iterator[Pair]:
    engine = LlamaEngine(random_ggufs[request.param], vocab_size=TOKENS, max_sessions=16, threads=1)
    yield engine, references[request.param]
    engine.close()


@pytest.fixture
def small(random_ggufs: dict[str, Path], references: dict[str, Reference]) -> Iterator[Pair]:
    """Three sequences."""
    engine = LlamaEngine(random_ggufs["llama"], vocab_size=TOKENS, max_sessions=3, threads=1)
    yield engine, references["llama"]
    engine.close()


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    return np.random.default_rng(list(request.node.name.encode()))


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Number of tokens of every llama.cpp decode, and whether they have logits."""
    seen: list[tuple[int, bool]] = []
    together = LlamaGroup._together

    def counting(self: LlamaGroup, rows: list[SequenceInput], *, outputs: bool, hidden: bool = False) -> None:
        seen.append((sum(len(row.ids) for row in rows), outputs))
        together(self, rows, outputs=outputs, hidden=hidden)

    monkeypatch.setattr(LlamaGroup, "_together", counting)
    return seen


def places(engine: LlamaEngine) -> list[int]:
    """Unused sequences."""
    return sorted([*engine._free, *engine._kept.places()])


@pytest.mark.parametrize("window", [0, 1, 8, 64])
def test_windows(pair: Pair, rng: np.random.Generator, window: int) -> None:
    verify_and_check(*pair, ask("first", tokens(rng, 1), tokens(rng, window)))
    verify_and_check(*pair, ask("second", tokens(rng, 33), tokens(rng, window)))


def test_mixed_batches(pair: Pair, rng: np.random.Generator) -> None:
    """First prompts and follow-ups, with and without drafts, hidden states and log-probabilities, in one pass."""
    first = [
        ask("a", tokens(rng, 40), tokens(rng, 5)),
        ask("b", tokens(rng, 1)),
        ask("c", tokens(rng, 120), tokens(rng, 64)),
    ]
    verify_and_check(*pair, *first)
    for hidden, logprobs in ((True, False), (False, True), (False, False)):
        requests = [
            ask("c", [*first[0].prefix, 3], tokens(rng, 2), hidden=hidden),
            ask("d", tokens(rng, 70), tokens(rng, 1), logprobs=logprobs),
            ask("a", [*first[0].prefix, *first[0].draft[:3]], tokens(rng, 8), hidden=hidden, logprobs=logprobs),
        ]
        verify_and_check(*pair, *requests)


def test_follow_ups_that_diverge(pair: Pair, rng: np.random.Generator) -> None:
    """The sequence is cut to what a session's next prefix shares with it, be it nothing."""
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


def test_hundreds_of_rounds_compute_their_own_tokens_alone(
    pair: Pair, rng: np.random.Generator, decodes: list[tuple[int, bool]]
) -> None:
    """After its prompt a session computes K+1 tokens a round, whatever was kept; 16 sessions do so in one decode."""
    engine, reference = pair
    sessions = {str(i): tokens(rng, int(rng.integers(1, 60))).tolist() for i in range(16)}
    verify_and_check(engine, reference, *(ask(name, prefix) for name, prefix in sessions.items()))
    for round_ in range(100):
        names = [name for name in sessions if rng.random() < 0.2] if round_ % 10 else list(sessions)
        drafts = {name: tokens(rng, int(rng.integers(0, 9))).tolist() for name in names}
        requests = [ask(name, sessions[name], drafts[name], logprobs=False) for name in names]
        decodes.clear()
        results = (
            verify_and_check(engine, reference, *requests, atol=1e-3) if round_ % 10 == 0 else engine.verify(requests)
        )
        assert [result.cached for result in results] == [len(request.prefix) - 1 for request in requests]
        assert decodes == ([(sum(map(len, drafts.values())) + len(names), True)] if names else [])
        for name in names:
            kept = int(rng.integers(len(drafts[name]) + 1))
            sessions[name] += [*drafts[name][:kept], int(tokens(rng, 1)[0])]
    verify_and_check(engine, reference, *(ask(name, prefix) for name, prefix in sessions.items()), atol=1e-3)


@pytest.mark.parametrize("window", [0, 5])
def test_decoding_gives_the_targets_own_output(pair: Pair, rng: np.random.Generator, window: int) -> None:
    engine, reference = pair
    prompt = tokens(rng, 29).tolist()
    assert decode(engine, prompt, 40, window, rng) == reference.greedy(prompt, 40)


def test_a_prompt_in_pieces_beside_rounds(pair: Pair, rng: np.random.Generator) -> None:
    prefix, draft = tokens(rng, 300), tokens(rng, 6)
    other = tokens(rng, 20).tolist()
    for end in (64, 128, 192, 256):
        (piece, _) = verify_and_check(
            *pair, ask("pieces", prefix[:end]), ask("rounds", other, tokens(rng, 4)), atol=1e-3
        )
        assert piece.cached == (end - 64 if end > 64 else 0)
        other += tokens(rng, 3).tolist()
    (result, _) = verify_and_check(*pair, ask("pieces", prefix, draft), ask("rounds", other, tokens(rng, 4)), atol=1e-3)
    assert result.cached == 256


def test_long_prompts_take_several_decodes(
    pair: Pair, rng: np.random.Generator, decodes: list[tuple[int, bool]]
) -> None:
    requests = [ask(name, tokens(rng, 500), tokens(rng, 6)) for name in "abc"]
    for name in "abc":
        pair[0].release(name)
    verify_and_check(*pair, *requests, atol=1e-3)
    assert sum(count for count, _ in decodes) == 3 * 506
    assert max(count for count, _ in decodes) <= MAX_BATCH
    assert sum(count for count, outputs in decodes if outputs) <= 3 * 7 + 4, "a piece of a prompt has one row"


def test_more_rows_than_a_decode_has_logits_for(
    random_ggufs: dict[str, Path],
    references: dict[str, Reference],
    rng: np.random.Generator,
    decodes: list[tuple[int, bool]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Windows are split between decodes where a large vocabulary leaves room for few rows of logits."""
    monkeypatch.setattr("testbed.bs.engines.llama_options.LOGITS_BYTES", 7 * 4 * TOKENS)
    engine = LlamaEngine(random_ggufs["llama"], max_sessions=4, threads=1)
    verify_and_check(engine, references["llama"], *(ask(str(k), tokens(rng, 9), tokens(rng, k)) for k in (4, 12, 0)))
    assert [count for count, outputs in decodes if outputs] == [7, 7, 5]
    engine.close()
    assert LOGITS_BYTES // (4 * 151_936) > 64, "a window of the largest vocabulary fits"


def test_a_forgotten_session_costs_a_prefill(small: Pair, rng: np.random.Generator) -> None:
    engine, reference = small
    requests = [ask(name, tokens(rng, 20), tokens(rng, 4)) for name in "abcd"]
    for _ in range(2):
        verify_and_check(engine, reference, *requests)
        assert list(engine._sessions) == ["b", "c", "d"]
    engine.verify([requests[1]])
    (back,) = verify_and_check(engine, reference, requests[0])
    assert back.cached == 0
    assert list(engine._sessions) == ["d", "b", "a"], "the least recently used one goes"
    verify_and_check(engine, reference, ask("new", tokens(rng, 5)), requests[3], requests[1])
    assert list(engine._sessions) == ["new", "d", "b"], "a pass keeps its own sessions"
    for name in ("b", "d", "new", "unknown"):
        engine.release(name)
    assert not engine._sessions and places(engine) == [0, 1, 2]
    verify_and_check(engine, reference, *requests)


def test_a_conversation_that_comes_back_computes_its_new_turn(small: Pair, rng: np.random.Generator) -> None:
    engine, reference = small
    first = tokens(rng, 120)
    verify_and_check(engine, reference, ask("ue/1", first, tokens(rng, 6)))
    engine.release("ue/1")
    other = ask("ue/2", tokens(rng, 60))
    grown = np.concatenate([first, tokens(rng, 30)])
    assert engine.cached(other) == engine.cached(ask("thief/1", grown)) == 0, "no other UE's text is used"
    verify_and_check(engine, reference, other, ask("thief/1", grown))
    engine.release("thief/1")
    again = ask("ue/3", grown, tokens(rng, 6))
    assert engine.cached(again) == 120
    (result,) = verify_and_check(engine, reference, again)
    assert result.cached == 120 and places(engine) == [2]
    engine.release("ue/3")
    assert engine.cached(ask("ue/4", first)) == 0, "a repeated prompt, which is measured again, is computed again"


def test_sessions_in_use_stay_consecutive(small: Pair, rng: np.random.Generator) -> None:
    engine, reference = small
    verify_and_check(engine, reference, *(ask(f"{name}/1", tokens(rng, 80)) for name in "abc"))
    engine.release("b/1")
    engine.release("c/1")
    verify_and_check(engine, reference, ask("d/1", tokens(rng, 9)))
    assert sorted(session.place for session in engine._sessions.values()) == [0, 1]
    verify_and_check(engine, reference, ask("c/2", tokens(rng, 9)))
    assert places(engine) == []


def test_random_rounds_of_more_sessions_than_sequences(small: Pair, rng: np.random.Generator) -> None:
    engine, reference = small
    sessions = {str(i): tokens(rng, int(rng.integers(10, 60))).tolist() for i in range(8)}
    lost = 0
    for _ in range(40):
        names = [name for name in sessions if rng.random() < 0.4]
        drafts = {name: tokens(rng, int(rng.integers(0, 9))).tolist() for name in names}
        results = verify_and_check(engine, reference, *(ask(name, sessions[name], drafts[name]) for name in names))
        lost += sum(result.cached == 0 for result in results)
        for name in names:
            kept = int(rng.integers(len(drafts[name]) + 1))
            sessions[name] = [*sessions[name], *drafts[name][:kept], int(tokens(rng, 1)[0])][-150:]
        if rng.random() < 0.2:
            engine.release(str(rng.integers(8)))
        assert len(engine._sessions) + len(places(engine)) == 3
    assert lost > 5


@pytest.mark.parametrize("fails_at", [0, 1])
def test_a_failed_pass_changes_no_session(
    small: Pair, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """The prompt's decode fails, or that of the rows after it: both sessions go on where they were."""
    engine, reference = small
    known, new = ask("a", tokens(rng, 20), tokens(rng, 4)), ask("b", tokens(rng, 30), tokens(rng, 4))
    verify_and_check(engine, reference, known)
    assert engine._llama is not None
    library, calls = engine._llama._lib, []

    def failing(context: Any, batch: Any) -> int:
        calls.append(int(batch.n_tokens))
        code = library.llama_decode(context, batch)
        return -3 if len(calls) == fails_at + 1 else int(code)

    class Library:
        llama_decode = staticmethod(failing)

        def __getattr__(self, name: str) -> Any:
            return getattr(library, name)

    follow_up = ask("a", [*known.prefix, *known.draft[:2]], tokens(rng, 3))
    with monkeypatch.context() as patch:
        patch.setattr(engine._llama, "_lib", Library())
        with pytest.raises(EngineError, match=r"2 requests: .*failed to compute"):
            engine.verify([follow_up, new])
    assert len(calls) == fails_at + 1
    after, _ = verify_and_check(engine, reference, follow_up, new)
    assert after.cached == len(follow_up.prefix) - 1


def test_logits_that_are_not_numbers(small: Pair, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, reference = small
    request = ask("a", tokens(rng, 20), tokens(rng, 4))
    with monkeypatch.context() as patch:
        patch.setattr(
            LlamaGroup, "score", lambda self, rows: (np.full((5, TOKENS), np.nan, np.float32), np.zeros((5, 128)))
        )
        with pytest.raises(EngineError, match="not numbers"):
            engine.verify([request])
    verify_and_check(engine, reference, request)


def test_a_batch_computes_what_each_session_computes_alone(pair: Pair, rng: np.random.Generator) -> None:
    """Rounding differs between batches by less than any margin that decides."""
    requests = [ask(str(i), tokens(rng, 40), tokens(rng, 6)) for i in range(16)]
    together = pair[0].verify(requests)
    for request, result in zip(requests, together, strict=True):
        (alone,) = pair[0].verify([request])
        assert alone.argmax.tolist() == result.argmax.tolist()
        np.testing.assert_allclose(alone.margin, result.margin, atol=2e-5)


def test_a_quantised_target(random_models: dict[str, Path], rng: np.random.Generator, tmp_path: Path) -> None:
    """It is its own reference: speculative decoding gives what it decodes one token at a time."""
    from testbed.models.export import export_gguf

    export_gguf(random_models["llama"], tmp_path / "q8.gguf", "q8_0")
    engine = LlamaEngine(tmp_path / "q8.gguf", threads=1)
    prompt = tokens(rng, 20).tolist()
    assert decode(engine, prompt, 40, 5, rng) == decode(engine, prompt, 40, 0, rng)
    engine.close()


def test_bad_requests(pair: Pair) -> None:
    for prefix, complaint in (([], "empty"), ([TOKENS], "outside"), ([1] * 512, "513 positions")):
        with pytest.raises(BadInput, match=complaint):
            pair[0].verify([ask("a", prefix)])
    assert pair[0].verify([]) == []


def test_what_it_says_of_itself(random_ggufs: dict[str, Path]) -> None:
    engine = LlamaEngine(random_ggufs["qwen2"], max_model_len=300, max_sessions=5)
    assert (engine.vocab_size, engine.hidden_size, engine.max_positions) == (TOKENS, 128, 300)
    assert (engine.block_size, engine.kv_tokens, engine.max_batch_tokens) == (1, 1500, MAX_BATCH)
    assert engine.model_name == str(random_ggufs["qwen2"])
    engine.close()
    engine.close()
    engine.release("a")
    with pytest.raises(EngineError, match="closed"):
        engine.verify([VerifyRequest("a", np.array([1], np.int32), np.empty(0, np.int32))])


def test_the_kv_cache_is_bounded(random_ggufs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers, two heads of 32 numbers each for keys and values, 512 positions, 4 bytes."""
    session_bytes = 2 * 2 * 2 * 32 * 512 * 4
    for cache_bytes, sessions in ((5 * session_bytes + 1, 5), (1, 1), (1000 * session_bytes, 16)):
        monkeypatch.setattr("testbed.bs.engines.llama_options.KV_CACHE_BYTES", cache_bytes)
        engine = LlamaEngine(random_ggufs["llama"])
        assert engine.kv_tokens == 512 * sessions
        engine.close()


def test_models_and_options_that_do_not_fit(
    random_models: dict[str, Path], random_ggufs: dict[str, Path], tmp_path: Path
) -> None:
    for write, words in ((write_mamba, "recurrent"), (write_gemma3, "sliding-window")):
        with pytest.raises(ModelError, match=words):
            LlamaEngine(write(tmp_path / "model.gguf"))
    with pytest.raises(ModelError, match="testbed models export --model"):
        LlamaEngine(random_models["llama"])
    with pytest.raises(ModelError, match=f"{TOKENS} rows for a tokenizer of {TOKENS + 1}"):
        LlamaEngine(random_ggufs["llama"], vocab_size=TOKENS + 1)
    for options, words in (
        ({"max_model_len": 513}, "between 2 and the model's 512"),
        ({"max_model_len": 1}, "between 2 and"),
        ({"max_sessions": 0}, "between 1 and 256"),
    ):
        with pytest.raises(BadInput, match=words):
            LlamaEngine(random_ggufs["llama"], **options)
