"""The judge seam: which mismatched tokens are kept."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from testbed.channel.csi import Csi
from testbed.protocols.messages import Reading
from testbed.protocols.quantise import FULL_BITS


@dataclass(frozen=True, slots=True)
class Candidates:
    """The m mismatched positions of one window, in order."""

    draft_ids: NDArray[np.int32]
    """[m]"""
    target_ids: NDArray[np.int32]
    """[m] the target's argmax at these positions."""
    drafter_hidden: NDArray[np.float16] | NDArray[np.float32]
    """[m, d_d] (WISV's h_d), as they arrived."""
    target_hidden: NDArray[np.float32] | None
    """[m, d_t] (WISV's h_t); None: the judge needs none."""
    csi: Csi | None
    threshold: float
    """θ in [0, 1], as the UE requests it; 0 rejects every mismatch under any judge."""
    session: Hashable = ()
    """Name of the response that they belong to."""
    risk: float = 0.0
    """Risk that the response has spent so far: see `Verdict.risk`."""


class Judge(Protocol):
    """Keeps or rejects candidates."""

    def check(
        self, drafter: str, hidden_size: int, hidden_bits: int = FULL_BITS, states: Reading = "predicting"
    ) -> None:
        """Check a drafter by fingerprint, hidden size, bits per element, and which states it uploads.

        Raises:
            BadInput: the judge was not made for this drafter.
        """

    def needs_hidden(self, threshold: float) -> bool:
        """Whether sessions with this θ are judged by hidden states, so that passes must return the target's."""

    def judge(self, batch: Sequence[Candidates]) -> list[NDArray[np.bool_]]:
        """Booleans [m] of each window: True keeps the drafted token. Tokens after the first False are dropped."""


@runtime_checkable
class RiskJudge(Judge, Protocol):
    """A judge that counts the risk of what it keeps."""

    def risk(self, session: Hashable) -> float:
        """Risk that a response has spent, as of the last call of `judge` with candidates of it."""


class StrictJudge:
    """Rejects every mismatch: the output is the target's own."""

    def check(
        self, drafter: str, hidden_size: int, hidden_bits: int = FULL_BITS, states: Reading = "predicting"
    ) -> None:
        """Accepts any drafter."""

    def needs_hidden(self, threshold: float) -> bool:
        """Never."""
        return False

    def judge(self, batch: Sequence[Candidates]) -> list[NDArray[np.bool_]]:
        """Reject all candidates."""
        return [np.zeros(len(c.draft_ids), np.bool_) for c in batch]
