"""Fit of c1 and c2 of T(b, F) = c1·F·b + c2 to measured steps of both nodes (edge SD batching, eq. 17 and Fig. 5).

A step is l draft passes, or one verification, of a batch; its FLOPs follow eqs. 13 and 14. The fit is to the time per
pass of each step. With the small bundled pair, a task takes time beyond its FLOPs: `terms` gives R² with one more term.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from testbed.errors import BadInput
from testbed.intervals import span
from testbed.optim.inference_cost import Array, Model, draft_flops, fit_runtime, verify_flops

Node = Literal["draft", "verify"]
Phase = Literal["decode", "prompt"]
NODES: tuple[Node, ...] = ("draft", "verify")
PHASES: tuple[Phase, ...] = ("decode", "prompt")
LEAST = 3
"""Fewest steps of a node for a fit."""


class MeasuredStep(msgspec.Struct, frozen=True):
    """A measured step of a batch."""

    node: Node
    phase: Phase
    """prompt: step 1 of a task, which computes its input (for the drafter: its first pass only)."""
    batch: int
    """b"""
    prefix: float
    """Committed tokens of each task before the step."""
    window: int
    """l"""
    passes: int
    seconds: float
    """Duration of the whole step."""
    variation: float = 0.0
    """Standard deviation over mean of repeats."""


class NodeFit(msgspec.Struct, frozen=True):
    """Coefficients of a node, and how well they predict the measured times per pass."""

    c1: float
    """Seconds per FLOP."""
    c2: float
    """Seconds per pass."""
    r2: float
    mape: float
    """Mean of |error| / measured."""
    steps: int
    intervals: dict[str, tuple[float, float]]
    """95 % intervals of c1 and c2: percentiles of fits to resampled steps."""
    clamped: bool
    """Whether least squares gave a negative coefficient, set to 0."""
    phases: dict[str, dict[str, float]]
    """c1, c2, r2 and mape of fits to the steps of one phase."""
    terms: dict[str, float]
    """R² with one of `TERMS` added."""


def flops(model: Model, step: MeasuredStep) -> float:
    """Mean FLOPs of a pass for one task, over the passes of a step (eqs. 13, 14)."""
    first = step.phase == "prompt"
    number = 1 if first else 2
    inputs = step.prefix if first else step.prefix - 1  # eqs. 13 and 14 add (n − 1)·L to the input; L is 1 here
    if step.node == "verify":
        return float(verify_flops(model, inputs, number, step.window, 1.0))
    each = [float(draft_flops(model, inputs, number, i, 1.0)) for i in range(1, step.passes + 1)]
    return float(np.mean(each))


def fit_steps(model: Model, steps: Sequence[MeasuredStep], seed: int = 0, resamples: int = 1000) -> NodeFit:
    """Fit one node's steps.

    Raises:
        BadInput: fewer than three steps, or steps of one amount of work.
    """
    if len(steps) < LEAST:
        raise BadInput(f"a fit of c1 and c2 needs {LEAST} steps or more, not {len(steps)}")
    batch, each, seconds = _table(model, steps)
    c1, c2, clamped = _least_squares(batch, each, seconds)
    work = batch * each
    intervals = _intervals(batch, each, seconds, seed, resamples)
    return NodeFit(
        c1, c2, *_scores(c1 * work + c2, seconds), len(steps), intervals, clamped,
        {phase: found for phase in PHASES if (found := _alone(model, [s for s in steps if s.phase == phase]))},
        {name: _with_term(work, np.array([term(s) for s in steps]), seconds) for name, term in TERMS.items()},
    )  # fmt: skip


TERMS: dict[str, Callable[[MeasuredStep], float]] = {
    "tasks": lambda step: step.batch,
    "new_tokens": lambda step: step.batch * _new(step),
    "cached_tokens": lambda step: step.batch * (0 if step.phase == "prompt" else step.prefix),
}
"""Terms that eq. 17 leaves out."""


def cost_document(fits: dict[Node, NodeFit], phase: Phase | None = "decode") -> dict[str, float]:
    """`cost` for `testbed optim plan --tasks`, from the fits to one phase if available, or (None) to all steps.

    The default is decoding, which all steps of a task but one are. On a CPU, a FLOP of a prompt takes a different time
    than one of a single token, since the tokens of a prompt share the reads of the weights.
    """
    found = {node: (phase and fit.phases.get(phase)) or {"c1": fit.c1, "c2": fit.c2} for node, fit in fits.items()}
    return {f"{name}_{node}": found[node][name] for node in fits for name in ("c1", "c2")}


def _new(step: MeasuredStep) -> float:
    more = step.window if step.node == "verify" else 0
    return step.prefix + more if step.phase == "prompt" else 1 + more


def _table(model: Model, steps: Sequence[MeasuredStep]) -> tuple[Array, Array, Array]:
    """[n] tasks, FLOPs of a pass for one task, and seconds per pass."""
    batch = np.array([step.batch for step in steps], np.float64)
    each = np.array([flops(model, step) for step in steps])
    return batch, each, np.array([step.seconds / step.passes for step in steps])


def _least_squares(batch: Array, each: Array, seconds: Array) -> tuple[float, float, bool]:
    """c1 and c2, and whether one was clamped: if it is negative, the other is fitted alone."""
    found = fit_runtime(batch, each, seconds)
    if found.c1 < 0:
        return 0.0, float(seconds.mean()), True
    if found.c2 < 0:
        work = batch * each
        return float(work @ seconds / (work @ work)), 0.0, True
    return found.c1, found.c2, False


def _scores(predicted: Array, seconds: Array) -> tuple[float, float]:
    """R² and MAPE."""
    spread = float(((seconds - seconds.mean()) ** 2).sum())
    r2 = 1 - float(((seconds - predicted) ** 2).sum()) / spread if spread else 1.0
    return r2, float((np.abs(predicted - seconds) / seconds).mean())


def _intervals(batch: Array, each: Array, seconds: Array, seed: int, resamples: int) -> dict[str, tuple[float, float]]:
    rng, found = np.random.default_rng([seed, 17]), []
    for _ in range(resamples):
        rows = rng.integers(0, batch.size, batch.size)
        if np.ptp(batch[rows] * each[rows]) > 0:
            found.append(_least_squares(batch[rows], each[rows], seconds[rows])[:2])
    low, high = span(found)
    return {name: (float(low[i]), float(high[i])) for i, name in enumerate(("c1", "c2"))}


def _alone(model: Model, steps: Sequence[MeasuredStep]) -> dict[str, float] | None:
    """Fit to some of the steps; None if they are too few or of equal work."""
    batch, each, seconds = _table(model, steps)
    if len(steps) < LEAST or np.ptp(batch * each) == 0:
        return None
    c1, c2, _ = _least_squares(batch, each, seconds)
    r2, mape = _scores(c1 * batch * each + c2, seconds)
    return {"c1": c1, "c2": c2, "r2": r2, "mape": mape, "steps": len(steps)}


def _with_term(work: Array, term: Array, seconds: Array) -> float:
    x: Any = np.stack([work, term, np.ones_like(work)], axis=1)
    x = x / np.maximum(np.abs(x).max(axis=0), 1e-30)
    return _scores(x @ np.linalg.lstsq(x, seconds, rcond=None)[0], seconds)[0]
