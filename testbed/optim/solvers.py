"""Solvers of the batching problem at one window: batches and their order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from testbed.optim.batching import dynamic_program
from testbed.optim.search import BatchOrder, best_arranged, best_ordered, every_run, improve
from testbed.optim.stages import Stages

LARGE = 20_000_000
"""Sum of the largest batch sizes over tasks beyond which a problem counts as large."""
NEAR = 1.03
"""Large problems: a window is searched only if Algorithm 1 is within this factor of the best latency so far."""
FEW = 10
"""Maximum number of tasks for which all boundaries are tried."""
STARTS = 3
"""Number of plans that local search starts from."""


def paper(stages: Stages, limit_s: float = np.inf) -> BatchOrder:
    """Algorithm 1 of the paper."""
    boundaries = dynamic_program(stages)
    return BatchOrder(stages, boundaries[:-1], boundaries[1:])


def better(stages: Stages, limit_s: float = np.inf) -> BatchOrder | None:
    """Local search from Algorithm 1; for few tasks also from the best of all boundaries.

    Returns None if the problem is large and Algorithm 1 is not near `limit_s`.
    """
    found = [paper(stages)]
    large = int(stages.most.clip(max=stages.tasks).sum()) > LARGE
    if large and found[0].latency_s > NEAR * limit_s:
        return None
    if stages.tasks <= FEW:
        runs = every_run(stages)
        found += best_ordered(stages, runs)
        found += filter(None, [best_arranged(stages, runs)])
        found.sort(key=lambda one: one.latency_s)
    return min((improve(stages, one) for one in found[:STARTS]), key=lambda one: one.latency_s)


SOLVERS: dict[str, Callable[[Stages, float], BatchOrder | None]] = {"best": better, "dp": paper}
"""Solvers by name, from stages and a limit in seconds: the best latency at the windows solved before."""
