"""Samples drafted tokens from the distributions that the protocol uploads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.protocols.sampling import Counts, Draws, Sampling, draw, quantise, warp


class DraftSampler:
    """Samples the tokens of a session (a `testbed.ue.drafters.base.Choose`) and keeps their distributions."""

    def __init__(self, sampling: Sampling, seed: int) -> None:
        """`seed`: seed of the request, see `sampling.Draws`."""
        self._sampling, self._seed = sampling, seed
        self._rows: list[Counts] = []
        self.draws = Draws(seed, 0)
        """Random numbers of the current round."""

    def begin(self, round_: int) -> None:
        """Begin a round with an empty window."""
        self.draws = Draws(self._seed, round_)
        self._rows = []

    def __call__(self, probs: NDArray[np.float32], position: int) -> int:
        """Next token of the window, sampled from the drafter's probabilities [V], warped and quantised as they are
        uploaded; its position in the sequence does not matter.
        """
        with np.errstate(divide="ignore"):
            row = quantise(warp(np.log(probs), self._sampling), self._sampling.q_top, self._sampling.q_bits)
        self._rows.append(row)
        return draw(row, self.draws.draft(len(self._rows) - 1))

    def window(self, vocab_size: int) -> Counts:
        """[K, V] distributions from which the window's tokens were sampled; K may be 0."""
        return np.array(self._rows, np.uint16).reshape(len(self._rows), vocab_size)
