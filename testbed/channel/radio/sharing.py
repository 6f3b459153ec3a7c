"""Schedulers of a radio slot: how the UEs that have data divide the bandwidth.

Each gives shares of the bandwidth in [0, 1] that add up to 1 at most. No UE gets more than its data needs, and nothing
stays unused while a UE has data left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from testbed.registry import Registry

__all__ = ["RADIO_SCHEDULERS", "Demand", "RadioScheduler", "water_filling"]


class Demand(NamedTuple):
    """A UE with data in one direction, at the beginning of a slot."""

    need_bits: float
    """Bits that wait."""
    slot_bits: float
    """Bits that the slot carries if the UE has the whole bandwidth; positive."""
    average_bits: float = 1.0
    """Discounted average of the bits that it was given per slot."""
    mean_bits: float = 1.0
    """Discounted average of `slot_bits`, over the slots in which it had data."""
    weight: float = 1.0
    due_s: float = 0.0
    """Due time of its first message."""

    @property
    def most(self) -> float:
        """Share of the bandwidth that carries all its data, at most 1."""
        return min(1.0, self.need_bits / self.slot_bits)


SHARPNESS = 4.0
"""Exponent of the rate over its mean. 1, 2, 4 and 8 were compared in UMi street canyon at walking speed, with decided
weights: under full load 4 and 8 carry 2.4 % more tokens than 1, elsewhere all carry as many."""
MOST_FADE = 10.0
"""Largest ratio of a rate and its mean, either way, that counts there."""
Share = Callable[[Sequence[Demand]], list[float]]


def water_filling(weights: Sequence[float], most: Sequence[float]) -> list[float]:
    """Shares in proportion to `weights`, each limited to `most`; what the limits leave goes to the others.

    Args:
        weights: [n], positive.
        most: [n] limits in [0, 1].

    Returns:
        [n] shares; they add up to min(1, Σ most).
    """
    shares = [0.0] * len(weights)
    left, active = 1.0, list(range(len(weights)))
    while active:
        level = left / sum(weights[i] for i in active)
        full = [i for i in active if most[i] <= level * weights[i]]
        if not full:
            for i in active:
                shares[i] = level * weights[i]
            break
        for i in full:
            shares[i] = most[i]
            left = max(0.0, left - most[i])
        active = [i for i in active if i not in set(full)]
    return shares


def in_turn(demands: Sequence[Demand], order: Sequence[int]) -> list[float]:
    """Shares of UEs that are served completely, one after the other, in `order`."""
    shares, left = [0.0] * len(demands), 1.0
    for i in order:
        if left <= 0:
            break
        shares[i] = min(left, demands[i].most)
        left -= shares[i]
    return shares


def _equal(demands: Sequence[Demand]) -> list[float]:
    return water_filling([1.0] * len(demands), [demand.most for demand in demands])


def _weighted(demands: Sequence[Demand]) -> list[float]:
    return water_filling([demand.weight for demand in demands], [demand.most for demand in demands])


def _max_min(demands: Sequence[Demand]) -> list[float]:
    return water_filling([1 / demand.slot_bits for demand in demands], [demand.most for demand in demands])


def _proportional_fair(demands: Sequence[Demand]) -> list[float]:
    metric = [demand.slot_bits / demand.average_bits for demand in demands]
    return in_turn(demands, sorted(range(len(demands)), key=lambda i: -metric[i]))


def _opportunistic(demands: Sequence[Demand]) -> list[float]:
    found = [min(MOST_FADE, max(1 / MOST_FADE, demand.slot_bits / demand.mean_bits)) for demand in demands]
    weights = [demand.weight * fade**SHARPNESS for demand, fade in zip(demands, found, strict=True)]
    return water_filling(weights, [demand.most for demand in demands])


def _earliest_deadline(demands: Sequence[Demand]) -> list[float]:
    return in_turn(demands, sorted(range(len(demands)), key=lambda i: demands[i].due_s))


@dataclass(frozen=True)
class RadioScheduler:
    """A scheduler of radio slots."""

    kind: str
    about: str
    share: Share
    """Takes the demands of a slot; returns the share of each."""
    deadlines: bool = False
    """Whether it reads `Demand.due_s`."""
    weighted: bool = False
    """Whether it reads `Demand.weight`."""


RADIO_SCHEDULERS: Registry[RadioScheduler] = Registry(
    "radio scheduler",
    "testbed.radio_schedulers",
    RadioScheduler("round-robin", "equal shares of the bandwidth", _equal),
    RadioScheduler("proportional-fair", "the largest ratio of rate to average throughput", _proportional_fair),
    RadioScheduler("max-min", "equal throughput", _max_min),
    RadioScheduler("weights", "shares in proportion to fixed weights (edge-SD, eq. 27)", _weighted, weighted=True),
    RadioScheduler(
        "opportunistic",
        "shares in proportion to fixed weights and to the fourth power of the rate over its mean",
        _opportunistic,
        weighted=True,
    ),
    RadioScheduler(
        "joint",
        "shares as `opportunistic`, with the weights that the cell's `control` decides",
        _opportunistic,
        weighted=True,
    ),
    RadioScheduler("edf", "the UE whose message is due first", _earliest_deadline, deadlines=True),
    of=RadioScheduler,
)
