"""Heads compared at equal loss, with paired intervals.

Over θ, a head trades a loss (points of accuracy) for a gain (AAL). At a loss ℓ, its gain is read off its curve: losses
are made non-decreasing in θ (isotonic regression) and the gain is interpolated between the two values of θ around ℓ.
Intervals resample problems, all heads over the same ones. With several training seeds, the variance over seeds is added
to that over problems, and the interval is Student's t of the seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.intervals import FEW, Interval, compared, span, student_t

Reals = NDArray[np.float64]
RESAMPLES = 1000
TAIL = 0.025
"""Share of resamples beyond either end of an interval."""


@dataclass(frozen=True)
class Tradeoff:
    """Sums of one head on one channel, by θ and problem.

    Attributes:
        thresholds: [T] θ, increasing.
        lost: [T, n] what is lost, such as the target's right answers less the head's.
        lost_of: [n] what the loss is a share of.
        won: [T, n] what is won, such as tokens.
        won_per: [T, n] what the gain is a ratio to, such as rounds.
    """

    thresholds: Reals
    lost: Reals
    lost_of: Reals
    won: Reals
    won_per: Reals

    def losses(self, weights: Reals) -> Reals:
        """[b, T] loss in per cent under weights [b, n] of the problems."""
        return np.asarray(100.0 * (weights @ self.lost.T) / (weights @ self.lost_of)[:, None], np.float64)

    def gains(self, weights: Reals) -> Reals:
        """[b, T] gain under weights [b, n]."""
        return np.asarray((weights @ self.won.T) / (weights @ self.won_per.T), np.float64)

    def at_loss(self, points: float, weights: Reals) -> Reals:
        """[b] gain at a loss of `points`."""
        rising, gains = non_decreasing(self.losses(weights)), self.gains(weights)
        after = np.minimum((rising <= points).sum(axis=1), rising.shape[1] - 1)  # the first θ that loses more
        rows, before = np.arange(len(rising)), np.maximum(after - 1, 0)
        step = np.maximum(rising[rows, after] - rising[rows, before], 1e-12)
        part = np.clip((points - rising[rows, before]) / step, 0.0, 1.0)
        return np.asarray(gains[rows, before] + part * (gains[rows, after] - gains[rows, before]), np.float64)

    def reaches(self, points: float, weights: Reals) -> NDArray[np.bool_]:
        """[b] whether the largest θ loses at least `points`; if not, the gain at that loss is a lower bound."""
        return np.asarray(non_decreasing(self.losses(weights))[:, -1] >= points)

    @property
    def whole(self) -> Reals:
        """Weights [1, n] of the problems as they are."""
        return np.ones((1, len(self.lost_of)))

    def threshold_at(self, points: float) -> int:
        """Index of the largest θ that loses at most `points`, by losses made non-decreasing."""
        lost = non_decreasing(self.losses(self.whole))[0]
        return max(0, int((lost <= points + 1e-9).sum()) - 1)


def non_decreasing(values: Reals) -> Reals:
    """Isotonic regression of each row [b, T]: the largest over starts of the smallest mean up to an end."""
    if (np.diff(values, axis=1) >= 0).all():
        return values
    count = values.shape[1]
    sums = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)
    found = np.full(values.shape, -np.inf)
    for start in range(count):
        lengths = np.arange(1, count - start + 1)
        means = (sums[:, start + 1 :] - sums[:, start : start + 1]) / lengths
        least = np.minimum.accumulate(means[:, ::-1], axis=1)[:, ::-1]  # [b, end]: smallest mean to this end or later
        found[:, start:] = np.maximum(found[:, start:], least)
    return found


def at_equal_loss(
    heads: Mapping[str, Sequence[Tradeoff]], points: float, seed: int = 0, most: float = math.inf
) -> list[dict[str, Any]]:
    """One row per head: `value`, its gain at a loss of `points`, mean over its seeds; `reached`, whether all seeds lose
    that much at their largest θ; and, except for the first head, `difference` to the first with a verdict. Value and
    difference have intervals (`_low`, `_high`).

    A curve that ends before that loss gives a lower bound of its gain. So a head of which more than `TAIL` of the
    resamples end there has no upper end (None), nor has its difference; the difference to such a first head has no
    lower end. Resamples without anything to lose are left out.

    Args:
        heads: one trade-off per training seed, all over the same problems; seeds of two heads are paired in order.
        most: largest gain that there can be, 1 of shares; the least is 0.
    """
    first = next(iter(heads.values()))
    count = len(first[0].lost_of)
    weights = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), RESAMPLES).astype(np.float64)
    weights = weights[weights @ first[0].lost_of > 0]
    found = {name: _Curves(runs, points, weights) for name, runs in heads.items()}
    base = next(iter(found.values()))
    rows = []
    for name, here in found.items():
        row: dict[str, Any] = {"head": name, "seeds": len(here.whole), "problems": count, "points": points}
        row |= _columns("value", _open(_over_seeds(here.whole, here.drawn, 0.0, most, count), False, here.ends))
        row["reached"] = here.reached
        if here is not base:
            pairs = range(min(len(here.whole), len(base.whole)))
            differences = [here.whole[i] - base.whole[i] for i in pairs]
            gain = _over_seeds(differences, [here.drawn[i] - base.drawn[i] for i in pairs], -most, most, count)
            gain = _open(gain, base.ends, here.ends)
            row |= _columns("difference", gain) | {"verdict": compared(gain)}
        rows.append(row)
    return rows


class _Curves:
    """A head's gains at a loss, by training seed: of all problems, and of each resample.

    Attributes:
        reached: whether all seeds lose that much at their largest θ.
        ends: whether more than `TAIL` of the resamples do not.
    """

    def __init__(self, runs: Sequence[Tradeoff], points: float, weights: Reals) -> None:
        self.whole = [float(one.at_loss(points, one.whole)[0]) for one in runs]
        self.drawn = [one.at_loss(points, weights) for one in runs]
        self.reached = all(bool(one.reaches(points, one.whole)[0]) for one in runs)
        every = np.all([one.reaches(points, weights) for one in runs], axis=0)
        self.ends = not self.reached or float(np.mean(~every)) > TAIL


def _open(found: Interval, low: bool, high: bool) -> Interval:
    """The interval without its lower or upper end."""
    return Interval(found.value, -math.inf if low else found.low, math.inf if high else found.high)


def _over_seeds(values: Sequence[float], drawn: Sequence[Reals], least: float, most: float, problems: int) -> Interval:
    """Mean over seeds, with an interval over problems and seeds within what is possible; of one seed, over the problems
    alone, with Student's t below `FEW` of them.
    """
    mean, resampled = float(np.mean(values)), np.mean(drawn, axis=0)
    if len(values) == 1 and 1 < problems < FEW:
        half = student_t(problems - 1) * float(resampled.std()) * math.sqrt(problems / (problems - 1))
        return Interval(mean, max(mean - half, least), min(mean + half, most))
    if len(values) == 1:
        low, high = span(resampled).tolist()
        return Interval(mean, low, high)
    variance = float(resampled.var()) + float(np.var(values, ddof=1)) / len(values)
    half = student_t(len(values) - 1) * math.sqrt(variance)
    return Interval(mean, max(mean - half, least), min(mean + half, most))


def _columns(name: str, found: Interval) -> dict[str, float | None]:
    low, high = (end if math.isfinite(end) else None for end in (found.low, found.high))
    return {name: found.value, f"{name}_low": low, f"{name}_high": high}
