"""Labels collected mismatches: critical if keeping the draft token changes the final answer (WISV Section V-B)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.assets.hub import no_downloads
from testbed.bs.engines.registry import leave_a_core
from testbed.bs.engines.target import Target, describe
from testbed.decision_head.episodes import EpisodeStore, Mismatches
from testbed.errors import BadInput
from testbed.experiments.head.collect import Progress, in_use, load_target
from testbed.experiments.head.config import EpisodeCollectConfig
from testbed.experiments.head.decoding import label_of
from testbed.experiments.head.summary import summary
from testbed.experiments.inputs.marks import check_builtin
from testbed.experiments.inputs.pair import target_for
from testbed.experiments.inputs.scorers import answer_scorer
from testbed.experiments.lockstep.answers import Answers, AnswerTask
from testbed.experiments.lockstep.completions import Completer
from testbed.experiments.lockstep.decoding import NOTHING, Decoding, Lockstep
from testbed.files import held
from testbed.llama.origin import states_fingerprint
from testbed.models.bundle import BUNDLED
from testbed.ue.prompts import Prompter


def label(directory: Path, chosen: str | None, config: EpisodeCollectConfig, progress: Progress) -> dict[str, Any]:
    """Label the chunks of a collection that have no labels yet; returns `summary` and the work spent.

    Args:
        chosen: scorer; None: the collection's own.
        config: engine, dtype, model, concurrency, threads and memory share; all else comes from the collection.

    Raises:
        BadInput: no collection, a different target than it was collected with, labels by another scorer, or a
            collection that names code as its scorer while none is chosen.
        EngineError: the engine failed; labels already written are kept.
    """
    EpisodeStore(directory).open()
    with held(directory, in_use(directory)):
        return _label(EpisodeStore(directory), chosen, config, progress)


def _label(store: EpisodeStore, chosen: str | None, config: EpisodeCollectConfig, progress: Progress) -> dict[str, Any]:
    directory, meta = store.directory, store.open()
    if chosen is None:
        check_builtin(meta.scorer, directory, f"give --scorer {meta.scorer}")
    score, _ = answer_scorer(chosen or meta.scorer)
    with no_downloads(config.model is None):  # the collection's own: a directory of others must not choose
        target = _target(store, config)
    choose(store, chosen)
    task = AnswerTask(Completer(target.end_ids), meta.max_tokens, Prompter(target.path).text, score)
    spent = NOTHING
    if set(store.chunks()) - set(store.labelled()):
        leave_a_core(config.threads)
        with contextlib.closing(load_target(config, target)) as engine:
            lockstep = Lockstep(engine, config.concurrency)
            fill(store, task, lockstep, progress)
            spent = lockstep.spent()
    return summary(store, target.path) | spent


@dataclass
class _ChunkLabels:
    """Labels of a chunk while its episodes are processed."""

    labels: NDArray[np.int8]
    left: int
    """Number of episodes still to be labelled."""
    completions: int = 0


def fill(store: EpisodeStore, task: AnswerTask, lockstep: Lockstep, progress: Progress) -> None:
    """Label every chunk without labels, and write its labels once all its episodes are done."""
    chunks = store.chunks()
    todo = sorted(set(chunks) - set(store.labelled()))
    progress(len(chunks) - len(todo), len(chunks), "chunks")
    pending: dict[int, _ChunkLabels] = {}
    rows_of: list[tuple[int, NDArray[np.intp]]] = []

    def finish(chunk: int) -> None:
        done = pending.pop(chunk)
        store.write_labels(chunk, done.labels, done.completions)
        progress(len(store.labelled()), len(chunks), "chunks")

    def decodings() -> Iterator[Decoding[tuple[list[int], int]]]:
        for chunk in todo:
            found = store.read(chunk)
            episodes = [np.flatnonzero(found.prompt == prompt) for prompt in np.unique(found.prompt)]
            pending[chunk] = _ChunkLabels(np.zeros(len(found), np.int8), len(episodes))
            if not episodes:
                finish(chunk)
            for rows in episodes:
                rows_of.append((chunk, rows))
                yield _episode(found, rows, task)

    for number, (labels, completions) in lockstep.run(decodings()):
        chunk, rows = rows_of[number]
        mine = pending[chunk]
        mine.labels[rows] = labels
        mine.completions += completions
        mine.left -= 1
        if mine.left == 0:
            finish(chunk)


def _episode(found: Mismatches, rows: NDArray[np.intp], task: AnswerTask) -> Decoding[tuple[list[int], int]]:
    """Labels of one episode in order, and the number of completions computed for them."""
    answers = Answers(task, f"prompt-{found.prompt[rows[0]]}", int(found.prompt_len[rows[0]]))
    labels = []
    for row in rows.tolist():
        prefix, draft, target = found.prefix(row).tolist(), int(found.draft_id[row]), int(found.target_id[row])
        labels.append(label_of((yield from answers.critical(prefix, draft, target))))
    return labels, answers.completions


def _target(store: EpisodeStore, config: EpisodeCollectConfig) -> Target:
    """The target of the collection; any other is refused, since its completions would not be comparable."""
    name = store.meta.target
    target = describe(target_for(config.engine, config.model or (None if name == BUNDLED else name)))
    fingerprint = states_fingerprint(target.path)
    if fingerprint != store.meta.target_fingerprint:
        raise BadInput(
            f"{store.directory} was collected with target {name} ({store.meta.target_fingerprint}), not with "
            f"{target.path} ({fingerprint}); pass the former with --model"
        )
    return target


def choose(store: EpisodeStore, chosen: str | None) -> None:
    """Record the scorer in the collection; None: keep its own.

    Raises:
        BadInput: the collection already has labels by another scorer.
    """
    if chosen is None or chosen == store.meta.scorer:
        return
    if store.labelled():
        raise BadInput(
            f"labels in {store.directory} are by scorer {store.meta.scorer}; use that scorer, or a new collection"
        )
    store.rescore(chosen)
