"""Batches from a relaxed problem that dynamic programming solves exactly, and the lower bounds that it proves.

In every step the pipeline takes at least as long as the node that drafts plus the last verification, and at least as
long as the first drafting plus the node that verifies. Any mean of the two, weighted w and 1 − w, is a lower bound on
T_inf, and it is a sum over batches in which the first and the last are charged extra. The least sum over all batches
and orders is therefore a bound for every plan; batches that attain it are good ones, since a pipeline without gaps
takes just that long.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from testbed.optim.inference_cost import Array, IntArray
from testbed.optim.stages import Stages

PAIRS = [(source, charged) for charged in range(3) for source in range(4) if not source & charged]
"""Transitions. A state says which batches are chosen already: bit 0 the first, bit 1 the last in the pipeline."""
BY_STATE = [[k for k, (source, charged) in enumerate(PAIRS) if source | charged == state] for state in range(4)]


class Relaxed(NamedTuple):
    """The least weighted sum."""

    weight: Array
    """w, of the node that drafts."""
    bound_s: float
    """No plan is faster."""
    starts: IntArray
    """[M] batches in the order of the pipeline: the one charged as first, ascending ones, the one charged as last."""
    ends: IntArray


def relax(stages: Stages, weights: Array) -> list[Relaxed]:
    """Solve it for several weights w in [0, 1] at once."""
    return _Rows(stages, weights).solve()


class _Rows:
    """Least sums over the first i tasks, by state and weight."""

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
        """[3, W, K] cost of a task of a batch charged as nothing, first, last."""
        self._fixed = self._charged(stages.draft_fixed, stages.verify_fixed)

    def _charged(self, draft: Array, verify: Array) -> Array:
        """[3, W, ...] from lines [3, ...]."""
        parts = self._stages.weights * np.stack([self._weights[:, 0], self._weights[:, 1], self._weights[:, 1]], axis=1)
        left = self._stages.weights - parts
        drafting, verifying = np.tensordot(parts, draft, 1), np.tensordot(left, verify, 1)
        first, last = np.tensordot(left, draft, 1), np.tensordot(parts, verify, 1)
        base = drafting + verifying
        return np.stack([base, base + first, base + last])

    def solve(self) -> list[Relaxed]:
        """Fill all rows, and walk back from the last."""
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
        """The batches of one weight; all tasks in one batch, which is then first and last, if that is less."""
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
