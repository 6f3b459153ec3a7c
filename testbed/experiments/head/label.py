"""Labelling collected mismatches: does the final answer change if the draft token stands? (WISV Section V-B)"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.bs.engines.registry import leave_a_core
from testbed.bs.engines.target import Target, describe
from testbed.decision_head.episodes import EpisodeStore, Mismatches
from testbed.errors import BadInput
from testbed.experiments.head.collect import Told, load_target
from testbed.experiments.head.config import EpisodeCollectConfig
from testbed.experiments.head.summary import summary
from testbed.experiments.lockstep.answers import Answers, AnswerTask
from testbed.experiments.lockstep.completions import Completer
from testbed.experiments.lockstep.scorers import scorer
from testbed.experiments.lockstep.walk import NOTHING, Lockstep, Walk
from testbed.fingerprints import model_fingerprint
from testbed.models.bundle import BUNDLED, bundled
from testbed.ue.prompts import Prompter


def label(directory: Path, chosen: str | None, config: EpisodeCollectConfig, told: Told) -> dict[str, Any]:
    """Label the chunks of a collection that have no labels yet; returns what `head_summary.summary` says.

    Args:
        chosen: scorer; None: the one that the collection names.
        config: engine, dtype, model, concurrency, threads and memory share; the rest is the collection's own.

    Raises:
        BadInput: no collection, another target than the one it was made with, or labels by another scorer.
        EngineError: the engine failed; labels written by then stay.
    """
    store = EpisodeStore(directory)
    meta = store.open()
    score = scorer(chosen or meta.scorer)
    target = _target(store, config)
    choose(store, chosen)
    task = AnswerTask(Completer(target.end_ids), meta.max_tokens, Prompter(target.directory).text, score)
    spent = NOTHING
    if set(store.chunks()) - set(store.labelled()):
        leave_a_core(config.threads)
        with contextlib.closing(load_target(config, target)) as engine:
            lockstep = Lockstep(engine, config.concurrency)
            fill(store, task, lockstep, told)
            spent = lockstep.spent()
    return summary(store, target.directory) | spent


@dataclass
class _Sheet:
    """Labels of a chunk, as they come in."""

    critical: NDArray[np.bool_]
    left: int
    """Episodes to come."""
    completions: int = 0


def fill(store: EpisodeStore, task: AnswerTask, lockstep: Lockstep, told: Told) -> None:
    """Label every chunk without labels, and write its labels once all of its episodes are done."""
    chunks = store.chunks()
    todo = sorted(set(chunks) - set(store.labelled()))
    told(len(chunks) - len(todo), len(chunks), "chunks")
    sheets: dict[int, _Sheet] = {}
    rows_of: list[tuple[int, NDArray[np.intp]]] = []

    def finish(chunk: int) -> None:
        sheet = sheets.pop(chunk)
        store.write_labels(chunk, sheet.critical, sheet.completions)
        told(len(store.labelled()), len(chunks), "chunks")

    def walks() -> Iterator[Walk[tuple[list[bool], int]]]:
        for chunk in todo:
            found = store.read(chunk)
            episodes = [np.flatnonzero(found.prompt == prompt) for prompt in np.unique(found.prompt)]
            sheets[chunk] = _Sheet(np.zeros(len(found), np.bool_), len(episodes))
            if not episodes:
                finish(chunk)
            for rows in episodes:
                rows_of.append((chunk, rows))
                yield _episode(found, rows, task)

    for number, (critical, completions) in lockstep.run(walks()):
        chunk, rows = rows_of[number]
        sheet = sheets[chunk]
        sheet.critical[rows] = critical
        sheet.completions += completions
        sheet.left -= 1
        if sheet.left == 0:
            finish(chunk)


def _episode(found: Mismatches, rows: NDArray[np.intp], task: AnswerTask) -> Walk[tuple[list[bool], int]]:
    """Labels of one episode in order, and the completions that they took."""
    answers = Answers(task, f"prompt-{found.prompt[rows[0]]}", int(found.prompt_len[rows[0]]))
    critical = []
    for row in rows.tolist():
        prefix, draft, target = found.prefix(row).tolist(), int(found.draft_id[row]), int(found.target_id[row])
        critical.append((yield from answers.critical(prefix, draft, target)))
    return critical, answers.completions


def _target(store: EpisodeStore, config: EpisodeCollectConfig) -> Target:
    """The target that the collection was made with; a completion by another would be another question."""
    name = store.meta.target
    target = describe(config.model or (str(bundled().require("target")) if name == BUNDLED else name))
    fingerprint = model_fingerprint(target.directory)
    if fingerprint != store.meta.target_fingerprint:
        raise BadInput(
            f"{store.directory} was collected with target {name} ({store.meta.target_fingerprint}), not with "
            f"{target.directory} ({fingerprint}); give that one with --model"
        )
    return target


def choose(store: EpisodeStore, chosen: str | None) -> None:
    """Note the scorer in the collection; None: the one that it names.

    Raises:
        BadInput: there are labels by another; two scorers' do not mix.
    """
    if chosen is None or chosen == store.meta.scorer:
        return
    if store.labelled():
        raise BadInput(
            f"labels in {store.directory} are by scorer {store.meta.scorer}; label with that one, or a collection anew"
        )
    store.rescore(chosen)
