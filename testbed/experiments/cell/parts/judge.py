"""A judge of synthetic tokens: it keeps mismatched tokens at random."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from testbed.bs.judging.base import Candidates, StrictJudge


class ChanceJudge(StrictJudge):
    """Keeps each candidate with the probability that its UE requests as θ."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def judge(self, batch: Sequence[Candidates]) -> list[NDArray[np.bool_]]:
        """See `Judge.judge`."""
        return [self._random.random(len(c.draft_ids)) < c.threshold for c in batch]
