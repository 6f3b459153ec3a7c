"""Labelled mismatches whose labels depend on their hidden states, with noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.decision_head.episodes import EpisodeStore, Meta, Mismatches

DRAFTER_HIDDEN, TARGET_HIDDEN, VOCAB = 6, 10, 50


def some_meta(**changes: Any) -> Meta:
    given = {
        "dataset": "bundled:calibration", "prompts": 10, "seed": 0, "window": 16, "max_tokens": 128, "policy": "draft",
        "engine": "synthetic", "drafter": "a drafter", "drafter_fingerprint": "d" * 16, "drafter_quantisation": "F32",
        "target": "a target", "target_fingerprint": "e" * 16, "drafter_hidden": DRAFTER_HIDDEN,
        "target_hidden": TARGET_HIDDEN,
    }  # fmt: skip
    return Meta(**(given | changes))


def some_mismatches(
    prompts: int, seed: int, noise: float = 0.3, first: int = 0
) -> tuple[Mismatches, NDArray[np.bool_], NDArray[np.float64]]:
    """Mismatches, whether each is critical [n], and the probability of that [n]: σ of a product of hidden states."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 9, prompts)
    count = int(sizes.sum())
    drafter = rng.standard_normal((count, DRAFTER_HIDDEN)).astype(np.float16)
    target = rng.standard_normal((count, TARGET_HIDDEN)).astype(np.float32) * 3 + 5
    score = 2 * drafter[:, 0].astype(np.float64) + (target[:, 1] - 5) / 3 * np.sign(target[:, 2] - 5) - 0.7
    p = 1 / (1 + np.exp(-score / noise))
    prefixes = rng.integers(1, 6, count)
    found = Mismatches(
        prompt=np.repeat(np.arange(first, first + prompts, dtype=np.int32), sizes),
        order=np.concatenate([np.arange(n) for n in sizes]).astype(np.int32),
        position=np.concatenate([np.arange(n) * 3 for n in sizes]).astype(np.int32),
        draft_id=rng.integers(0, VOCAB, count).astype(np.int32),
        target_id=rng.integers(0, VOCAB, count).astype(np.int32),
        drafter_hidden=drafter,
        target_hidden=target,
        drafter_after=-drafter,
        target_after=-target,
        prefix_start=np.concatenate([[0], np.cumsum(prefixes)]).astype(np.int64),
        prefix_ids=rng.integers(0, VOCAB, int(prefixes.sum())).astype(np.int32),
        prompt_len=np.ones(count, np.int32),
    )
    return found, rng.random(count) < p, p


def labelled_files(directory: Path, prompts: int = 60, seed: int = 0, **meta: Any) -> Path:
    """A directory of labelled episodes in two chunks."""
    store = EpisodeStore(directory)
    store.create(some_meta(prompts=prompts, **meta))
    for chunk, (first, count) in enumerate(((0, prompts // 2), (prompts // 2, prompts - prompts // 2))):
        found, critical, _ = some_mismatches(count, seed + chunk, first=first)
        store.write(chunk, found)
        store.write_labels(chunk, critical.astype(np.int8), len(found))
    return directory
