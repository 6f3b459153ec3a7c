"""Relabelling under a channel-dependent budget of repairs (WISV Section V-B, eqs. 28–31, with the errata).

In an episode with base labels y, at channel quality q, B = share(q)·Σy critical mismatches are repaired on average;
those of least smoothed importance are skipped first. As in the paper, each episode has its own budget.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, logit

from testbed.channel.csi import Csi, quality
from testbed.decision_head.episodes import Mismatches
from testbed.decision_head.instances import Instances
from testbed.decision_head.settings import Relabelling

Reals = NDArray[np.float64]


def smoothed_importance(critical: NDArray[np.bool_], order: NDArray[Any], tau: float) -> Reals:
    """[k] s_i = Σ_j y_j·exp(−|i − j|/τ_s) over an episode (eq. 28, errata), with i and j from `order` [k]."""
    ranks = np.argsort(order, kind="stable")
    labels, fades = critical[ranks].astype(np.float64), np.exp(-np.diff(order[ranks].astype(np.float64)) / tau)
    importance: Reals = np.empty(len(order))
    importance[ranks] = _faded(labels, fades) + _faded(labels[::-1], fades[::-1])[::-1] - labels
    return importance


def _faded(labels: Reals, fades: Reals) -> Reals:
    """[k] f_i = y_i + f_{i−1}·fade_{i−1}, for k − 1 fades."""
    found = labels[:1].tolist()
    for label, fade in zip(labels[1:].tolist(), fades.tolist(), strict=True):
        found.append(label + found[-1] * fade)
    return np.array(found)


def policy(importance: Reals, critical: NDArray[np.bool_], multiplier: float, temperature: float) -> Reals:
    """π [k], probability of repair: y_i·σ((s_i − λ)/T) (eq. 31; eq. 30 as T → 0)."""
    chance: Reals = critical * expit((importance - multiplier) / temperature)
    return chance


def multiplier_for(importance: Reals, critical: NDArray[np.bool_], repairs: float, temperature: float) -> float:
    """λ such that Σπ = `repairs`; −∞ if that is all critical mismatches or more, ∞ if none.

    λ is negative if the budget exceeds the repairs of the entropy-regularised optimum without a budget.
    """
    counted = importance[critical]
    if repairs >= len(counted):
        return -math.inf
    if repairs <= 0:
        return math.inf
    # exact if all importances were equal to s: λ = s − T·logit(share)
    even = temperature * float(logit(repairs / len(counted)))
    low, high = float(counted.min()) - even, float(counted.max()) - even

    def excess(multiplier: float) -> float:
        return float(expit((counted - multiplier) / temperature).sum()) - repairs

    if high - low < 1e-12:
        return low
    margin = 1e-9 * temperature  # for rounding errors of the bracket
    return float(brentq(excess, low - margin, high + margin, xtol=1e-12))


def episodes(found: Mismatches) -> Iterator[slice]:
    """Rows of each episode, in order."""
    begins = (np.diff(found.prompt) != 0) | (np.diff(found.order) <= 0)
    edges = [0, *(np.flatnonzero(begins) + 1).tolist(), len(found)]
    return (slice(a, b) for a, b in itertools.pairwise(edges) if a < b)


def relabel(found: Mismatches, critical: NDArray[np.bool_], config: Relabelling) -> Instances:
    """Training instances of n mismatches with base labels [n], under `config.draws` channel states per episode."""
    rng = np.random.default_rng(config.seed)
    parts = []
    for rows in episodes(found):
        labels = critical[rows]
        importance = smoothed_importance(labels, found.order[rows], config.tau)
        for _ in range(config.draws):
            csi = config.draw(rng)
            q = quality(csi, config.quality)
            repairs = config.share(q) * int(labels.sum())
            multiplier = multiplier_for(importance, labels, repairs, config.temperature)
            chance = policy(importance, labels, multiplier, config.temperature)
            parts.append(_under(csi, q, rows, chance, rng.random(len(chance)) < chance))
    return Instances(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _under(csi: Csi, q: float, rows: slice, chance: Reals, action: NDArray[np.bool_]) -> tuple[NDArray[Any], ...]:
    """Columns of `Instances` for an episode under one channel state."""
    count = len(chance)
    return (
        np.arange(rows.start, rows.stop, dtype=np.int32),
        np.tile(csi.features, (count, 1)),
        np.full(count, q, np.float32),
        chance.astype(np.float32),
        action,
    )
