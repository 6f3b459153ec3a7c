"""Windows and shares of rounds that end together: the offline case.

The BS verifies nothing before the windows of all UEs have arrived (edge-SD, eq. 16), so that a round lasts

    T = max_i (A_i + c_i / z_i) + c_0 + Σ s_i,      Σ z_i = 1,

for all. With given windows the least T has all windows arrive at once; where drafting takes equally long, its shares
are edge-SD's closed form (eq. 27), z ∝ c. With windows to be chosen it is the problem of Multi-SPIN (arXiv 2606.04581):
sum goodput over window lengths and bandwidth under FDMA, with the same window for all, or with windows that differ. Of
that paper we know the abstract; the model above, in which windows that differ wait for each other as well, is our
reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from testbed.optim.loops.objectives import Objective, Prices
from testbed.optim.loops.rounds import Array, IntArray, RoundChoices
from testbed.optim.loops.state import CellState

STEPS = 60
NO_PRICES = Prices()


class TogetherPlan(NamedTuple):
    """Windows and shares for rounds that end together, for the UEs in order."""

    shares: Array
    """[n] z, Σ z = 1."""
    windows: IntArray
    """[n] K"""
    modes: IntArray
    """[n] index of the mode."""
    round_s: float
    """T"""
    value: float
    """The objective."""


def arrive_together(fixed_s: Array, air_s: Array) -> tuple[Array, float]:
    """[n] shares with which all windows arrive at the same time, the earliest possible one, and that time.

    With equal A it is A + Σ c (edge-SD, below eq. 27); otherwise the root of Σ c / (t − A) = 1, by bisection. A UE that
    sends nothing takes no share, and may arrive before.
    """
    sends = air_s > 0
    if not sends.any():
        return np.full(len(air_s), 1 / len(air_s)), float(fixed_s.max())
    total_s, latest_s = float(air_s.sum()), float(fixed_s[sends].max())
    low, high = float(np.max(fixed_s + air_s)), latest_s + total_s
    for _ in range(STEPS):
        middle = (low + high) / 2
        if (air_s / np.maximum(middle - fixed_s, 1e-300)).sum() > 1:
            low = middle
        else:
            high = middle
    shares = np.where(sends, air_s / np.maximum(high - fixed_s, 1e-300), 0.0)
    return shares / shares.sum(), max(high, float(fixed_s.max()))


def plan_together(
    cell: CellState, objective: Objective, prices: Prices = NO_PRICES, same: bool = False
) -> TogetherPlan:
    """Windows, modes and shares that maximise the objective for rounds that end together.

    Begins with the best choice that is the same for all (Multi-SPIN's homogeneous case), and changes the choice of one
    UE at a time as long as that helps (its heterogeneous case).

    Args:
        same: leave it at the choice that is the same for all; UEs that lack it take their nearest window.

    Returns:
        A plan that no change of one UE's choice improves; with `same`, the best one of its kind.
    """
    search = _Together(RoundChoices(cell), objective, prices)
    best = max((search.plan(columns) for columns in search.uniform()), key=lambda plan: plan.value)
    return best if same else search.improved(best)


class _Together:
    def __init__(self, rounds: RoundChoices, objective: Objective, prices: Prices) -> None:
        self._rounds, self._objective = rounds, objective
        self._gain = objective.gain(rounds.table, prices)

    def plan(self, columns: IntArray) -> TogetherPlan:
        """The plan with these choices."""
        rounds, chosen = self._rounds, self._rounds.table.chosen(columns)
        shares, arrival_s = arrive_together(np.maximum(chosen.fixed_s, chosen.drafting_s), chosen.air_s)
        round_s = arrival_s + rounds.with_prompts(float(chosen.pass_s.sum()))
        gain, times = self._gain[np.arange(len(columns)), columns], np.full(len(columns), round_s)
        worths = self._objective.worths(gain, chosen.tokens, times, rounds.promise)
        return TogetherPlan(shares, *rounds.of_column(columns)[::-1], round_s, float(worths.sum()))

    def uniform(self) -> Iterator[IntArray]:
        """Columns of the choices that are the same for all."""
        allowed, width = self._rounds.allowed, self._rounds.width
        for column in range(allowed.shape[1]):
            first = column // width * width
            nearest = [self._nearest(ue, column, first) for ue in range(len(allowed))]
            yield np.array(nearest)

    def _nearest(self, ue: int, column: int, first: int) -> int:
        """The allowed column nearest to one of the mode that begins at `first`; of the first mode, if it lacks that."""
        width = self._rounds.width
        own = np.flatnonzero(self._rounds.allowed[ue, first : first + width])
        if not len(own):
            column, first = column - first, 0
            own = np.flatnonzero(self._rounds.allowed[ue, :width])
        return first + int(own[np.abs(own - (column - first)).argmin()])

    def improved(self, best: TogetherPlan) -> TogetherPlan:
        """The plan once no change of one UE's choice improves it."""
        better = True
        while better:
            better = False
            for ue, allowed in enumerate(self._rounds.allowed):
                for column in np.flatnonzero(allowed):
                    columns = best.modes * self._rounds.width + best.windows
                    columns[ue] = column
                    found = self.plan(columns)
                    if found.value > best.value + 1e-9 * abs(best.value):
                        best, better = found, True
        return best
