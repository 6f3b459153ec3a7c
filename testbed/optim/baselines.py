"""Batching baselines of the paper (edge SD batching, Sections IV-A and IV-B).

Fixed-size batches take tasks in order of arrival, which is the order of the list: sorting by input length is part of
the proposed scheme. Docstrings say how points that the paper leaves open are interpreted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from testbed.errors import BadInput
from testbed.optim.inference_cost import (
    Array,
    IntArray,
    ServedPair,
    forward_flops,
    inference_s,
    most_tasks,
)  # fmt: skip
from testbed.optim.planner import Batching, ascending, plan_batches, windows
from testbed.optim.solvers import SOLVERS
from testbed.optim.stages import Stages

FIXED_WINDOW = 7
"""Window l of the paper's FSL (fixed speculation length)."""
STATIC_SIZE = 8
"""Batch size of static batching; the paper only says "a small fixed batch size"."""

Runs = list[list[int]]


def without_pipeline(serving: ServedPair, inputs: IntArray, window: int | None = None) -> Batching:
    """SD w/o pipeline: batches and window of the proposed scheme (Algorithm 1), one node active at a time."""
    proposed = plan_batches(serving, inputs, "dp", window)
    return _timed(serving, inputs, proposed.window, [list(batch) for batch in proposed.batches], pipeline=False)


def no_batching(serving: ServedPair, inputs: IntArray, window: int | None = None) -> Batching:
    """No batching: one task at a time, through the pipeline."""
    most_tasks(serving, inputs)
    return _best_window(serving, inputs, window, lambda _: of_size(len(inputs), 1))


def fixed_window(serving: ServedPair, inputs: IntArray, window: int | None = None) -> Batching:
    """FSL: Algorithm 1 at l = 7.

    Raises:
        BadInput: another window is requested, or `max_window` is less than 7.
    """
    if window not in (None, FIXED_WINDOW):
        raise BadInput(f"fixed-window drafts {FIXED_WINDOW} tokens; leave the window out, or plan by dp with {window}")
    return plan_batches(serving, inputs, "dp", FIXED_WINDOW)


def static(serving: ServedPair, inputs: IntArray, window: int | None = None) -> Batching:
    """Static batching: a small fixed size (8, or less if memory requires it)."""
    size = min(STATIC_SIZE, _largest(serving, inputs))
    return _best_window(serving, inputs, window, lambda _: of_size(len(inputs), size))


def maximal(serving: ServedPair, inputs: IntArray, window: int | None = None) -> Batching:
    """Max batching: the largest size at which every batch fits into memory."""
    size = _largest(serving, inputs)
    return _best_window(serving, inputs, window, lambda _: of_size(len(inputs), size))


def heuristic(serving: ServedPair, inputs: IntArray, window: int | None = None) -> Batching:
    """Heuristic batching: the size grows from 2 until the latency rises or memory is full."""
    largest = _largest(serving, inputs)
    build = partial(of_size, len(inputs))
    return _best_window(serving, inputs, window, lambda seconds: grow(build, largest, seconds))


def autoregressive(serving: ServedPair, inputs: IntArray, window: int | None = None) -> Batching:
    """ADS: autoregressive decoding by the verify model, heuristic batching, unlimited memory. The window is 0.

    One pass over the prompt yields the first token and O_max − 1 passes the others; batches run one after the other.

    Raises:
        BadInput: a window is requested.
    """
    if window is not None:
        raise BadInput("autoregressive serving drafts nothing; leave the window out")

    def seconds(runs: Runs) -> float:
        sizes, longest = _shapes(runs, inputs)
        return float(autoregressive_s(serving, sizes, longest).sum())

    runs = grow(partial(of_size, len(inputs)), len(inputs), seconds)
    return Batching(0, tuple(map(tuple, runs)), seconds(runs))


def autoregressive_s(serving: ServedPair, sizes: IntArray, inputs: IntArray) -> Array:
    """[M] seconds to decode each batch with the verify model alone (eqs. 11, 12, 17)."""
    model, cost, tokens = serving.verify_model, serving.cost, serving.max_output_tokens
    prompt = np.asarray(forward_flops(model.layers, model.hidden, model.ffn, inputs, 0))
    cached = inputs + (tokens - 2) / 2  # mean over the later passes; FLOPs are linear in it
    later = np.asarray(forward_flops(model.layers, model.hidden, model.ffn, 1, cached)) * (tokens - 1)
    seconds: Array = cost.c1_verify * (prompt + later) * sizes + cost.c2_verify * tokens
    return seconds


BASELINES: dict[str, Callable[[ServedPair, IntArray, int | None], Batching]] = {
    "no-pipeline": without_pipeline,
    "no-batching": no_batching,
    "fixed-window": fixed_window,
    "static": static,
    "max": maximal,
    "heuristic": heuristic,
    "autoregressive": autoregressive,
}
"""Baselines by name: batches from models, inputs [K] and a window (None: the best one)."""
ALGORITHMS = (*SOLVERS, *BASELINES)


def batch_by(algorithm: str, serving: ServedPair, inputs: IntArray, window: int | None = None) -> Batching:
    """Form batches with one of `ALGORITHMS`.

    Raises:
        BadInput: an unknown algorithm, a window out of range, a task that does not fit.
    """
    if algorithm not in ALGORITHMS:
        raise BadInput(f"no planner {algorithm!r}; known: {', '.join(ALGORITHMS)}")
    if algorithm in BASELINES:
        return BASELINES[algorithm](serving, inputs, window)
    return plan_batches(serving, inputs, algorithm, window)


# ---------------------------------------------------------------- helpers


def _largest(serving: ServedPair, inputs: IntArray) -> int:
    """Largest size at which every batch fits into memory."""
    return min(len(inputs), int(most_tasks(serving, inputs).min()))


def of_size(tasks: int, size: int) -> Runs:
    return [list(range(k, min(k + size, tasks))) for k in range(0, tasks, size)]


def fitting(serving: ServedPair, inputs: IntArray, size: int) -> Runs:
    """Batches of up to `size` tasks in order of arrival, each ended early where one more would not fit into memory
    (eq. 24b).
    """
    runs: Runs = []
    most = most_tasks(serving, inputs)
    for k in range(len(inputs)):
        batch = [*runs[-1], k] if runs else [k]
        if runs and len(batch) <= min(size, int(most[batch].min())):
            runs[-1] = batch
        else:
            runs.append([k])
    return runs


def grow(build: Callable[[int], Runs], largest: int, seconds: Callable[[Runs], float]) -> Runs:
    """Batches of a size that is increased by one from 2 until the latency rises."""
    return until_slower((build(size) for size in range(min(2, largest), largest + 1)), seconds)


def until_slower(candidates: Iterator[Runs], seconds: Callable[[Runs], float]) -> Runs:
    """The last candidate before the latency rises."""
    runs = next(candidates)
    best_s = seconds(runs)
    for candidate in candidates:
        if (candidate_s := seconds(candidate)) > best_s:
            break
        runs, best_s = candidate, candidate_s
    return runs


def _shapes(runs: Runs, inputs: IntArray) -> tuple[IntArray, IntArray]:
    """[M] sizes and [M] longest inputs of batches."""
    return np.array([len(run) for run in runs]), np.array([inputs[run].max() for run in runs])


def _timed(serving: ServedPair, inputs: IntArray, window: int, runs: Runs, pipeline: bool = True) -> Batching:
    seconds = inference_s(serving, window, *_shapes(runs, inputs), pipeline=pipeline)
    return Batching(window, tuple(map(tuple, runs)), seconds)


def _best_window(
    serving: ServedPair, inputs: IntArray, window: int | None, batches: Callable[[Callable[[Runs], float]], Runs]
) -> Batching:
    """Batches at the window of least latency; `batches` forms them at each window, given a function for T_inf."""
    _, ordered = ascending(inputs)
    found = []
    for tokens in windows(serving, window):
        seconds = partial(_pipeline_s, Stages(serving, ordered, tokens), ordered, inputs)
        runs = batches(seconds)
        found.append((seconds(runs), tokens, runs))
    _, tokens, runs = min(found, key=lambda one: one[:2])
    return _timed(serving, inputs, tokens, runs)


def _pipeline_s(stages: Stages, ordered: IntArray, inputs: IntArray, runs: Runs) -> float:
    """T_inf of batches whose tasks need not be neighbours in input order."""
    sizes, longest = _shapes(runs, inputs)
    ends = np.searchsorted(ordered, longest, "right")
    return stages.latency_s(ends - sizes, ends)
