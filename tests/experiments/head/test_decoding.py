"""Episodes of the synthetic pair, every mismatch compared with both models; hidden states against transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.bs.engines.registry import load_engine
from testbed.decision_head.episodes import CRITICAL, HARMLESS, UNPARSED
from testbed.experiments.head.decoding import Episode, EpisodeSetup, chunk_of, decode_episode
from testbed.experiments.inputs.scorers import Scorer
from testbed.experiments.lockstep.answers import Answers, AnswerTask
from testbed.experiments.lockstep.completions import Completer
from testbed.experiments.lockstep.decoding import Lockstep
from testbed.synthetic import next_token, noise
from testbed.ue.llama.drafter import LlamaDrafter
from tests.support.models import TOKENS
from tests.support.reference import Reference
from tests.support.synthetic import ENDS, HIDDEN, VOCAB, drafter, engine, greedy, text_of

MAX_TOKENS = 40


def tens(text: str) -> int | None:
    """An answer that only some mismatches change: the number of ids of at least 30, divided by three."""
    return sum(int(word) >= 30 for word in text.split()) // 3 if text else None


def task(scorer: Scorer = tens, max_tokens: int = MAX_TOKENS) -> AnswerTask:
    return AnswerTask(Completer(ENDS), max_tokens, text_of, scorer)


def episodes(
    prompts: list[list[int]], policy: str, *, alpha: float = 0.7, window: int = 8, explore: float = 0.5, width: int = 3
) -> list[Episode]:
    setup = EpisodeSetup(drafter(alpha, max_sequences=width), task(), window, policy, explore, 0)
    found = Lockstep(engine(), width).run(decode_episode(setup, i, p) for i, p in enumerate(prompts))
    return [episode for _, episode in sorted(found, key=lambda pair: pair[0])]


PROMPTS = [[3, i, 11, 2 * i % VOCAB] for i in range(12)]


@settings(max_examples=25)
@given(
    st.lists(st.integers(1, VOCAB - 1), min_size=1, max_size=10), st.integers(1, 12), st.sampled_from([0.0, 0.5, 1.0])
)
def test_every_mismatch_is_what_it_says(prompt: list[int], window: int, explore: float) -> None:
    """Ids, hidden states and positions are those of both models after the recorded prefix."""
    ((episode),) = episodes([prompt], "explore", window=window, explore=explore)
    source = drafter(0.7)
    for i, ids in enumerate(episode.prefix):
        prefix = ids.tolist()
        assert prefix[: len(prompt)] == prompt and episode.position[i] == len(prefix) - len(prompt) < MAX_TOKENS
        token = source.predict(prefix, False)
        assert episode.draft_id[i] == token.id != episode.target_id[i] == next_token(prefix, VOCAB, 0)
        assert np.array_equal(episode.drafter_hidden[i], token.hidden)
        assert np.array_equal(episode.target_hidden[i], noise(prefix, 0, "hidden", HIDDEN))
        read = [*prefix, token.id]
        assert np.array_equal(episode.drafter_after[i], source.predict(read, False).hidden)
        assert np.array_equal(episode.target_after[i], noise(read, 0, "hidden", HIDDEN))
    assert episode.labels == [] and episode.completions == 0


def outcomes(episode: Episode) -> list[bool]:
    """Whether each mismatch but the last was kept; between mismatches both models agree."""
    kept = []
    for now, (prefix, following) in enumerate(zip(episode.prefix, episode.prefix[1:], strict=False)):
        assert following[: len(prefix)].tolist() == prefix.tolist()
        after = following[len(prefix)]
        assert after in (episode.draft_id[now], episode.target_id[now])
        for end in range(len(prefix) + 1, len(following)):
            assert following[end] == next_token(following[:end], VOCAB, 0)
        kept.append(bool(after == episode.draft_id[now]))
    return kept


def test_strict_stays_on_the_targets_own_output() -> None:
    found = episodes(PROMPTS, "strict")
    for prompt, episode in zip(PROMPTS, found, strict=True):
        own = prompt + greedy(prompt, MAX_TOKENS)
        assert not any(outcomes(episode))
        for prefix in episode.prefix:
            assert own[: len(prefix)] == prefix.tolist()
    # every place where the drafter disagrees on that output is met, but behind a window that was kept whole
    source = drafter(0.7)
    for prompt, episode in zip(PROMPTS, episodes(PROMPTS, "strict", window=1), strict=True):
        own = prompt + greedy(prompt, MAX_TOKENS)
        differ = [p for p in range(len(own) - len(prompt)) if _differ(source, own[: len(prompt) + p])]
        assert set(episode.position) <= set(differ)
        assert all(p - 1 not in differ for p in set(differ) - set(episode.position))  # a bonus token's place


def _differ(source: object, prefix: list[int]) -> bool:
    return source.predict(prefix, False).id != next_token(prefix, VOCAB, 0)  # type: ignore[attr-defined]


def test_explore_keeps_as_many_as_it_is_told_and_repeats_itself() -> None:
    assert all(all(outcomes(episode)) for episode in episodes(PROMPTS, "explore", explore=1.0))
    assert not any(any(outcomes(episode)) for episode in episodes(PROMPTS, "explore", explore=0.0))
    half = episodes(PROMPTS * 4, "explore", explore=0.5)
    kept = [k for episode in half for k in outcomes(episode)]
    assert 0.4 < np.mean(kept) < 0.6 and len(kept) > 150
    again = episodes(PROMPTS * 4, "explore", explore=0.5, width=7)
    assert [e.position for e in again] == [e.position for e in half]


def test_oracle_keeps_what_is_harmless_and_its_labels_are_right() -> None:
    found = episodes(PROMPTS, "oracle")
    labels = [label for episode in found for label in episode.labels]
    assert 0.2 < np.mean(labels) < 0.8 and len(labels) > 40
    for prompt, episode in zip(PROMPTS, found, strict=True):
        assert [label == HARMLESS for label in episode.labels[:-1]] == outcomes(episode)
        for i, ids in enumerate(episode.prefix):
            assert (episode.labels[i] == CRITICAL) == brute(
                prompt, ids.tolist(), episode.draft_id[i], episode.target_id[i]
            )


def brute(prompt: list[int], prefix: list[int], draft: int, target: int) -> bool:
    """Both outputs, completed one token at a time."""
    answers = []
    for token in (draft, target):
        text = [*prefix, token]
        if token not in ENDS:
            text += greedy(text, MAX_TOKENS + len(prompt) - len(text))
        answers.append(tens(text_of(text[len(prompt) :])))
    return answers[0] != answers[1]


def test_an_oracle_completes_once_a_mismatch_and_once_a_prompt() -> None:
    for episode in episodes(PROMPTS, "oracle"):
        assert episode.completions == (len(episode) + 1 if len(episode) else 0)


def test_answers_know_what_they_were_told_and_no_answer_is_compared_with_none() -> None:
    prompt, prefix = [3, 4], [3, 4]
    target = next_token(prefix, VOCAB, 0)
    completed = {draft: greedy([*prefix, draft], MAX_TOKENS - 1) for draft in range(1, VOCAB) if draft != target}
    draft, own = next((d, o) for d, o in completed.items() if len(o) > 5 and o[-1] in ENDS)
    for begun in ([], own[:1], own[:5], own, [*own, 7]):  # an end id closes it, whatever comes behind
        assert asked(Answers(task(), "s", 2), prefix, draft, target, begun) == brute(prompt, prefix, draft, target)
    nothing = Answers(task(lambda text: None), "s", 2)
    assert asked(nothing, prefix, draft, target, []) is None
    gained = Answers(task(lambda text: True if text.startswith(str(draft)) else None), "s", 2)
    assert asked(gained, prefix, draft, target, []) is None
    lost = Answers(task(lambda text: True if text.startswith(str(target)) else None), "s", 2)
    assert asked(lost, prefix, draft, target, []) is True


def test_an_oracle_leaves_out_what_has_no_answer_and_rejects_it() -> None:
    """Every other prompt has no answer."""

    def even(text: str) -> int | None:
        return tens(text) if len(text) % 2 else None

    setup = EpisodeSetup(drafter(0.7), task(even), 8, "oracle", 0.0, 0)
    found = [
        episode for _, episode in Lockstep(engine(), 3).run(decode_episode(setup, i, p) for i, p in enumerate(PROMPTS))
    ]
    labels = [label for episode in found for label in episode.labels]
    assert {HARMLESS, CRITICAL, UNPARSED} == set(labels)
    for episode in found:
        assert outcomes(episode) == [label == HARMLESS for label in episode.labels[:-1]]


def asked(answers: Answers, prefix: list[int], draft: int, target: int, begun: list[int]) -> bool | None:
    ((_, critical),) = Lockstep(engine(), 1).run([answers.critical(prefix, draft, target, begun)])
    return critical


def test_an_end_id_or_a_full_output_is_not_completed() -> None:
    seen: list[str] = []

    def note(text: str) -> str:
        seen.append(text)
        return text

    answers = Answers(task(note, max_tokens=3), "s", 2)
    assert asked(answers, [3, 4, 5, 6], 7, 0, [])
    assert seen == ["5 6 0", "5 6 7"]
    assert asked(Answers(task(note), "s", 2), [3, 4, 5, 6], 0, 7, [])
    assert seen[3] == "5 6 0" and seen[2].startswith("5 6 7 ")


def test_a_chunk_holds_the_episodes_one_after_the_other() -> None:
    found = episodes(PROMPTS, "oracle")
    chunk = chunk_of(found, HIDDEN, HIDDEN)
    assert len(chunk) == sum(map(len, found))
    row = 0
    for episode in found:
        for order in range(len(episode)):
            assert (chunk.prompt[row], chunk.order[row], chunk.prompt_len[row]) == (episode.prompt, order, 4)
            assert chunk.prefix(row).tolist() == episode.prefix[order].tolist()
            assert np.array_equal(chunk.target_hidden[row], episode.target_hidden[order])
            row += 1
    empty = chunk_of(episodes(PROMPTS, "strict", alpha=1.0), 5, 6)
    assert len(empty) == 0 and empty.drafter_hidden.shape == (0, 5) and empty.target_hidden.shape == (0, 6)


def test_a_failing_decoding_frees_its_sequence() -> None:
    source = drafter(0.5, max_sequences=1)
    setup = EpisodeSetup(source, task(), 4, "strict", 0.0, 0)
    begun = decode_episode(setup, 0, [1, 2])
    next(begun)
    begun.close()
    source.open([1, 2]).close()


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_states_of_real_engines_are_those_of_transformers(
    kind: str, random_models: dict[str, Path], random_ggufs: dict[str, Path], references: dict[str, Reference]
) -> None:
    """Random models with one vocabulary disagree at almost every token."""
    other = {"llama": "qwen2", "qwen3": "llama"}[kind]
    rng = np.random.default_rng(3)
    prompts = [rng.integers(0, TOKENS, 20).tolist() for _ in range(3)]
    small = LlamaDrafter(random_ggufs[other], context=64, sequences=2, threads=1, kv_type="f32")
    target = load_engine("transformers", random_models[kind], vocab_size=TOKENS)
    setup = EpisodeSetup(small, AnswerTask(Completer(()), 20, text_of, hash), 6, "explore", 0.5, 1)
    found = dict(Lockstep(target, 2).run(decode_episode(setup, i, p) for i, p in enumerate(prompts)))
    target.close()
    small.close()
    assert sum(map(len, found.values())) > 30
    for episode in found.values():
        for i, prefix in enumerate(episode.prefix):
            read = [*prefix.tolist(), episode.draft_id[i]]
            for reference, token, state, after, tolerance in (
                (references[kind], episode.target_id[i], episode.target_hidden[i], episode.target_after[i], 1e-4),
                (references[other], episode.draft_id[i], episode.drafter_hidden[i], episode.drafter_after[i], 2e-2),
            ):
                logits, hidden = reference.outputs(read)
                assert token == logits[-2].argmax()
                assert np.abs(hidden[-2] - state).max() < tolerance
                assert np.abs(hidden[-1] - after).max() < tolerance
