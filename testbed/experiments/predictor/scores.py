"""Classification scores of rejection predictors (WISP Tables 4 and 10); the positive class is *accepted*."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]
Labels = NDArray[np.uint8]


@dataclass(frozen=True)
class ClassifierScores:
    """Confusion counts at a threshold, and threshold-independent scores."""

    tn: int
    """Rejected tokens predicted rejected."""
    fp: int
    fn: int
    tp: int
    auc: float
    brier: float
    calibration_error: float
    """Expected calibration error over ten bins of equal width."""

    def numbers(self) -> dict[str, float]:
        """All counts, scores and rates by name; a rate over no tokens is 0."""
        rejected, accepted = max(1, self.tn + self.fp), max(1, self.fn + self.tp)
        rec1, specificity = self.tp / accepted, self.tn / rejected
        return {
            "accuracy": (self.tp + self.tn) / (self.tn + self.fp + self.fn + self.tp),
            "auc": self.auc,
            "rec1": rec1,
            "specificity": specificity,
            "fpr": self.fp / rejected,
            "balanced_accuracy": (rec1 + specificity) / 2,
            "brier": self.brier,
            "calibration_error": self.calibration_error,
            "tn": self.tn,
            "fp": self.fp,
            "fn": self.fn,
            "tp": self.tp,
        }


def scores_of(accepted: Labels, probabilities: Reals, threshold: float) -> ClassifierScores:
    """Score predictions; a token is predicted accepted at a probability of at least `threshold`."""
    from sklearn.metrics import brier_score_loss, confusion_matrix, roc_auc_score

    predicted = probabilities >= threshold
    tn, fp, fn, tp = confusion_matrix(accepted, predicted, labels=[0, 1]).ravel().tolist()
    return ClassifierScores(
        tn, fp, fn, tp,
        auc=float(roc_auc_score(accepted, probabilities)),
        brier=float(brier_score_loss(accepted, probabilities)),
        calibration_error=calibration_error(accepted, probabilities),
    )  # fmt: skip


def calibration_error(accepted: Labels, probabilities: Reals, bins: int = 10) -> float:
    """Expected calibration error: mean gap of predicted and observed acceptance over bins, weighted by their sizes."""
    place = np.minimum((probabilities * bins).astype(np.int64), bins - 1)
    gaps = np.bincount(place, probabilities - accepted, bins)
    return float(np.abs(gaps).sum() / len(accepted))


def threshold_for(accepted: Labels, probabilities: Reals, recall: float) -> float:
    """The highest threshold at which at least `recall` of the accepted tokens are predicted accepted."""
    of_accepted = np.sort(probabilities[accepted == 1])[::-1]
    return float(of_accepted[max(0, int(np.ceil(recall * len(of_accepted) - 1e-9)) - 1)])


def fpr_at_recall(accepted: Labels, probabilities: Reals, recall: float) -> float:
    """Fraction of rejected tokens predicted accepted at `threshold_for` this recall."""
    return float(np.mean(probabilities[accepted == 0] >= threshold_for(accepted, probabilities, recall)))
