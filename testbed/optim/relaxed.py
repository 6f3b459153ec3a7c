"""Relaxation of the batching problem, solved exactly by dynamic programming: lower bounds on T_inf, and good batches.

In every step, the pipeline takes at least as long as all drafting plus the last verification, and at least as long as
the first drafting plus all verification. Any mean of the two with weights w and 1 − w is a lower bound on T_inf, and a
sum over batches with extra terms for the first and the last. The least such sum over all batches and orders therefore
bounds every plan. Batches that attain it are good candidates, since a pipeline without gaps takes exactly that time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from testbed.optim.inference_cost import Array, IntArray
from testbed.optim.stages import Stages

PAIRS = [(source, charged) for charged in range(3) for source in range(4) if not source & charged]
"""Transitions. A state is a bit set of the batches chosen so far: bit 0 the first, bit 1 the last in the pipeline."""
BY_STATE = [[k for k, (source, charged) in enumerate(PAIRS) if source | charged == state] for state in range(4)]


class Relaxed(NamedTuple):
    """Solution of the relaxed problem at one weight."""

    weight: Array
    """w, the weight of the drafting bound."""
    bound_s: float
    """Lower bound on T_inf of every plan."""
    starts: IntArray
    """[M] batches in pipeline order: the one charged as first, the others ascending, the one charged as last."""
    ends: IntArray


def relax(stages: Stages, weights: Array) -> list[Relaxed]:
    """Solve the relaxed problem for several weights w in [0, 1] at once."""
    return _Rows(stages, weights).solve()


class _Rows:
    """Rows of the dynamic program: least sums over the first i tasks, by state and weight."""

    def __init__(self, stages: Stages, weights: Array) -> None:
        n = stages.tasks + 1
        self._stages = stages
        self._weights = weights
        self._sources = np.array([source for source, _ in PAIRS])
        self._charges = np.array([charged for _, charged in PAIRS])
        self._least = np.full((4, len(weights), n), np.inf)
        self._least[0, :, 0] = 0.0
        self._begin = np.zeros((4, len(weights), n), np.int64)
        self._source = np.zeros((4, len(weights), n), np.int64)
        self._slope = self._charged(stages.draft, stages.verify)
        """[3, W, K] cost of each task in a batch that is charged as neither, as first, as last."""
        self._fixed = self._charged(stages.draft_fixed, stages.verify_fixed)

    def _charged(self, draft: Array, verify: Array) -> Array:
        """[3, W, ...] charged costs from lines [3, ...]."""
        parts = self._stages.weights * np.stack([self._weights[:, 0], self._weights[:, 1], self._weights[:, 1]], axis=1)
        left = self._stages.weights - parts
        drafting, verifying = np.tensordot(parts, draft, 1), np.tensordot(left, verify, 1)
        first, last = np.tensordot(left, draft, 1), np.tensordot(parts, verify, 1)
        base = drafting + verifying
        return np.stack([base, base + first, base + last])

    def solve(self) -> list[Relaxed]:
        """Fill all rows and trace the batches back from the last."""
        for end in range(1, self._stages.tasks + 1):
            self._row(end)
        return [self._walk(w) for w in range(len(self._weights))]

    def _row(self, end: int) -> None:
        count = min(int(self._stages.most[end - 1]), end)
        sizes = np.arange(count, 0, -1.0)
        costs = self._slope[..., end - 1, None] * sizes + self._fixed[..., None]
        through = self._least[self._sources, :, end - count : end]
        through += costs[self._charges]
        begins = through.argmin(axis=-1)
        values = np.take_along_axis(through, begins[..., None], -1)[..., 0]
        for state, among in enumerate(BY_STATE):
            best = values[among].argmin(axis=0)
            pair = np.asarray(among)[best]
            each = np.arange(len(best))
            self._least[state, :, end] = values[pair, each]
            self._begin[state, :, end] = begins[pair, each] + (end - count)
            self._source[state, :, end] = self._sources[pair]

    def _walk(self, w: int) -> Relaxed:
        """Batches of one weight; a single batch, which is both first and last, if that is less."""
        tasks, weight = self._stages.tasks, self._weights[w]
        if self._stages.most[-1] >= tasks:
            drafting, verifying = self._stages.times(np.array([0]), np.array([tasks]))
            alone_s = float(self._stages.sums(drafting + verifying)[0])
            if alone_s <= self._least[3, w, -1]:
                return Relaxed(weight, alone_s, np.array([0]), np.array([tasks]))
        state, end = 3, tasks
        runs: dict[int, list[tuple[int, int]]] = {0: [], 1: [], 2: []}
        while end > 0:
            begin, source = int(self._begin[state, w, end]), int(self._source[state, w, end])
            runs[state & ~source].append((begin, end))
            state, end = source, begin
        order = np.array([*runs[1], *runs[0][::-1], *runs[2]])
        return Relaxed(weight, float(self._least[3, w, -1]), order[:, 0], order[:, 1])
