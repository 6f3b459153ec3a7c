"""Drafting traces: collection with a synthetic pair, and storage on disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.errors import BadInput
from testbed.experiments.inputs.datasets import load_dataset
from testbed.experiments.predictor.collect import LANES, TraceCollectConfig, TraceDecoder, collect
from testbed.experiments.predictor.traces import TraceMeta, Traces, TraceStore, joined, split
from testbed.files import held
from testbed.models.bundle import bundled
from testbed.protocols.vocabulary import FILE, token_ids
from testbed.synthetic import next_token
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.load_drafter import DrafterOptions, load_drafter
from testbed.ue.prompts import Prompter
from testbed.ue.windows.predictor import FEATURES
from tests.support.predictors import made_traces

VOCAB, WINDOW, TOKENS = 512, 5, 23


def traces_of(prompts: list[list[int]], end_ids: tuple[int, ...] = ()) -> Traces:
    drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.7)
    return TraceDecoder(drafter, SyntheticEngine(vocab_size=VOCAB), WINDOW, TOKENS, end_ids).run(prompts, 100)


def told_alone(prompt: list[int], end_ids: tuple[int, ...]) -> list[list[tuple[float, ...]]]:
    """Rounds of one prompt, token by token from the synthetic pair's definition: (*features, label)."""
    drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.7)
    ids, rounds = list(prompt), []
    while len(ids) - len(prompt) < TOKENS and ids[-1] not in end_ids:
        draft, rows, alive = list(ids), [], True
        for position in range(1, min(WINDOW, TOKENS - (len(ids) - len(prompt))) + 1):
            guess, right = drafter.predict(draft, False), next_token(draft, VOCAB, 0)
            label = -1 if not alive else int(guess.id == right)
            rows.append((guess.top1, guess.entropy, guess.margin, guess.logit_std, position, label))
            if alive:
                ids.append(right)
                if right in end_ids or len(ids) - len(prompt) == TOKENS:
                    alive = False if guess.id != right else alive
            alive = alive and guess.id == right
            draft.append(guess.id)
            if guess.id in end_ids:
                break
        if alive and ids[-1] not in end_ids and len(ids) - len(prompt) < TOKENS:
            ids.append(next_token(ids, VOCAB, 0))
        rounds.append(rows)
    return rounds


@pytest.mark.parametrize("end_ids", [(), tuple(range(40))])
def test_decoding_labels_tokens_up_to_the_first_rejection(end_ids: tuple[int, ...]) -> None:
    prompts = [[200 + i, 300 + 7 * i] for i in range(LANES + 5)]  # more than are decoded at once
    found = traces_of(prompts, end_ids)
    assert set(found.prompt.tolist()) == set(range(100, 100 + len(prompts)))
    for number, prompt in enumerate(prompts, 100):
        expected = told_alone(prompt, end_ids)
        known = [row for rows in expected for row in rows if row[-1] >= 0]
        later = [row for rows in expected for row in rows if row[-1] < 0]
        mine = found.prompt == number
        np.testing.assert_allclose(found.features[mine], np.array(known)[:, :5], rtol=1e-6)
        np.testing.assert_array_equal(found.accepted[mine], np.array(known)[:, 5])
        rest = found.later_features[found.later_prompt == number]
        np.testing.assert_allclose(rest, np.array(later).reshape(-1, 6)[:, :5], rtol=1e-6)
        assert found.round[mine].max() + 1 == len(expected)


def meta(**change: object) -> TraceMeta:
    given: dict[str, object] = {"dataset": "bundled:calibration", "first": 0, "prompts": 4, "window": 8}
    given |= {"max_tokens": 32, "engine": "synthetic", "dtype": "float32"}
    given |= {"drafter": "d", "drafter_fingerprint": "1", "target": "t", "target_fingerprint": "2"}
    return TraceMeta(**(given | change))  # type: ignore[arg-type]


def test_traces_come_back_from_their_directory(tmp_path: Path) -> None:
    store = TraceStore(tmp_path / "new")
    store.create(meta())
    parts = [made_traces(prompts=2, seed=seed) for seed in (0, 1)]
    for number, part in enumerate(parts):
        store.write(number, part)
    (tmp_path / "new" / "chunk-\u00b2\u00b2.npz").write_bytes(b"no chunk's number")
    assert store.chunks() == [0, 1]
    for f in fields(Traces):
        np.testing.assert_array_equal(
            getattr(TraceStore(tmp_path / "new").load(), f.name), getattr(joined(parts), f.name)
        )


def test_another_collection_is_left_alone(tmp_path: Path) -> None:
    TraceStore(tmp_path).create(meta())
    TraceStore(tmp_path).create(meta())
    with pytest.raises(BadInput, match="another collection"):
        TraceStore(tmp_path).create(meta(window=4))


def test_what_holds_no_traces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="predictor collect"):
        TraceStore(tmp_path).load()
    store = TraceStore(tmp_path)
    store.create(meta())
    with pytest.raises(BadInput, match=r"no traces in .* yet"):
        store.load()
    (tmp_path / "chunk-00000.npz").write_bytes(b"nonsense")
    with pytest.raises(BadInput, match="not a chunk of traces"):
        store.load()
    traces = made_traces(prompts=1)
    store.write(0, Traces(**{**vars(traces), "accepted": traces.accepted[1:]}))
    with pytest.raises(BadInput, match="has the shape"):
        store.load()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"features": lambda one: np.where(one == one.max(), np.nan, one)}, "features has values outside"),
        ({"features": lambda one: one * np.float32(1e9)}, "features has values outside"),
        ({"features": lambda one: one.astype(str)}, "features has elements of type <U"),
        ({"accepted": lambda one: one + np.uint8(254)}, "accepted has values outside 0..1"),
        ({"accepted": lambda one: one[:, None]}, r"accepted has the shape \("),
        ({"prompt": lambda one: one - 1e9}, "prompt has elements of type float64"),
        ({"round": lambda one: one[1:]}, "round has the shape"),
        ({"later_features": lambda one: one[:, :3]}, "later_features has the shape"),
        ({"later_round": lambda one: one - 7}, "later_round has values outside 0.."),
    ],
)
def test_damaged_traces_are_refused(changes: dict[str, Callable[[Any], Any]], said: str, tmp_path: Path) -> None:
    store = TraceStore(tmp_path)
    store.create(meta())
    arrays = vars(made_traces(prompts=2))
    store.write(0, Traces(**{**arrays, **{name: change(arrays[name]) for name, change in changes.items()}}))
    with pytest.raises(BadInput, match=said):
        store.load()


def test_a_split_keeps_prompts_whole() -> None:
    traces = made_traces(prompts=20)
    rest, held = split(traces, 0.25, 3)
    assert len(np.unique(held.prompt)) == 5
    assert not set(rest.prompt.tolist()) & set(held.prompt.tolist())
    assert len(rest) + len(held) == len(traces)
    assert len(rest.later_prompt) + len(held.later_prompt) == len(traces.later_prompt)
    assert set(held.later_prompt.tolist()) <= set(held.prompt.tolist())
    again = split(traces, 0.25, 3)[1]
    np.testing.assert_array_equal(held.prompt, again.prompt)
    assert set(split(traces, 0.25, 4)[1].prompt.tolist()) != set(held.prompt.tolist())


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_split_needs_something_on_both_sides(share: float) -> None:
    with pytest.raises(BadInput, match="held out"):
        split(made_traces(prompts=5), share, 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"window": 0}, "window must lie in"),
        ({"prompts": 0}, "at least 1"),
        ({"first": -1}, "first must be at least 0"),
        ({"drafter": "mine.gguf"}, "also needs --model"),
        ({"dataset": "bundled:none"}, "bundled:test"),
        ({"temperature": 1.0, "threshold": 0.2}, "by sampling or by a judge"),
        ({"judge": "digits"}, "digits needs --threshold"),
        ({"judge": "strict", "threshold": 0.2}, "strict has"),
        ({"temperature": -1.0}, "temperature"),
    ],
)
def test_a_collection_that_cannot_be_made_is_refused(tmp_path: Path, change: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        collect(TraceCollectConfig(**change), tmp_path / "out", lambda *_: None)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_a_collection_goes_on_with_the_same_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.experiments.predictor.collect.with_models", lambda *_: None)
    questions, out = tmp_path / "mine.jsonl", tmp_path / "out"
    config = TraceCollectConfig(dataset=str(questions), prompts=1, engine="transformers")
    for text in ("one", "one", "two"):
        questions.write_text(f'{{"question": "{text}"}}\n')
        if text == "one":
            collect(config, out, lambda *_: None)
    with pytest.raises(BadInput, match=r"mine\.jsonl has changed since the results"):
        collect(config, out, lambda *_: None)


def test_prompts_are_in_the_format_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[list[int]] = []
    monkeypatch.setattr(
        TraceDecoder, "run", lambda self, prompts, first: read.extend(prompts) or made_traces(prompts=2)
    )
    config = TraceCollectConfig(prompts=2, engine="transformers", max_tokens=8, prompt_format="Solve: {question}\n")
    store = collect(config, tmp_path, lambda *_: None)
    prompter = Prompter(bundled().require("tokenizer"))
    questions = [one.question for one in load_dataset("bundled:calibration", 2)]
    assert [prompter.text(ids) for ids in read] == [f"Solve: {question}\n" for question in questions]
    assert store.meta().prompt_format == config.prompt_format
    with pytest.raises(BadInput, match="another collection"):
        collect(msgspec.structs.replace(config, prompt_format="plain"), tmp_path, lambda *_: None)


def test_an_unfinished_collection_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It was taken for whole, with the number of prompts that it was to have."""
    store = TraceStore(tmp_path)
    store.create(meta(prompts=60))
    store.write(0, made_traces(prompts=25))
    store.write(2, made_traces(prompts=10))
    assert store.missing() == [1]
    assert store.load().prompts == 25
    assert "is unfinished: it lacks 1 of 3 chunks of prompts" in caplog.text
    caplog.clear()
    store.write(1, made_traces(prompts=25))
    store.load()
    assert not caplog.text


@pytest.mark.parametrize("prompts", [-1, 10**13])
def test_a_collection_of_more_prompts_than_there_can_be(prompts: int, tmp_path: Path) -> None:
    """All missing chunks were listed: 11.7 GB."""
    store = TraceStore(tmp_path)
    store.create(meta(prompts=prompts))
    with pytest.raises(BadInput, match=f"names {prompts} prompts; there are at most 1048576"):
        store.load()


def test_two_processes_do_not_collect_into_one_directory(tmp_path: Path) -> None:
    config = TraceCollectConfig(prompts=2, engine="transformers", max_tokens=8)
    with held(tmp_path, "not free"), pytest.raises(BadInput, match="another process collects traces"):
        collect(config, tmp_path, lambda *_: None)


@pytest.mark.slow
def test_collecting_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.experiments.predictor.collect.CHUNK", 3)
    monkeypatch.setattr("testbed.experiments.predictor.traces.CHUNK", 3)
    config = TraceCollectConfig(prompts=4, window=3, max_tokens=8, engine="transformers")
    told: list[tuple[int, int]] = []
    whole = collect(config, tmp_path / "out", lambda *t: told.append(t)).load()
    assert told == [(0, 4), (3, 4), (4, 4)]
    assert whole.features.shape[1] == len(FEATURES)
    assert set(whole.features[:, 4].tolist()) == {1.0, 2.0, 3.0}
    assert 0.3 < whole.accepted.mean() < 1
    (tmp_path / "out" / "chunk-00001.npz").unlink()
    told.clear()
    again = collect(config, tmp_path / "out", lambda *t: told.append(t)).load()
    assert told == [(3, 4), (4, 4)]
    np.testing.assert_array_equal(again.accepted, whole.accepted)
    np.testing.assert_allclose(again.features, whole.features, atol=1e-4)


@pytest.mark.slow
def test_a_drafter_with_another_vocabulary_drafts_what_both_know(tmp_path: Path) -> None:
    """Collecting refused it, so that such a pair had no predictor."""
    tokenizer = bundled().require("tokenizer")
    known = [token for token, _ in sorted(token_ids(tokenizer).items(), key=lambda item: item[1])]
    words = {f"only here {i}" if i % 8 == 7 else token: i for i, token in enumerate(known)}
    model = {"type": "WordLevel", "vocab": words, "unk_token": known[0]}
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / FILE).write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    drafter = shutil.copy(bundled().require("drafter"), tmp_path / "own")
    config = TraceCollectConfig(
        prompts=2, window=3, max_tokens=8, engine="transformers", drafter=str(drafter),
        model=str(bundled().require("target")),
    )  # fmt: skip
    store = collect(config, tmp_path / "out", lambda *_: None)
    loaded = load_drafter(str(drafter), DrafterOptions(len(known), 64, tokenizer=tokenizer))
    loaded.close()
    assert store.meta().drafter_fingerprint == loaded.fingerprint
    assert loaded.fingerprint.endswith("/mapped")
    assert 0 < store.load().accepted.mean() < 1
