"""Collecting and labelling episodes with the synthetic pair: chunks, resuming, and refused settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from testbed.decision_head.episodes import CRITICAL, HARMLESS, UNPARSED, EpisodeStore, Meta, Mismatches
from testbed.errors import BadInput
from testbed.experiments.head import collect as head_collect
from testbed.experiments.head import label as head_label
from testbed.experiments.head.collect import check, quantisation
from testbed.experiments.head.config import EpisodeCollectConfig
from testbed.experiments.head.decoding import EpisodeSetup
from testbed.experiments.head.label import label
from testbed.experiments.lockstep.answers import AnswerTask
from testbed.experiments.lockstep.completions import Completer
from testbed.experiments.lockstep.decoding import Lockstep
from testbed.files import held
from testbed.models.export import export_gguf
from testbed.protocols.messages import Reading
from tests.support.refusals import refuse
from tests.support.synthetic import ENDS, HIDDEN, VOCAB, drafter, engine, text_of

PROMPTS = [[3, i % VOCAB, 11, 2 * i % VOCAB] for i in range(11)]
FIRST = 100


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_collect, "CHUNK", 4)


def tens(text: str) -> int:
    """Number of ids of at least 30, divided by three."""
    return sum(int(word) >= 30 for word in text.split()) // 3


TASK = AnswerTask(Completer(ENDS), 40, text_of, tens)


def store(directory: Path, policy: str) -> EpisodeStore:
    """An empty collection."""
    meta = Meta(
        dataset="synthetic", first=FIRST, prompts=len(PROMPTS), seed=0, window=8, max_tokens=40, policy=policy,
        engine="synthetic", drafter="synthetic", drafter_fingerprint="synthetic", drafter_quantisation="F32",
        target="synthetic", target_fingerprint="synthetic", drafter_hidden=HIDDEN, target_hidden=HIDDEN,
    )  # fmt: skip
    made = EpisodeStore(directory)
    made.create(meta)
    return made


class Told:
    """Records progress, and interrupts after `stop_at`."""

    def __init__(self, stop_at: int = 10**9) -> None:
        self.seen: list[tuple[int, int, str]] = []
        self._stop_at = stop_at

    def __call__(self, done: int, total: int, text: str) -> None:
        self.seen.append((done, total, text))
        if done >= self._stop_at:
            raise KeyboardInterrupt


def fill(made: EpisodeStore, policy: str, told: Told, alpha: float = 0.7) -> int:
    """Collect; returns the engine's requests."""
    lockstep = Lockstep(engine(), 3)
    head_collect.fill(made, EpisodeSetup(drafter(alpha), TASK, 8, policy, 0.5, 0), PROMPTS, lockstep, told)
    return lockstep.requests


def same(one: Mismatches, other: Mismatches) -> bool:
    fields = (f.name for f in dataclasses.fields(Mismatches))
    return all(np.array_equal(getattr(one, f), getattr(other, f)) for f in fields)


@pytest.fixture(params=["oracle", "explore"])
def policy(request: pytest.FixtureRequest) -> Iterator[str]:
    return request.param  # type: ignore[no-any-return]


def test_an_interrupted_collection_goes_on_where_it_was(tmp_path: Path, policy: str) -> None:
    whole, told = store(tmp_path / "whole", policy), Told()
    requests = fill(whole, policy, told)
    assert whole.chunks() == [0, 1, 2]
    assert told.seen == [(done, len(PROMPTS), "prompts") for done in range(len(PROMPTS) + 1)]
    for chunk, count in ((0, 4), (1, 4), (2, 3)):
        assert set(whole.read(chunk).prompt) <= {FIRST + 4 * chunk + i for i in range(count)}

    parts = store(tmp_path / "parts", policy)
    with pytest.raises(KeyboardInterrupt):
        fill(parts, policy, Told(stop_at=8))
    assert 0 < len(parts.chunks()) < 3
    again = Told()
    assert 0 < fill(parts, policy, again) < requests
    assert again.seen[0] == (4 * len(parts.chunks()[:1]), len(PROMPTS), "prompts") and again.seen[-1][0] == len(PROMPTS)
    assert fill(parts, policy, Told()) == 0
    for chunk in whole.chunks():
        assert same(whole.read(chunk), parts.read(chunk))
    assert whole.labelled() == parts.labelled() == ([0, 1, 2] if policy == "oracle" else [])
    assert not list(tmp_path.rglob(".*.safetensors.*"))


def test_an_oracles_chunk_without_labels_is_done_again(tmp_path: Path) -> None:
    made = store(tmp_path, "oracle")
    fill(made, "oracle", Told())
    before = made.read_labels(1)
    (tmp_path / "labels-00001.safetensors").unlink()
    assert fill(made, "oracle", Told()) > 0
    after = made.read_labels(1)
    assert np.array_equal(before[0], after[0]) and before[1] == after[1]


def test_a_collection_may_be_without_mismatches(tmp_path: Path) -> None:
    made = store(tmp_path, "strict")
    fill(made, "strict", Told(), alpha=1.0)
    assert [len(made.read(chunk)) for chunk in made.chunks()] == [0, 0, 0]
    head_label.fill(made, TASK, Lockstep(engine(), 3), Told())
    found, critical = made.load()
    assert len(found) == len(critical) == 0


def test_a_collection_goes_on_with_the_same_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers belonged to other questions than the episodes of the first chunks."""
    monkeypatch.setattr(head_collect, "_to_do", lambda *_: [])
    questions, out = tmp_path / "mine.jsonl", tmp_path / "out"
    config = EpisodeCollectConfig(dataset=str(questions), prompts=1, engine="transformers", policy="strict")
    for text in ("one", "one", "two"):
        questions.write_text(f'{{"question": "{text}", "answer": "1"}}\n')
        if text == "one":
            head_collect.collect(config, out, Told())
    refuse(lambda: head_collect.collect(config, out, Told()), BadInput, "mine.jsonl has changed since the results")


def test_labels_are_those_that_the_oracle_makes_on_its_way(tmp_path: Path) -> None:
    made, told = store(tmp_path, "oracle"), Told()
    fill(made, "oracle", Told())
    _, on_the_way = made.load()
    for path in tmp_path.glob("labels-*"):
        path.unlink()
    head_label.fill(made, TASK, Lockstep(engine(), 5), told)
    found, critical = made.load()
    assert np.array_equal(critical, on_the_way) and 0.2 < critical.mean() < 0.8
    completions = sum(made.read_labels(chunk)[1] for chunk in made.chunks())
    assert completions == len(found) + len(np.unique(found.prompt))
    assert told.seen == [(done, 3, "chunks") for done in range(4)]


def test_labels_without_an_answer_are_left_out_and_counted(tmp_path: Path) -> None:
    made = store(tmp_path, "strict")
    fill(made, "strict", Told())
    silent = AnswerTask(Completer(ENDS), 40, text_of, lambda text: tens(text) if len(text) % 2 else None)
    head_label.fill(made, silent, Lockstep(engine(), 3), Told())
    parts = [made.read(chunk) for chunk in made.chunks()]
    labels = np.concatenate([made.read_labels(chunk)[0] for chunk in made.chunks()])
    assert set(labels.tolist()) == {HARMLESS, CRITICAL, UNPARSED}
    found, critical = made.load()
    origins = [(part, row) for part in parts for row in range(len(part))]
    kept = [pair for pair, label in zip(origins, labels, strict=True) if label != UNPARSED]
    assert len(found) == len(kept) == len(critical)
    assert critical.tolist() == (labels[labels != UNPARSED] == CRITICAL).tolist()
    readings: tuple[Reading, ...] = ("predicting", "after")
    for row, (part, origin) in enumerate(kept):
        assert found.prefix(row).tolist() == part.prefix(origin).tolist()
        assert (found.prompt[row], found.order[row]) == (part.prompt[origin], part.order[origin])
        for reading in readings:
            for mine, theirs in zip(found.states(reading), part.states(reading), strict=True):
                assert np.array_equal(mine[row], theirs[origin])


def test_a_collection_of_an_older_schema_is_refused(tmp_path: Path) -> None:
    made = store(tmp_path, "strict")
    path = tmp_path / "meta.json"
    path.write_text(path.read_text().replace(f'"schema": {made.meta.schema}', '"schema": 1'))
    refuse(lambda: EpisodeStore(tmp_path).open(), BadInput, "schema 1", "collect the episodes again")


def test_interrupted_labelling_goes_on_where_it_was(tmp_path: Path) -> None:
    made = store(tmp_path, "explore")
    fill(made, "explore", Told())
    with pytest.raises(KeyboardInterrupt):
        head_label.fill(made, TASK, Lockstep(engine(), 2), Told(stop_at=1))
    assert len(made.labelled()) == 1
    lockstep, told = Lockstep(engine(), 2), Told()
    head_label.fill(made, TASK, lockstep, told)
    assert told.seen[0] == (1, 3, "chunks") and told.seen[-1] == (3, 3, "chunks") and lockstep.requests > 0
    _, critical = made.load()
    whole = store(tmp_path / "whole", "explore")
    fill(whole, "explore", Told())
    head_label.fill(whole, TASK, Lockstep(engine(), 100), Told())
    assert np.array_equal(critical, whole.load()[1])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policy": "guess"}, "oracle, explore, strict"),
        ({"explore": 1.5}, "[0, 1]"),
        ({"prompts": 0}, "at least 1"),
        ({"first": -1}, "at least 0"),
        ({"concurrency": 0}, "1..256"),
        ({"concurrency": 257}, "1..256"),
        ({"engine": "abacus"}, "vllm, transformers"),
        ({"drafter": "x.gguf"}, "--model"),
        ({"model": "somewhere"}, "--drafter"),
    ],
)
def test_what_cannot_be_is_refused_at_once(changes: dict[str, Any], words: str) -> None:
    refuse(lambda: check(EpisodeCollectConfig(**changes)), BadInput, words)


def test_label_takes_the_collections_own_target_and_one_scorer(tmp_path: Path, random_models: dict[str, Path]) -> None:
    refuse(lambda: label(tmp_path / "none", None, EpisodeCollectConfig(), Told()), BadInput, "head collect")
    made = store(tmp_path, "strict")
    own = EpisodeCollectConfig(model=str(random_models["llama"]))
    refuse(lambda: label(tmp_path, None, own, Told()), BadInput, "synthetic", "--model")
    refuse(lambda: label(tmp_path, "bleu", own, Told()), BadInput, "'bleu'")
    with held(tmp_path, "not free"):  # two at once could write labels of two scorers
        refuse(lambda: label(tmp_path, None, own, Told()), BadInput, "another process collects or labels")
    made.write_labels(0, np.zeros(3, np.int8), 4)
    refuse(lambda: head_label.choose(made, "exact"), BadInput, "by scorer number")
    head_label.choose(made, "number")
    (tmp_path / "labels-00000.safetensors").unlink()
    head_label.choose(made, "exact")
    assert EpisodeStore(tmp_path).open() == msgspec.structs.replace(made.meta, scorer="exact")


def test_quantisation_is_the_type_of_most_weights(
    random_models: dict[str, Path], random_ggufs: dict[str, Path], tmp_path: Path
) -> None:
    assert quantisation(random_ggufs["llama"]) == "F32"
    export_gguf(random_models["llama"], tmp_path / "small.gguf", "q8_0")
    assert quantisation(tmp_path / "small.gguf") == "Q8_0"
