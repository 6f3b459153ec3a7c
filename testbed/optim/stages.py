"""Fast evaluation of the two-stage pipeline of one problem at one window.

From the second step on, the draft and verify times of a batch grow linearly with its caches (eqs. 13, 14). A time, or a
sum of times, is thus a `line` of three numbers: [first step, second step, growth]. Written out, eq. 20 is
C_n = max_m (Σ_{i≤m} T^d_i + Σ_{i≥m} T^v_i), a maximum over one line per batch; eq. 22 sums it over the steps.

Tasks are in ascending order of input length, and batches are runs of neighbours. No plan is lost, since every task is
planned with O_max: refilling the batches of any plan with runs of the same sizes, in ascending order of the batches'
longest inputs, makes no batch longer.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from testbed.optim.inference_cost import (
    Array,
    IntArray,
    ServedPair,
    draft_s,
    most_tasks,
    steps_needed,
    verify_s,
)  # fmt: skip

FAR = 4096
"""Steps over which the growth is evaluated; many, to limit rounding errors."""


class Stages:
    """Lines of the batches of one problem.

    Args:
        serving: models, hardware, O_max and α.
        inputs: [K] input tokens, ascending.
        window: l

    Raises:
        BadInput: a task does not fit into memory alone.
    """

    def __init__(self, serving: ServedPair, inputs: IntArray, window: int) -> None:
        self.tasks = len(inputs)
        self.window = window
        self.steps = steps_needed(serving.max_output_tokens, serving.alpha, window)
        self.rest = self.steps - 1
        """Steps after the first."""
        self.weights = np.array([1.0, self.rest, self.rest * (self.rest - 1) / 2])
        """Factors of a line's three numbers in its sum over all steps."""
        self.most = most_tasks(serving, inputs)
        """[K] largest size of a batch that ends with each task."""
        self.draft, self.draft_fixed = _lines(draft_s, serving, inputs, window)
        self.verify, self.verify_fixed = _lines(verify_s, serving, inputs, window)
        """[3, K] lines per task of a batch, by its longest task, and [3] lines per batch."""

    def sums(self, lines: Array) -> Array:
        """[...] sums over all steps of lines [3, ...]."""
        total: Array = np.tensordot(self.weights, lines, 1)
        return total

    def times(self, starts: IntArray, ends: IntArray) -> tuple[Array, Array]:
        """[3, ...] draft and verify lines of batches [...] of the tasks start to end − 1; zero for empty batches."""
        sizes, longest = ends - starts, np.maximum(ends - 1, 0)
        fixed = (3, *[1] * sizes.ndim)
        drafting = self.draft[:, longest] * sizes + self.draft_fixed.reshape(fixed) * (sizes > 0)
        verifying = self.verify[:, longest] * sizes + self.verify_fixed.reshape(fixed) * (sizes > 0)
        return drafting, verifying

    def latency_s(self, starts: IntArray, ends: IntArray) -> float:
        """T_inf of batches [M] in this order (eq. 22)."""
        first, second, growth = paths(*self.times(starts, ends))
        return float(first.max()) + self._upper_sum(second, growth)

    def least_s(self, drafting: Array, verifying: Array) -> Array:
        """[...] lower bounds on T_inf of batches [3, ..., M]: one critical path for all later steps."""
        lines = paths(drafting, verifying)
        least: Array = lines[0].max(axis=-1) + (self.rest * lines[1] + self.weights[2] * lines[2]).max(axis=-1)
        return least

    def bound_s(self) -> float:
        """Lower bound on T_inf over all batches and orders: no padding, and idle time only at one end."""
        batches = self._fewest()
        drafting = self.draft.sum(axis=1) + batches * self.draft_fixed
        verifying = self.verify.sum(axis=1) + batches * self.verify_fixed
        end = self.verify[:, 0] + self.verify_fixed
        start = self.draft[:, 0] + self.draft_fixed
        lines = np.stack([drafting + end, start + verifying], axis=1)
        return float(lines[0].max()) + self._upper_sum(lines[1], lines[2])

    def _fewest(self) -> int:
        """Fewest batches that fit into memory: filled from the longest task down."""
        end, batches = self.tasks, 0
        while end > 0:
            end -= int(self.most[end - 1])
            batches += 1
        return batches

    def _upper_sum(self, second: Array, growth: Array) -> float:
        """Sum over the steps from the second of the maximum of lines [M].

        Lines below another one at both ends are dropped first; few remain.
        """
        if not self.rest:
            return 0.0
        last = second + growth * (self.rest - 1)
        kept = np.ones(second.size, bool)
        for top in {int(second.argmax()), int(last.argmax()), int((second + last).argmax())}:
            kept &= (second > second[top]) | (last > last[top])
            kept[top] = True
        grid = second[kept, None] + growth[kept, None] * np.arange(self.rest)
        return float(grid.max(axis=0).sum())


def paths(drafting: Array, verifying: Array) -> Array:
    """[3, ..., M] lines Σ_{i≤m} T^d_i + Σ_{i≥m} T^v_i of batches [3, ..., M], ordered along the last axis."""
    total: Array = np.cumsum(drafting, axis=-1) + np.cumsum(verifying[..., ::-1], axis=-1)[..., ::-1]
    return total


def _lines(stage: Callable[..., Array], serving: ServedPair, inputs: IntArray, window: int) -> tuple[Array, Array]:
    """[3, K] line per task, and [3] line per batch."""
    step = np.array([[1], [2], [2 + FAR]])
    fixed = stage(serving, 0, 1, step, window)[:, 0]
    each = stage(serving, 1, inputs, step, window) - fixed[:, None]
    each[2] = (each[2] - each[1]) / FAR
    fixed[2] = 0.0
    return each, fixed
