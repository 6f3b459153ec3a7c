"""The judge seam: which mismatched tokens may stay."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from testbed.channel.csi import Csi
from testbed.protocols.quantise import FULL_BITS


@dataclass(frozen=True, slots=True)
class Candidates:
    """The mismatched positions of one window, in order; m of them."""

    draft_ids: NDArray[np.int32]
    """[m]"""
    target_ids: NDArray[np.int32]
    """[m] the target's argmax at those positions."""
    drafter_hidden: NDArray[np.float16] | NDArray[np.float32]
    """[m, d_d] (WISV's h_d), as they arrived."""
    target_hidden: NDArray[np.float32] | None
    """[m, d_t] (WISV's h_t); None where the judge needs none."""
    csi: Csi | None
    threshold: float
    """θ in [0, 1] as the UE asks for it; 0 rejects every mismatch, whatever the judge."""
    session: Hashable = ()
    """Which response they belong to."""


class Judge(Protocol):
    """Keeps or rejects candidates."""

    def check(self, drafter: str, hidden_size: int, hidden_bits: int = FULL_BITS) -> None:
        """Take or refuse a drafter whose mismatches are to be judged, by fingerprint, hidden size and bits an element.

        Raises:
            BadInput: it is not the one that this judge knows.
        """

    def needs_hidden(self, threshold: float) -> bool:
        """Whether a session of this θ is judged by the target's hidden states, so that a pass must produce them."""

    def judge(self, batch: Sequence[Candidates]) -> list[NDArray[np.bool_]]:
        """For each window, [m] booleans: True keeps the drafted token. Only those before the first False count."""


class StrictJudge:
    """Rejects every mismatch: the output is the target's own."""

    def check(self, drafter: str, hidden_size: int, hidden_bits: int = FULL_BITS) -> None:
        """Any drafter will do."""

    def needs_hidden(self, threshold: float) -> bool:
        """Never."""
        return False

    def judge(self, batch: Sequence[Candidates]) -> list[NDArray[np.bool_]]:
        """All False."""
        return [np.zeros(len(c.draft_ids), np.bool_) for c in batch]
