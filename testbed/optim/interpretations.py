"""Interpretations of what the paper leaves open about its baselines, and latencies under each (Section IV).

The default interpretation is that of `testbed.optim.baselines`. Under every one, the proposed scheme plans with O_max
as in Algorithm 1; the interpretations differ in the actual output lengths and in how the baselines form batches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from testbed.errors import BadInput
from testbed.optim.baselines import FIXED_WINDOW, STATIC_SIZE, Runs, batch_by, fitting, grow, of_size, until_slower
from testbed.optim.inference_cost import IntArray, ServedPair, cache_bytes, inference_s, most_tasks, parameter_bytes
from testbed.optim.planner import plan_batches
from testbed.optim.solvers import SOLVERS
from testbed.options import Config

SIZED = ("static", "max", "heuristic")
"""Baselines with a batch size."""


class Interpretation(Config, frozen=True):
    """One answer to each question that the paper leaves open."""

    outputs: Literal["longest", "drawn"] = "longest"
    """Output tokens of a task: O_max, or drawn from [1, O_max]; a batch ends with its longest task (Section II-B)."""
    max_size: Literal["worst", "mean"] = "worst"
    """Largest size of max and heuristic batching: as many tasks as fit if all are as long as the longest, or as the
    mean. Every batch must fit with its own longest task (eq. 24b), and ends early where it would not."""
    heuristic: Literal["size", "count"] = "size"
    """Quantity that heuristic batching increases from two: the batch size, or the number of batches."""
    baseline_window: Literal["best", "fixed", "same"] = "best"
    """Window of the baselines in `SIZED`: the best one for each, 7, or that of the proposed scheme."""
    memory: Literal["decimal", "binary"] = "decimal"
    """Meaning of 16 GB: 16·10⁹ or 16·2³⁰ bytes."""
    order: Literal["arrival", "sorted"] = "arrival"
    """Order in which the baselines in `SIZED` take tasks."""


class Timed(NamedTuple):
    """Inference time and window of a system."""

    inference_s: float
    window: int


class TaskLengths(NamedTuple):
    """Input and output lengths of tasks."""

    inputs: IntArray
    """[K]"""
    outputs: IntArray | None
    """[K]; None: O_max for all."""


def inference_by(
    name: str, serving: ServedPair, users: TaskLengths, interpretation: Interpretation, algorithm: str = "dp"
) -> Timed:
    """T_inf and window of a planner in `SOLVERS`, or of a baseline, under an interpretation.

    Raises:
        BadInput: an unknown system, or one that only the default interpretation covers.
    """
    inputs = users.inputs
    if interpretation == Interpretation():
        found = batch_by(name, serving, inputs)
        return Timed(found.inference_s, found.window)
    if name in SOLVERS or name == "no-pipeline":
        plan = plan_batches(serving, inputs, "dp" if name == "no-pipeline" else name)
        runs = [list(batch) for batch in plan.batches]
        return Timed(_seconds(serving, plan.window, runs, users, name != "no-pipeline"), plan.window)
    if name == "fixed-window":
        plan = plan_batches(serving, inputs, "dp", FIXED_WINDOW)
        return Timed(_seconds(serving, FIXED_WINDOW, [list(batch) for batch in plan.batches], users), FIXED_WINDOW)
    if name == "no-batching":
        return min(
            Timed(_seconds(serving, window, of_size(len(inputs), 1), users), window)
            for window in range(1, serving.max_window + 1)
        )
    if name not in SIZED:
        raise BadInput(f"{name!r} is only defined under the default interpretation")
    return _sized(name, serving, users, interpretation, algorithm)


def _sized(name: str, serving: ServedPair, users: TaskLengths, interpretation: Interpretation, algorithm: str) -> Timed:
    """Time static, max or heuristic batching."""
    windows = list(range(1, serving.max_window + 1)) if interpretation.baseline_window == "best" else [FIXED_WINDOW]
    if interpretation.baseline_window == "same":
        windows = [plan_batches(serving, users.inputs, algorithm).window]
    if interpretation.order == "sorted":
        order = np.argsort(users.inputs, kind="stable")
        users = TaskLengths(users.inputs[order], None if users.outputs is None else users.outputs[order])
    tasks, fits = len(users.inputs), int(most_tasks(serving, users.inputs).min())
    largest = min(tasks, fits if interpretation.max_size == "worst" else _mean_size(serving, users))
    build = partial(fitting, serving, users.inputs)
    found = []
    for window in windows:
        timed = partial(_seconds, serving, window, users=users)
        if name == "heuristic":
            runs = (
                grow(build, largest, timed)
                if interpretation.heuristic == "size"
                else _fewer(build, tasks, largest, timed)
            )
        else:
            runs = build(min(STATIC_SIZE, fits, tasks) if name == "static" else largest)
        found.append(Timed(timed(runs), window))
    return min(found)


def _seconds(serving: ServedPair, window: int, runs: Runs, users: TaskLengths, pipeline: bool = True) -> float:
    """T_inf of batches that each run until their longest output ends."""
    inputs, outputs = users
    return inference_s(
        serving,
        window,
        np.array([len(run) for run in runs]),
        np.array([inputs[run].max() for run in runs]),
        None if outputs is None else np.array([outputs[run].max() for run in runs]),
        pipeline=pipeline,
    )


def _mean_size(serving: ServedPair, users: TaskLengths) -> int:
    """Number of tasks of mean length that fit into memory."""
    mean_output = serving.max_output_tokens if users.outputs is None else float(users.outputs.mean())
    each = cache_bytes(serving.draft_model, 1, float(users.inputs.mean()), mean_output)
    return max(1, int((serving.memory_bytes - parameter_bytes(serving.draft_model)) // float(np.asarray(each))))


def _fewer(build: Callable[[int], Runs], tasks: int, largest: int, timed: Callable[[Runs], float]) -> Runs:
    """Batches whose number increases by one, from two or the fewest that fit, until the latency rises."""
    fewest = max(min(2, tasks), -(-tasks // largest))
    return until_slower((build(-(-tasks // count)) for count in range(fewest, tasks + 1)), timed)
