"""What the paper leaves open about its baselines, as readings, and latencies under each (edge SD batching, Section IV).

The default reading is that of `testbed.optim.baselines`. Under any, the proposed scheme plans with O_max, as Algorithm
1 does; what differs is how long tasks really run and how the baselines form their batches.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from testbed.config import Config
from testbed.errors import BadInput
from testbed.optim.baselines import FIXED_WINDOW, STATIC_SIZE, Runs, batch_by, grow, of_size
from testbed.optim.inference_cost import IntArray, ServedPair, cache_bytes, inference_s, most_tasks, parameter_bytes
from testbed.optim.planner import plan_batches
from testbed.optim.solvers import SOLVERS

SIZED = ("static", "max", "heuristic")
"""Baselines that have a batch size."""


class Interpretation(Config, frozen=True):
    """One choice for each open question; the defaults are ours."""

    outputs: Literal["longest", "drawn"] = "longest"
    """Output tokens of a task: O_max for all, or drawn from [1, O_max]; a batch leaves after its longest (II-B)."""
    max_size: Literal["worst", "mean"] = "worst"
    """Max batching's size: so many of the longest task as fit, or so many of a mean one."""
    heuristic: Literal["size", "count"] = "size"
    """What starts with two and grows: the size of a batch, or the number of batches."""
    baseline_window: Literal["best", "fixed", "same"] = "best"
    """Window of the sized baselines: the best for each, 7, or that of the proposed scheme."""
    memory: Literal["decimal", "binary"] = "decimal"
    """What 16 GB are: 16·10⁹ bytes, or 16·2³⁰."""
    order: Literal["arrival", "sorted"] = "arrival"
    """Order of the tasks in the sized baselines' batches."""


class Timed(NamedTuple):
    """A system's batches, timed."""

    inference_s: float
    window: int


class TaskLengths(NamedTuple):
    """Lengths of the tasks."""

    inputs: IntArray
    """[K]"""
    outputs: IntArray | None
    """[K]; None: O_max for all."""


def inference_by(
    name: str, serving: ServedPair, users: TaskLengths, reading: Interpretation, algorithm: str = "dp"
) -> Timed:
    """T_inf of a planner of `SOLVERS` or a baseline under a reading.

    Raises:
        BadInput: an unknown system, or one that the reading says nothing of.
    """
    inputs = users.inputs
    if reading == Interpretation():
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
        raise BadInput(f"no reading says how {name!r} serves tasks of other outputs than the longest")
    return _sized(name, serving, users, reading, algorithm)


def _sized(name: str, serving: ServedPair, users: TaskLengths, reading: Interpretation, algorithm: str) -> Timed:
    """Static, max or heuristic batching."""
    windows = list(range(1, serving.max_window + 1)) if reading.baseline_window == "best" else [FIXED_WINDOW]
    if reading.baseline_window == "same":
        windows = [plan_batches(serving, users.inputs, algorithm).window]
    if reading.order == "sorted":
        order = np.argsort(users.inputs, kind="stable")
        users = TaskLengths(users.inputs[order], None if users.outputs is None else users.outputs[order])
    tasks, fits = len(users.inputs), int(most_tasks(serving, users.inputs).min())
    largest = min(tasks, fits if reading.max_size == "worst" else _mean_size(serving, users))
    found = []
    for window in windows:
        timed = partial(_seconds, serving, window, users=users)
        if name == "heuristic":
            runs = grow(tasks, largest, timed) if reading.heuristic == "size" else _fewer(tasks, largest, timed)
        else:
            runs = of_size(tasks, min(STATIC_SIZE, fits, tasks) if name == "static" else largest)
        found.append(Timed(timed(runs), window))
    return min(found)


def _seconds(serving: ServedPair, window: int, runs: Runs, users: TaskLengths, pipeline: bool = True) -> float:
    """T_inf of batches that each run as long as their longest output."""
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
    """Tasks of mean length that fit into the memory."""
    mean_output = serving.max_output_tokens if users.outputs is None else float(users.outputs.mean())
    each = cache_bytes(serving.draft_model, 1, float(users.inputs.mean()), mean_output)
    return max(1, int((serving.memory_bytes - parameter_bytes(serving.draft_model)) // float(np.asarray(each))))


def _fewer(tasks: int, largest: int, timed: partial[float]) -> Runs:
    """Two batches, or as few as fit, then one more as long as the latency does not rise."""
    count = max(min(2, tasks), -(-tasks // largest))
    runs = of_size(tasks, -(-tasks // count))
    best_s = timed(runs)
    while count < tasks:
        count += 1
        candidate = of_size(tasks, -(-tasks // count))
        if (candidate_s := timed(candidate)) > best_s:
            break
        runs, best_s = candidate, candidate_s
    return runs
