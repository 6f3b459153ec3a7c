"""Local search over boundaries and order of batches."""

from __future__ import annotations

import itertools

import numpy as np

from testbed.optim.inference_cost import IntArray
from testbed.optim.stages import Stages

CELLS = 500_000
"""Upper limit of neighbours × batches per step, and at most a tenth of the whole budget; beyond it, neighbours are
sampled at random."""
WORK_PER_TASK, WORK = 3_000, 30_000_000
"""Budget of the search in plans × batches: per task, and overall."""
LEAST_TASKS = 120
"""Problems with fewer tasks get the budget of this many."""
TRIES = 8
"""Maximum number of neighbours per step, lowest bounds first, that are evaluated exactly."""
PERMUTED = 5
"""Maximum number of batches for which all orders are tried."""
GAIN = 1e-9
"""Smallest relative gain; below it the search ends."""


class BatchOrder:
    """Batches in pipeline order, and their latency."""

    def __init__(self, stages: Stages, starts: IntArray, ends: IntArray) -> None:
        self.starts = starts
        self.ends = ends
        self.latency_s = stages.latency_s(starts, ends)

    @property
    def boundaries(self) -> IntArray:
        """[M + 1] ascending, from 0 to K."""
        return np.append(np.sort(self.starts), self.ends.max())


def johnson(stages: Stages, starts: IntArray, ends: IntArray) -> tuple[IntArray, IntArray]:
    """Order batches [R, M] by Johnson's rule, for the first step, the later steps and all steps; returns [3·R, M].

    Johnson's rule is optimal for two stages: batches that draft faster than they verify come first, by ascending
    drafting time; then the others, by descending verification time. The rule may order each step differently, while
    the pipeline keeps one order.
    """
    orders = []
    lines = stages.times(starts, ends)
    for part in (1.0, [1.0, 0.0, 0.0], [0.0, 1.0, 1.0]):
        drafting, verifying = (np.tensordot(stages.weights * part, each, 1) for each in lines)
        far = 1 + max(drafting.max(), verifying.max())
        key = np.where(drafting < verifying, drafting - far, far - verifying)
        orders.append(key.argsort(axis=-1, kind="stable"))
    order = np.concatenate(orders)
    return np.take_along_axis(np.tile(starts, (3, 1)), order, -1), np.take_along_axis(np.tile(ends, (3, 1)), order, -1)


def best_arranged(stages: Stages, boundaries: IntArray, latency_s: float = np.inf) -> BatchOrder | None:
    """Best of the boundaries [R, M + 1], batches ordered by Johnson's rule; None if not faster than `latency_s`."""
    return _best(stages, *johnson(stages, boundaries[:, :-1], boundaries[:, 1:]), latency_s)


def every_run(stages: Stages) -> IntArray:
    """[R, K + 1] all boundaries that fit into memory, for few tasks; two equal boundaries delimit an empty batch."""
    k = stages.tasks
    cuts = (np.arange(2 ** (k - 1))[:, None] >> np.arange(k - 1)) & 1
    inner = np.where(cuts == 1, np.arange(1, k), k)
    rows = np.concatenate([np.zeros((len(inner), 1), np.int64), inner, np.full((len(inner), 1), k)], axis=1)
    rows.sort(axis=1)
    return _fitting(rows, stages.most)


def best_ordered(stages: Stages, boundaries: IntArray) -> list[BatchOrder]:
    """Best order for each number of batches up to `PERMUTED`, over the boundaries [R, M + 1]."""
    batches = (np.diff(boundaries, axis=1) > 0).sum(axis=1)
    found = []
    for m in range(1, min(PERMUTED, stages.tasks) + 1):
        rows = boundaries[batches == m, : m + 1]
        orders = np.array(list(itertools.permutations(range(m))))
        starts, ends = (each[:, orders].reshape(-1, m) for each in (rows[:, :-1], rows[:, 1:]))
        if len(starts) and (best := _best(stages, starts, ends, np.inf)) is not None:
            found.append(best)
    return found


def improve(stages: Stages, found: BatchOrder, seed: int = 0) -> BatchOrder:
    """Local search: move boundaries, merge, split and reorder batches while the latency falls."""
    rng = np.random.default_rng(seed)
    work, most = 0, min(WORK_PER_TASK * max(stages.tasks, LEAST_TASKS), WORK)
    cells = min(CELLS, most // 10)
    while work < most:
        rows = _moved(found.boundaries, stages.most, cells, rng)
        better = None
        if len(rows):
            work += 3 * rows.size
            better = best_arranged(stages, rows, found.latency_s)
        if better is None:
            starts, ends = _reordered(found, cells, rng)
            work += starts.size
            better = _best(stages, starts, ends, found.latency_s)
        if better is None:
            break
        found = better
    return found


def _best(stages: Stages, starts: IntArray, ends: IntArray, latency_s: float) -> BatchOrder | None:
    """Best of the `TRIES` rows [R, M] with the lowest bounds; None if not faster than `latency_s`."""
    least = stages.least_s(*stages.times(starts, ends))
    target = latency_s * (1 - GAIN)
    best: BatchOrder | None = None
    for row in least.argsort(kind="stable")[:TRIES]:
        if least[row] >= target:
            break
        used = ends[row] > starts[row]
        candidate = BatchOrder(stages, starts[row, used], ends[row, used])
        if candidate.latency_s < target:
            best, target = candidate, candidate.latency_s
    return best


def _moved(boundaries: IntArray, most: IntArray, cells: int, rng: np.random.Generator) -> IntArray:
    """[R, M + 2] ascending boundaries that differ by one move: one shifted, removed or added."""
    inner, sizes = boundaries[1:-1], np.diff(boundaries)
    steps = {1, 2, 3, 5, 8, *(round(int(sizes.max()) * part) for part in (0.125, 0.25, 0.5, 1.0))} - {0}
    places = np.arange(1, len(inner) + 1)
    shifted = [
        np.clip(inner + step, boundaries[:-2], boundaries[2:]) for size in sorted(steps) for step in (-size, size)
    ]
    parts = [np.full(len(sizes), count) for count in (1, 2, 4)] + [sizes * part // 4 for part in (1, 2, 3)]
    parts += [sizes - 2, sizes - 1]
    cuts = [boundaries[:-1] + np.clip(part, 0, sizes) for part in parts]
    extra = np.full(len(sizes), len(boundaries))
    moves = [np.stack([places, value], axis=1) for value in shifted]
    moves += [np.stack([extra, cut], axis=1) for cut in cuts]
    move = np.unique(np.concatenate(moves), axis=0)
    limit = max(32, cells // (len(boundaries) + 1))
    if len(move) > limit:
        move = move[rng.choice(len(move), limit, replace=False)]
    rows = np.tile(np.append(boundaries, boundaries[-1]), (len(move), 1))
    rows[np.arange(len(move)), move[:, 0]] = move[:, 1]
    rows.sort(axis=1)
    return _fitting(rows, most)


def _fitting(rows: IntArray, most: IntArray) -> IntArray:
    """Rows whose batches fit into memory."""
    fits: IntArray = rows[np.all(np.diff(rows, axis=1) <= most[np.maximum(rows[:, 1:] - 1, 0)], axis=1)]
    return fits


def _reordered(found: BatchOrder, cells: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """[R, M] the same batches in all orders, or, if many, with one of them moved."""
    m = len(found.starts)
    if m <= PERMUTED:
        order = np.array(list(itertools.permutations(range(m))))
        return found.starts[order], found.ends[order]
    source, target = (grid.ravel() for grid in np.meshgrid(np.arange(m), np.arange(m), indexing="ij"))
    limit = max(32, cells // m)
    if len(source) > limit:
        some = rng.choice(len(source), limit, replace=False)
        source, target = source[some], target[some]
    place = np.arange(m)[None, :]
    s, t = source[:, None], target[:, None]
    order = np.where(place == t, s, np.where((place >= s) & (place < t), place + 1, place))
    order = np.where((place > t) & (place <= s), place - 1, order)
    return found.starts[order], found.ends[order]
