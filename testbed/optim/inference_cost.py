"""Memory, FLOPs and time of batched speculative decoding on two edge nodes (edge SD batching, Sections II-B to II-D).

The draft model runs on the small base station, the verify model on the macro base station. Symbols: J layers, hidden
dimension h1, feed-forward dimension h2; a batch of b tasks padded to I input tokens, with up to O output tokens each;
window l, L tokens per decoding step, step n ≥ 1, draft pass i ≥ 1 within a step. Array arguments broadcast.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from testbed.errors import BadInput
from testbed.options import Config

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Numbers = float | npt.NDArray[np.floating[Any]] | IntArray


MOST_DIMENSION, MOST_WINDOW, MOST_TOKENS = 2**24, 256, 2**24
MOST_BYTES, MOST_COST = 1e18, 1e6
"""Largest memory, and largest coefficient of a pass [s]."""


class Model(Config, frozen=True):
    """Dimensions of a decoder-only model (Table I).

    Raises:
        BadInput: a dimension below 1 or above `MOST_DIMENSION`.
    """

    layers: int
    """J"""
    hidden: int
    """h1"""
    ffn: int
    """h2"""

    def __post_init__(self) -> None:
        sizes = (self.layers, self.hidden, self.ffn)
        if not all(1 <= size <= MOST_DIMENSION for size in sizes):
            raise BadInput(f"layers, hidden and ffn of a model lie in [1, {MOST_DIMENSION}], not {sizes}")


class Cost(Config, frozen=True):
    """Coefficients of eq. 17 on both nodes: c1 in seconds per FLOP, c2 in seconds per pass (Table II).

    Raises:
        BadInput: a negative coefficient or one above `MOST_COST`, or a node whose coefficients are both 0.
    """

    c1_draft: float
    c2_draft: float
    c1_verify: float
    c2_verify: float

    def __post_init__(self) -> None:
        values = (self.c1_draft, self.c2_draft, self.c1_verify, self.c2_verify)
        if not all(0 <= value <= MOST_COST for value in values):
            raise BadInput(f"cost coefficients lie in [0, {MOST_COST:g}], not {', '.join(f'{v:g}' for v in values)}")
        if max(values[:2]) == 0 or max(values[2:]) == 0:
            raise BadInput("drafting and verifying take time: c1 or c2 of each must be positive")


class ServedPair(Config, frozen=True):
    """A draft and verify model, their hardware, and the decoding limits.

    Raises:
        BadInput: a value out of range.
    """

    draft_model: Model
    verify_model: Model
    cost: Cost
    memory_bytes: float
    """Γs, memory of the draft node; that of the verify node is not limited."""
    max_output_tokens: int
    """O_max, the output length that every task is planned with."""
    alpha: float
    """α, acceptance rate of drafted tokens."""
    max_window: int = 10
    """l_max"""

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise BadInput(f"alpha must lie in [0, 1], not {self.alpha:g}")
        if not 0 < self.memory_bytes <= MOST_BYTES:
            raise BadInput(f"memory_bytes must be positive and at most {MOST_BYTES:g}, not {self.memory_bytes:g}")
        for name, most in (("max_output_tokens", MOST_TOKENS), ("max_window", MOST_WINDOW)):
            if not 1 <= getattr(self, name) <= most:
                raise BadInput(f"{name} must lie in [1, {most}], not {getattr(self, name)}")


# ---------------------------------------------------------------- steps


def tokens_per_step(alpha: float, window: int) -> float:
    """L = (1 − α^(l+1)) / (1 − α), mean output tokens per decoding step (eq. 7); l + 1 at α = 1."""
    return math.fsum(alpha**i for i in range(window + 1))


def steps_needed(output_tokens: int, alpha: float, window: int) -> int:
    """⌈O / L⌉ decoding steps (eq. 8), tolerant of rounding errors."""
    return max(1, math.ceil(output_tokens / tokens_per_step(alpha, window) - 1e-9))


# ---------------------------------------------------------------- memory


def parameter_bytes(model: Model) -> int:
    """Γ_p: weights in half precision (eq. 9)."""
    return model.layers * (8 * model.hidden**2 + 4 * model.hidden * model.ffn)


def cache_bytes(model: Model, size: Numbers, inputs: Numbers, outputs: Numbers) -> Numbers:
    """Γ_kv: peak KV cache of a batch (eq. 10)."""
    return 4 * model.layers * model.hidden * (inputs + outputs) * size


def most_tasks(serving: ServedPair, inputs: IntArray) -> IntArray:
    """[K] largest batch sizes if the longest input is `inputs` (eq. 24b).

    Raises:
        BadInput: a task that does not fit into memory alone.
    """
    weights, left = parameter_bytes(serving.draft_model), serving.memory_bytes
    each = np.asarray(cache_bytes(serving.draft_model, 1, inputs, serving.max_output_tokens), np.float64)
    most = np.floor((left - weights) / each)
    most -= weights + most * each > left
    if np.any(most < 1):
        k = int(np.argmax(each))
        raise BadInput(
            f"a task of {int(inputs[k])} input and {serving.max_output_tokens} output tokens needs "
            f"{weights + each[k]:.4g} bytes with the draft model, memory_bytes is {left:.4g}"
        )
    return most.astype(np.int64)


def check_memory(serving: ServedPair, sizes: IntArray, inputs: IntArray) -> None:
    """Check that batches [M] with these longest inputs [M] fit into the draft node's memory (eq. 24b).

    Raises:
        BadInput: one does not.
    """
    held = parameter_bytes(serving.draft_model) + np.asarray(
        cache_bytes(serving.draft_model, sizes, inputs, serving.max_output_tokens), np.float64
    )
    if np.any(held > serving.memory_bytes):
        m = int(np.argmax(held))
        raise BadInput(
            f"a batch of {int(sizes[m])} tasks of up to {int(inputs[m])} input tokens needs {held[m]:.4g} bytes, "
            f"memory_bytes is {serving.memory_bytes:.4g} (eq. 24b)"
        )


# ---------------------------------------------------------------- FLOPs


@overload
def forward_flops(layers: int, hidden: int, ffn: int, new: float, cached: float) -> float: ...
@overload
def forward_flops(layers: int, hidden: int, ffn: int, new: Numbers, cached: Numbers) -> Numbers: ...
def forward_flops(layers: int, hidden: int, ffn: int, new: Numbers, cached: Numbers) -> Numbers:
    """FLOPs of a forward pass over n `new` tokens after `cached` ones: 4·J·h1·n·(2·h1 + (cached + n) + h2).

    Eqs. 11–14 have this form, and so does WISV's eq. 13.
    """
    return 4.0 * layers * hidden * new * (2 * hidden + cached + new + ffn)


def draft_flops(model: Model, inputs: Numbers, step: Numbers, i: Numbers, per_step: float) -> Array:
    """F^d: FLOPs of draft pass i of a step for one task (eq. 13); `per_step` is L."""
    prefill = np.equal(step, 1) & np.equal(i, 1)
    cached = inputs + ((step - 1) * per_step - 1) + (i - 1)
    new = np.where(prefill, inputs, 1.0)
    return np.asarray(forward_flops(model.layers, model.hidden, model.ffn, new, np.where(prefill, 0.0, cached)))


def verify_flops(model: Model, inputs: Numbers, step: Numbers, window: int, per_step: float) -> Array:
    """F^v: FLOPs of a step's verification for one task (eq. 14); `per_step` is L."""
    prefill = np.equal(step, 1)
    new = np.where(prefill, inputs + window, 1.0 + window)
    cached = np.where(prefill, 0.0, inputs + ((step - 1) * per_step - 1))
    return np.asarray(forward_flops(model.layers, model.hidden, model.ffn, new, cached))


# ---------------------------------------------------------------- time


def draft_s(serving: ServedPair, size: Numbers, inputs: Numbers, step: Numbers, window: int) -> Array:
    """T^d: seconds to draft `window` tokens for a batch (eqs. 17, 19)."""
    per_step, cost = tokens_per_step(serving.alpha, window), serving.cost
    flops = sum(draft_flops(serving.draft_model, inputs, step, i, per_step) for i in range(1, window + 1))
    return np.asarray(cost.c1_draft * flops * size + window * cost.c2_draft, np.float64)


def verify_s(serving: ServedPair, size: Numbers, inputs: Numbers, step: Numbers, window: int) -> Array:
    """T^v: seconds to verify them (eqs. 17, 18)."""
    flops = verify_flops(serving.verify_model, inputs, step, window, tokens_per_step(serving.alpha, window))
    return np.asarray(serving.cost.c1_verify * flops * size + serving.cost.c2_verify, np.float64)


def completion_s(batches: Iterable[tuple[Array, Array]], pipeline: bool = True) -> Array:
    """[N] seconds of each step (eqs. 20, 21).

    Args:
        batches: [N] draft and [N] verify times of each batch, in pipeline order; zero in steps after the batch's last.
        pipeline: whether a batch is drafted while another is verified.
    """
    drafted = done = np.zeros(1)
    for drafting, verifying in batches:
        drafted = drafted + drafting
        done = (np.maximum(drafted, done) if pipeline else done + drafting) + verifying
    return done


def inference_s(
    serving: ServedPair,
    window: int,
    sizes: IntArray,
    inputs: IntArray,
    outputs: IntArray | None = None,
    *,
    pipeline: bool = True,
) -> float:
    """T_inf: seconds for all steps of all batches (eq. 22), which must fit into memory (eq. 24b).

    Args:
        sizes: [M] tasks of each batch, in pipeline order.
        inputs: [M] longest input of each batch.
        outputs: [M] longest output of each batch, after which it ends; None: O_max for all.
        pipeline: whether a batch is drafted while another is verified.

    Raises:
        BadInput: a batch that does not fit into memory, of whatever planner or baseline.
    """
    check_memory(serving, sizes, inputs)
    longest = np.full(len(sizes), serving.max_output_tokens) if outputs is None else outputs
    steps = [steps_needed(int(tokens), serving.alpha, window) for tokens in longest]
    step: IntArray = np.arange(1, max(steps) + 1)
    batches = (
        (
            np.where(step <= last, draft_s(serving, size, length, step, window), 0.0),
            np.where(step <= last, verify_s(serving, size, length, step, window), 0.0),
        )
        for size, length, last in zip(sizes.tolist(), inputs.tolist(), steps, strict=True)
    )
    return float(completion_s(batches, pipeline).sum())


class CostFit(NamedTuple):
    """Coefficients of eq. 17, and R² of the fit."""

    c1: float
    """Seconds per FLOP."""
    c2: float
    """Seconds per pass."""
    r2: float


def fit_runtime(batch: npt.ArrayLike, flops: npt.ArrayLike, seconds: npt.ArrayLike) -> CostFit:
    """Least-squares fit of T(b, F) = c1·F·b + c2 (eq. 17).

    Args:
        batch: [n] tasks of each measured pass.
        flops: [n] FLOPs of the pass for one task.
        seconds: [n] duration of the pass.

    Raises:
        BadInput: arrays of different lengths, numbers that are not finite, or fewer than two amounts of work.
    """
    columns = [np.asarray(column, np.float64).ravel() for column in (batch, flops, seconds)]
    if len({column.size for column in columns}) != 1 or not all(np.all(np.isfinite(column)) for column in columns):
        raise BadInput("batch, flops and seconds must be finite and of equal length")
    work, time = columns[0] * columns[1], columns[2]
    if work.size < 2 or np.ptp(work) == 0:
        raise BadInput("a fit of c1 and c2 needs passes of at least two different amounts of work (batch x FLOPs)")
    off, spread = work - work.mean(), time - time.mean()
    c1 = float(off @ spread / (off @ off))
    residual = spread - c1 * off
    total = float(spread @ spread)
    r2 = 1 - float(residual @ residual) / total if total > 0 else 1.0
    return CostFit(c1, float(time.mean() - c1 * work.mean()), r2)
