"""Solvers for batches and their order at one window."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from testbed.optim.batching import dynamic_program
from testbed.optim.relaxed import relax
from testbed.optim.search import BatchOrder, best_arranged, best_ordered, every_run, improve
from testbed.optim.stages import Stages

WEIGHTS = np.array([(a, b) for a in (0.0, 0.5, 1.0) for b in (0.0, 0.25, 0.5, 0.75, 1.0)])
FEWER = np.array([(0.0, 0.0), (1.0, 0.0), (1.0, 0.5), (1.0, 1.0)])
"""[W, 2] weights of the relaxed problems, in the first step and in the later ones."""
CROWD = 20_000_000
"""Rows times sizes from where on there is much to search: fewer weights must do."""
NEAR = 1.03
"""Where there is much to search, Algorithm 1 must come that near to the best window for more to be tried."""
FEW = 10
"""Tasks up to which all their runs are weighed."""
STARTS = 3
"""Plans that local search starts from."""
SAFE = 1 - 1e-12
"""A bound is taken as broken only by more than rounding."""


def paper(stages: Stages, limit_s: float = np.inf) -> BatchOrder:
    """Algorithm 1."""
    boundaries = dynamic_program(stages)
    return BatchOrder(stages, boundaries[:-1], boundaries[1:])


def better(stages: Stages, limit_s: float = np.inf) -> BatchOrder | None:
    """The best of Algorithm 1, relaxed problems at several weights, and local search from the best of those.

    Returns None if a bound proves that nothing at this window is faster than `limit_s`, or where there is much to
    search and Algorithm 1 is not even near it.
    """
    crowded = int(stages.most.clip(max=stages.tasks).sum()) > CROWD
    first = paper(stages)
    if crowded and first.latency_s > NEAR * limit_s:
        return None
    relaxed = relax(stages, FEWER if crowded else WEIGHTS)
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
"""The limit is what another window reached already."""
