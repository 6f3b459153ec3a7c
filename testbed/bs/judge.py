"""The judge seam: which mismatched tokens may stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from testbed.channel.csi import Csi


@dataclass(frozen=True, slots=True)
class Candidates:
    """The mismatched positions of one window, in order; m of them."""

    draft_ids: NDArray[np.int32]
    """[m]"""
    target_ids: NDArray[np.int32]
    """[m] the target's argmax at those positions."""
    drafter_hidden: NDArray[np.float16]
    """[m, d_d] (WISV's h_d)."""
    target_hidden: NDArray[np.float32] | None
    """[m, d_t] (WISV's h_t); None where the judge needs none."""
    csi: Csi | None
    threshold: float
    """θ in [0, 1]; 0 rejects every mismatch."""


class Judge(Protocol):
    """Keeps or rejects candidates."""

    needs_hidden: bool
    """Whether the pass must produce the target's hidden states."""

    def judge(self, batch: Sequence[Candidates]) -> list[NDArray[np.bool_]]:
        """For each window, [m] booleans: True keeps the drafted token."""


class StrictJudge:
    """Rejects every mismatch: the output is the target's own."""

    needs_hidden = False

    def judge(self, batch: Sequence[Candidates]) -> list[NDArray[np.bool_]]:
        """All False."""
        return [np.zeros(len(c.draft_ids), np.bool_) for c in batch]
