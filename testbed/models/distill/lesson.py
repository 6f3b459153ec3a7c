"""What a student learns from, and how, without PyTorch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

UNKNOWN = -1
"""Stands for an id of the target that the student does not know."""


class Lesson(NamedTuple):
    """A prompt with the target's answer, in the student's ids."""

    ids: NDArray[np.int64]
    """[n] prompt and answer."""
    places: NDArray[np.int64]
    """[m] indices in `ids` after which the student predicts a token of the answer."""
    labels: NDArray[np.int64]
    """[m] the target's tokens there, or `UNKNOWN`."""
    top: NDArray[np.int64]
    """[m, k] ids that the target found most likely there, or `UNKNOWN`."""
    logprobs: NDArray[np.float32]
    """[m, k] their natural log-probabilities."""
