"""Summary statistics of a directory of episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.bs.judging.token_rule import digit_free
from testbed.decision_head.episodes import CRITICAL, UNPARSED, EpisodeStore


def summary(store: EpisodeStore, tokenizer: Path) -> dict[str, Any]:
    """Counts of a collection, and the critical fraction of all mismatches with a label, of those where either token has
    a digit, and of the others; None if there are no such mismatches. `unparsed` counts the mismatches without a label.

    Args:
        tokenizer: directory of the target's tokenizer, which identifies tokens with digits.
    """
    harmless = digit_free(tokenizer)
    labelled = set(store.labelled())
    critical, words = [np.empty(0, np.bool_)], [np.empty(0, np.bool_)]
    mismatches = completions = unparsed = 0
    for number in store.chunks():
        found = store.read(number)
        mismatches += len(found)
        if number in labelled:
            labels, spent = store.read_labels(number)
            completions += spent
            known = labels != UNPARSED
            unparsed += int((~known).sum())
            critical.append(labels[known] == CRITICAL)
            words.append((harmless[found.draft_id] & harmless[found.target_id])[known])
    every, wordy = np.concatenate(critical), np.concatenate(words)
    return {
        "out": str(store.directory),
        "prompts": store.meta.prompts,
        "chunks": len(store.chunks()),
        "mismatches": mismatches,
        "labelled": len(every),
        "unparsed": unparsed,
        "completions": completions,
        "critical": _share(every),
        "critical_digits": _share(every[~wordy]),
        "critical_words": _share(every[wordy]),
    }


def _share(critical: NDArray[np.bool_]) -> float | None:
    return float(critical.mean()) if len(critical) else None
