"""Planner: window, batches and their order that minimise the inference latency (edge SD batching, P2 and P3)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from testbed.errors import BadInput
from testbed.optim.inference_cost import IntArray, ServedPair, inference_s
from testbed.optim.search import BatchOrder
from testbed.optim.solvers import SOLVERS
from testbed.optim.stages import Stages

SAFE = 1 - 1e-12
"""Factor on lower bounds that allows for rounding."""


class Batching(NamedTuple):
    """A window, and batches in pipeline order."""

    window: int
    batches: tuple[tuple[int, ...], ...]
    """Indices of each batch's tasks in the list of tasks."""
    inference_s: float
    """T_inf by eqs. 20–22."""


def plan_batches(serving: ServedPair, inputs: IntArray, algorithm: str = "best", window: int | None = None) -> Batching:
    """Find the batches and the window of least inference latency.

    Args:
        serving: models, hardware, O_max and α.
        inputs: [K] input tokens of the tasks.
        algorithm: one of `SOLVERS`: dp, the paper's Algorithm 1; best, never slower than dp.
        window: l; None: the best of 1 to the largest, skipping those that a lower bound rules out.

    Raises:
        BadInput: no task, empty inputs, an unknown algorithm, a window out of range, or a task that does not fit.
    """
    if algorithm not in SOLVERS:
        raise BadInput(f"no planner {algorithm!r}; known: {', '.join(SOLVERS)}")
    order, ordered = ascending(inputs)
    stages = [Stages(serving, ordered, tokens) for tokens in windows(serving, window)]
    bounds = np.array([each.bound_s() for each in stages])
    best: tuple[float, int, BatchOrder] | None = None
    for k in bounds.argsort(kind="stable"):
        limit_s = np.inf if best is None else best[0]
        if bounds[k] * SAFE > limit_s:
            break
        found = SOLVERS[algorithm](stages[k], limit_s)
        if found is not None and (best is None or (found.latency_s, stages[k].window) < best[:2]):
            best = found.latency_s, stages[k].window, found
    assert best is not None
    return _batching(serving, order, ordered, best[1], best[2])


def ascending(inputs: IntArray) -> tuple[IntArray, IntArray]:
    """Indices that sort the tasks by input length, and the sorted lengths.

    Raises:
        BadInput: no task, or a task without input.
    """
    lengths = np.asarray(inputs, np.int64)
    if lengths.size == 0:
        raise BadInput("no tasks; give at least one")
    if lengths.min() < 1:
        raise BadInput(f"a task needs 1 input token or more, not {lengths.min()}")
    order = np.argsort(lengths, kind="stable")
    return order, lengths[order]


def windows(serving: ServedPair, window: int | None) -> range:
    """Windows to try: the given one, or all.

    Raises:
        BadInput: the given window is out of range.
    """
    if window is None:
        return range(1, serving.max_window + 1)
    if not 1 <= window <= serving.max_window:
        raise BadInput(f"window {window} is out of range: 1 to max_window, which is {serving.max_window}")
    return range(window, window + 1)


def _batching(serving: ServedPair, order: IntArray, ordered: IntArray, window: int, found: BatchOrder) -> Batching:
    batches = tuple(tuple(order[a:b].tolist()) for a, b in zip(found.starts, found.ends, strict=True))
    seconds = inference_s(serving, window, found.ends - found.starts, ordered[found.ends - 1])
    return Batching(window, batches, seconds)
