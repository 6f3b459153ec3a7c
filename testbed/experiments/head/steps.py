"""Relabelling, training and evaluation of a decision head from labelled episodes, as run by the command line."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from testbed.assets.fingerprints import model_fingerprint
from testbed.bs.judging.token_rule import digit_free
from testbed.decision_head.episodes import EpisodeStore, Meta, Mismatches
from testbed.decision_head.evaluate import BANDS, Evaluation, evaluate
from testbed.decision_head.head import DecisionHead, check_fits, load_head, save_head
from testbed.decision_head.instances import (
    Instances,
    base_instances,
    load_instances,
    origin,
    problems_seen,
    save_instances,
)
from testbed.decision_head.relabel import relabel
from testbed.decision_head.settings import Relabelling, Training
from testbed.decision_head.train import OnEpoch, train_head
from testbed.errors import BadInput
from testbed.experiments.results.claims import reserved
from testbed.models.bundle import bundled, head_directory

LOG = logging.getLogger(__name__)


class Labelled(NamedTuple):
    """Labelled mismatches read from a directory."""

    meta: Meta
    found: Mismatches
    """n mismatches."""
    critical: NDArray[np.bool_]
    """[n]"""

    @property
    def origin(self) -> str:
        """Identifies this data in instance files."""
        return origin(self.meta, self.found)


def labelled(directory: Path) -> Labelled:
    """Read the labelled mismatches of a directory.

    Raises:
        BadInput: no episodes, or no labels.
    """
    store = EpisodeStore(directory)
    meta = store.open()
    found, critical = store.load()
    if not len(found):
        raise BadInput(f"the labelled chunks of {directory} contain no mismatches; collect more prompts")
    return Labelled(meta, found, critical)


def relabel_to(directory: Path, out: Path, config: Relabelling) -> dict[str, Any]:
    """Relabel episodes into a file; returns the document of `testbed head relabel --json`."""
    if not out.parent.is_dir():
        raise BadInput(f"cannot write {out}: {out.parent} is not a directory")
    data = labelled(directory)
    instances = relabel(data.found, data.critical, config)
    save_instances(instances, out, data.origin)
    return {
        "file": str(out),
        "mismatches": len(data.found),
        "critical": int(data.critical.sum()),
        "instances": len(instances),
        "bands": _repairs(instances, data.critical),
    }


def train_to(
    directory: Path, out: Path, config: Training, source: Path | Relabelling, on_epoch: OnEpoch, about: str = ""
) -> dict[str, Any]:
    """Train a head and save it; returns the document of `testbed head train --json`.

    Args:
        directory: labelled episodes.
        out: directory of the head.
        config: without channel features, the base labels are learned and `source` is ignored.
        source: file of instances written by `relabel_to`, or settings to make them.
        on_epoch: called after every epoch.
        about: one-line description stored with the head.

    Raises:
        BadInput: files in `out`, another process that writes into it, or unusable data.
    """
    data = labelled(directory)
    if not config.features:
        instances = base_instances(data.critical)
    elif isinstance(source, Relabelling):
        instances = relabel(data.found, data.critical, source)
    else:
        instances = load_instances(source, data.origin, len(data.found))
    with reserved(out):
        trained = train_head(data.found, instances, data.meta, config, on_epoch, about)
        save_head(replace(trained.head, info=structs.replace(trained.head.info, episodes=data.origin)), out)
    return {
        "head": str(out),
        **trained.head.info.metrics,
        "mismatches": len(data.found),
        "instances": len(instances),
        "held_out_mismatches": int(trained.held_out.sum()),
        "best_epoch": trained.best,
        "calibration": list(trained.head.info.calibration),
        "history": [epoch._asdict() for epoch in trained.history],
    }


def evaluate_on(head: Path, directory: Path, config: Relabelling, tokenizer: Path | None) -> Evaluation:
    """Evaluate a head on labelled episodes of the pair it was trained for.

    Args:
        head: directory of the head, or `bundled` or `bundled:NAME`.
        directory: labelled episodes.
        config: relabels the episodes, to evaluate the head by channel quality.
        tokenizer: directory of tokenizer.json, for the digit rule; None: the bundled one if the target is bundled.

    Raises:
        BadInput: unreadable head or episodes, or episodes of another pair.
    """
    data = labelled(directory)
    loaded = fitting(str(head), data)
    target = bundled().target
    if tokenizer is None and target is not None and model_fingerprint(target) == data.meta.target_fingerprint:
        tokenizer = target
    harmless = None if tokenizer is None else digit_free(tokenizer)
    return evaluate(loaded, data.found, data.critical, config, harmless)


def fitting(path: str, data: Labelled) -> DecisionHead:
    """Load a head of the pair of labelled episodes; warns if it was trained on these, or on others of their problems.

    Raises:
        BadInput: unreadable, or of another pair.
    """
    head, meta = load_head(head_directory(path)), data.meta
    check_fits(
        head.info,
        target_fingerprint=meta.target_fingerprint,
        drafter_fingerprint=meta.drafter_fingerprint,
        target_hidden=meta.target_hidden,
        drafter_hidden=meta.drafter_hidden,
    )
    if head.info.episodes == data.origin:
        LOG.warning("%s was trained on these episodes: its figures are no test of it", path)
    elif seen := problems_seen(head.info.episodes, meta):
        LOG.warning(
            "%s was trained on %d of these %d problems: its figures are no test of it", path, seen, meta.prompts
        )
    return head


def _repairs(instances: Instances, critical: NDArray[np.bool_]) -> list[dict[str, Any]]:
    """Fraction of critical mismatches that are repaired, by channel quality: expected and as drawn."""
    was = critical[instances.row]
    place = np.digitize(instances.quality, BANDS[1:-1])
    rows = []
    for number, (low, high) in enumerate(itertools.pairwise(BANDS)):
        mine = was & (place == number)
        if mine.any():
            means = {
                "p_repair": float(instances.p_repair[mine].mean()),
                "repaired": float(instances.action[mine].mean()),
            }
            rows.append({"from": low, "to": high, "critical": int(mine.sum()), **means})
    return rows
