"""Algorithm 1 of the paper: dynamic programming over batch boundaries (edge SD batching), corrected and vectorised.

Corrections: the inner maximum follows eqs. 20 and 32 (line 15 and eq. 29 bracket T^d wrongly); Υ starts at infinity, so
that only batches that fit are chosen; S is set when the first boundary wins; backtracking continues at S[i] − 1. As in
the paper, each prefix keeps only the completion times of its fastest batches, so the program is not exact.
"""

from __future__ import annotations

import numpy as np

from testbed.optim.inference_cost import Array, IntArray
from testbed.optim.stages import Stages


def dynamic_program(stages: Stages) -> IntArray:
    """Boundaries [M + 1], from 0 to K, of batches processed in ascending order (Algorithm 1).

    For the batch that ends with task i, all boundaries j are weighed at once: first by a lower bound, with the maximum
    taken outside the sum over the later steps; then by the sum itself, lowest bound first, until no bound is lower.
    """
    prefixes = _Prefixes(stages)
    begin: IntArray = np.zeros(stages.tasks + 1, np.int64)
    for end in range(1, stages.tasks + 1):
        begin[end] = prefixes.extend(end)
    boundaries = [stages.tasks]
    while boundaries[-1] > 0:
        boundaries.append(int(begin[boundaries[-1]]))
    return np.array(boundaries[::-1])


class _Prefixes:
    """Υ: completion times of both nodes for the first i tasks, in each step."""

    def __init__(self, stages: Stages) -> None:
        n, rest = stages.tasks + 1, stages.rest
        self._stages = stages
        self._offsets = np.arange(rest, dtype=np.float64)
        self._sizes = np.arange(1.0, n)
        self._draft_sums = stages.sums(stages.draft) - stages.draft[0]
        self._verify_sums = stages.sums(stages.verify)
        self._drafted = np.zeros((2, n))
        """Υ[i, 1, 0] and Υ[i, 2, 0]; later steps follow from these and i."""
        self._drafted_sums = np.zeros(n)
        """Sum of Υ[i, n, 0] over the steps from the second."""
        self._first = np.zeros(n)
        """Υ[i, 1, 1]"""
        self._later = np.zeros((n, rest))
        """Υ[i, n, 1] for the steps from the second."""
        self._later_sums = np.zeros(n)

    def extend(self, end: int) -> int:
        """Compute Υ[end]; return the start of the last batch (of equal ones the latest)."""
        stages, task = self._stages, end - 1
        count = min(int(stages.most[task]), end)
        sizes, before = self._sizes[:count], slice(end - count, end)
        fixed = stages.draft_fixed
        first = self._drafted[0, before][::-1] + sizes * stages.draft[0, task]
        first += fixed[0]
        first = np.maximum(first, self._first[before][::-1])
        later = self._drafted_sums[before][::-1] + sizes * self._draft_sums[task]
        later += stages.rest * fixed[1]
        least = np.maximum(later, self._later_sums[before][::-1])
        least += first
        least += sizes * self._verify_sums[task]
        size, drafted, merged = self._least(end, least, first)
        self._store(end, size, float(first[size - 1]), drafted, merged)
        return end - size

    def _least(self, end: int, least: Array, first: Array) -> tuple[int, float, Array]:
        """Best size of the last batch, the end of its drafting in step 2, and the start of its later verifications."""
        stages, task = self._stages, end - 1
        growth = stages.draft[2, task] * end
        found: dict[int, tuple[float, Array]] = {}
        while (k := int(least.argmin())) not in found:
            begin = task - k
            drafted = self._drafted[1, begin] + (k + 1) * stages.draft[1, task] + stages.draft_fixed[1]
            merged = np.maximum(drafted + growth * self._offsets, self._later[begin])
            found[k] = drafted, merged
            least[k] = first[k] + merged.sum() + (k + 1) * self._verify_sums[task]
        return k + 1, *found[k]

    def _store(self, end: int, size: int, first: float, drafted: float, merged: Array) -> None:
        """Store Υ[end] (eqs. 31, 32)."""
        stages, task = self._stages, end - 1
        verify, fixed = stages.verify[:, task] * size, stages.verify_fixed
        self._drafted[0, end] = self._drafted[0, end - size] + size * stages.draft[0, task] + stages.draft_fixed[0]
        self._drafted[1, end] = drafted
        self._drafted_sums[end] = stages.rest * drafted + stages.weights[2] * stages.draft[2, task] * end
        self._first[end] = first + verify[0] + fixed[0]
        self._later[end] = merged + (verify[1] + fixed[1]) + verify[2] * self._offsets
        self._later_sums[end] = self._later[end].sum()
