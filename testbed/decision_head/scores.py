"""Scores of predicted probabilities: AUC, Brier score, log loss, reliability diagram."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn.metrics import brier_score_loss, log_loss

from testbed.intervals import span

BINS = 10
RESAMPLES = 200


def scores(labels: NDArray[np.bool_], p: NDArray[Any]) -> dict[str, float | None]:
    """`auc`, `brier` and `log_loss` of probabilities [m]; the AUC is None for a single class."""
    return {
        "auc": auc(labels, p),
        "brier": float(brier_score_loss(labels, p)),
        "log_loss": float(log_loss(labels, p.astype(np.float64), labels=[False, True])),
    }


def auc(labels: NDArray[np.bool_], score: NDArray[Any]) -> float | None:
    """Area under the ROC curve, from the rank sum; None for a single class."""
    ones = int(labels.sum())
    pairs = ones * (len(labels) - ones)
    return float(rankdata(score)[labels].sum() - ones * (ones + 1) / 2) / pairs if pairs else None


def auc_interval(
    labels: NDArray[np.bool_], score: NDArray[Any], groups: NDArray[Any], seed: int
) -> tuple[float, float] | None:
    """95 % interval by bootstrap over groups: prompts, since mismatches of one answer are dependent.

    None for a single class.
    """
    rng = np.random.default_rng(seed)
    _, group = np.unique(groups, return_inverse=True)
    rows = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1])
    found = []
    for _ in range(RESAMPLES):
        chosen = np.concatenate([rows[i] for i in rng.integers(len(rows), size=len(rows))])
        found.append(auc(labels[chosen], score[chosen]))
    known = [value for value in found if value is not None]
    if not known:
        return None
    low, high = span(known).tolist()
    return low, high


def reliability(labels: NDArray[np.bool_], p: NDArray[Any]) -> list[dict[str, float]]:
    """Reliability diagram, per non-empty tenth of [0, 1]: count, mean p, and share of positive labels."""
    place = np.minimum((p * BINS).astype(int), BINS - 1)
    rows = []
    for number in np.unique(place).tolist():
        inside = place == number
        rows.append(
            {
                "from": number / BINS,
                "to": (number + 1) / BINS,
                "count": int(inside.sum()),
                "predicted": float(p[inside].mean()),
                "observed": float(labels[inside].mean()),
            }
        )
    return rows


def accepted(labels: NDArray[np.bool_], p: NDArray[Any], threshold: float) -> dict[str, float | None]:
    """Shares of harmless and of critical mismatches with p < θ, which are accepted; None for an empty class."""
    kept = p < threshold
    return {
        "harmless_accepted": float(kept[~labels].mean()) if (~labels).any() else None,
        "critical_accepted": float(kept[labels].mean()) if labels.any() else None,
    }
