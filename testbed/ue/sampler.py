"""Drawing drafted tokens: from the very distributions that the protocol uploads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.protocols.sampling import Counts, Draws, Sampling, draw, quantise, warp


class DraftSampler:
    """Chooses the tokens of a session (`testbed.ue.drafters.base.Choose`) and keeps what each was drawn from."""

    def __init__(self, sampling: Sampling, seed: int) -> None:
        """`seed` of the request: see `sampling.Draws`."""
        self._sampling, self._seed = sampling, seed
        self._rows: list[Counts] = []
        self.draws = Draws(seed, 0)
        """Random numbers of the round under way."""

    def begin(self, round_: int) -> None:
        """A round begins: its window is empty."""
        self.draws = Draws(self._seed, round_)
        self._rows = []

    def __call__(self, probs: NDArray[np.float32]) -> int:
        """The next token of the window, drawn from what the drafter thinks, warped and rounded to 16 bits."""
        with np.errstate(divide="ignore"):
            row = quantise(warp(np.log(probs), self._sampling))
        self._rows.append(row)
        return draw(row, self.draws.draft(len(self._rows) - 1))

    def window(self) -> Counts:
        """[K, V] what the tokens of the window were drawn from."""
        return np.stack(self._rows)
