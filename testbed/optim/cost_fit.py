"""c1 and c2 of T(b, F) = c1·F·b + c2 from measured steps of both nodes (edge SD batching, eq. 17 and Fig. 5).

A step is l draft passes, or one verification, of a batch; its FLOPs are those of eqs. 13 and 14. Steps enter the fit by
their time per pass. Tasks of the bundled pair are so small that a task as such takes time: `terms` says how much one
more term explains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from testbed.errors import BadInput
from testbed.optim.inference_cost import Array, Model, draft_flops, fit_runtime, verify_flops

Node = Literal["draft", "verify"]
Phase = Literal["decode", "prompt"]
NODES: tuple[Node, ...] = ("draft", "verify")
PHASES: tuple[Phase, ...] = ("decode", "prompt")
LEVEL = 0.95
LEAST = 3
"""Steps of a node that a fit needs."""


class MeasuredStep(msgspec.Struct, frozen=True):
    """A measured step of a batch."""

    node: Node
    phase: Phase
    """prompt: step 1 of a task, which computes its input (of a drafter its first pass alone)."""
    batch: int
    """b"""
    prefix: float
    """Committed tokens of every task before the step."""
    window: int
    """l"""
    passes: int
    seconds: float
    """Of the whole step."""
    variation: float = 0.0
    """Between repeats: standard deviation over mean."""


class NodeFit(msgspec.Struct, frozen=True):
    """Coefficients of a node, and how well they tell the measured times per pass."""

    c1: float
    """Seconds a FLOP."""
    c2: float
    """Seconds a pass."""
    r2: float
    mape: float
    """Mean of |error| / measured."""
    steps: int
    intervals: dict[str, tuple[float, float]]
    """95 % of c1 and c2, percentiles of fits to resampled steps."""
    clamped: bool
    """Whether least squares gave a negative coefficient, which was set to 0."""
    phases: dict[str, dict[str, float]]
    """c1, c2, r2 and mape of a fit to the steps of one phase alone."""
    terms: dict[str, float]
    """R² with one term more."""


def flops(model: Model, step: MeasuredStep) -> float:
    """FLOPs of a pass of a step for one task, on average over the step's passes (eqs. 13, 14)."""
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
"""What eq. 17 leaves out and a pass may take time for."""


def cost_document(fits: dict[Node, NodeFit], phase: Phase | None = "decode") -> dict[str, float]:
    """`cost` of `testbed optim plan --tasks`, from the fits to one phase, where there are any, or (None) to all steps.

    Decoding is the default: all steps of a task but one are of that kind, and on a CPU a FLOP of a prompt, whose tokens
    share the reading of the weights, costs another time than one of a single token.
    """
    found = {node: (phase and fit.phases.get(phase)) or {"c1": fit.c1, "c2": fit.c2} for node, fit in fits.items()}
    return {f"{name}_{node}": found[node][name] for node in fits for name in ("c1", "c2")}


def _new(step: MeasuredStep) -> float:
    more = step.window if step.node == "verify" else 0
    return step.prefix + more if step.phase == "prompt" else 1 + more


def _table(model: Model, steps: Sequence[MeasuredStep]) -> tuple[Array, Array, Array]:
    """[n] tasks, FLOPs of a pass for one, and seconds a pass."""
    batch = np.array([step.batch for step in steps], np.float64)
    each = np.array([flops(model, step) for step in steps])
    return batch, each, np.array([step.seconds / step.passes for step in steps])


def _least_squares(batch: Array, each: Array, seconds: Array) -> tuple[float, float, bool]:
    """c1 and c2, neither below 0: where one would be, the other alone is fitted."""
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
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(np.array(found), [tail, 100 - tail], axis=0)
    return {name: (float(low[i]), float(high[i])) for i, name in enumerate(("c1", "c2"))}


def _alone(model: Model, steps: Sequence[MeasuredStep]) -> dict[str, float] | None:
    """A fit to some steps; None where they say nothing."""
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
