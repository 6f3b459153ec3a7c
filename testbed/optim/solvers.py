"""Solvers of the batching problem at one window: batches and their order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from testbed.optim.batching import dynamic_program
from testbed.optim.relaxed import relax
from testbed.optim.search import BatchOrder, best_arranged, best_ordered, every_run, improve
from testbed.optim.stages import Stages

WEIGHTS = np.array([(a, b) for a in (0.0, 0.5, 1.0) for b in (0.0, 0.25, 0.5, 0.75, 1.0)])
FEWER = np.array([(0.0, 0.0), (1.0, 0.0), (1.0, 0.5), (1.0, 1.0)])
"""[W, 2] weights of the relaxed problems, in the first step and in the later ones; `FEWER` for large problems."""
LARGE = 20_000_000
"""Sum of the largest batch sizes over tasks beyond which a problem counts as large."""
NEAR = 1.03
"""Large problems: a window is searched only if Algorithm 1 is within this factor of the best latency so far."""
FEW = 10
"""Maximum number of tasks for which all boundaries are tried."""
STARTS = 3
"""Number of plans that local search starts from."""
SAFE = 1 - 1e-12
"""Factor on lower bounds that allows for rounding."""


def paper(stages: Stages, limit_s: float = np.inf) -> BatchOrder:
    """Algorithm 1 of the paper."""
    boundaries = dynamic_program(stages)
    return BatchOrder(stages, boundaries[:-1], boundaries[1:])


def better(stages: Stages, limit_s: float = np.inf) -> BatchOrder | None:
    """Best of Algorithm 1, relaxed problems at several weights, and local search from the best of these.

    Returns None if a lower bound shows that no plan at this window beats `limit_s`, or if the problem is large and
    Algorithm 1 is not near `limit_s`.
    """
    large = int(stages.most.clip(max=stages.tasks).sum()) > LARGE
    first = paper(stages)
    if large and first.latency_s > NEAR * limit_s:
        return None
    relaxed = relax(stages, FEWER if large else WEIGHTS)
    if max(each.bound_s for each in relaxed) * SAFE > limit_s:
        return None
    found = [first, *(BatchOrder(stages, each.starts, each.ends) for each in relaxed)]
    if stages.tasks <= FEW:
        runs = every_run(stages)
        found += best_ordered(stages, runs)
        found += filter(None, [best_arranged(stages, runs)])
    else:
        found += filter(None, [best_arranged(stages, one.boundaries[None]) for one in found])
    found.sort(key=lambda one: one.latency_s)
    return min((improve(stages, one) for one in found[:STARTS]), key=lambda one: one.latency_s)


SOLVERS: dict[str, Callable[[Stages, float], BatchOrder | None]] = {"best": better, "dp": paper}
"""Solvers by name, from stages and a limit in seconds: the best latency at the windows solved before."""
