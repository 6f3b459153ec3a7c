"""What the loops maximise, by name.

Each objective is a sum over the UEs of a utility of the round time T = a + k/z. At a price λ per share of the radio,
the best share of a choice has a closed form.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from testbed.errors import BadInput
from testbed.optim.loops.rounds import Array, RoundTable

LATE_WORTH = 0.1
"""Worth of a token of a UE whose promise is broken, relative to one whose promise is kept."""
KEPT = 1 - 1e-9
"""Share of the promised speed from which on a promise counts as kept: less than 1 for rounding errors."""


@dataclass(frozen=True)
class Prices:
    """Prices of what a round takes beside time, in tokens.

    Raises:
        BadInput: a negative price.
    """

    joule: float = 0.0
    """Tokens that a joule is worth."""
    risk: float = 0.0
    """Tokens that a unit of risk is worth."""

    def __post_init__(self) -> None:
        if not (self.joule >= 0 and self.risk >= 0):
            raise BadInput("prices must be 0 or more")


class Objective(ABC):
    """A utility of each UE."""

    kind: ClassVar[str]
    about: ClassVar[str]
    promises: ClassVar[bool] = False
    """Whether a kept promise counts."""
    idles: ClassVar[bool] = False
    """Whether serving a UE may be worth less than what it takes of others."""

    @abstractmethod
    def gain(self, table: RoundTable, prices: Prices) -> Array:
        """What a round is worth, in the table's shape."""

    @abstractmethod
    def worth(self, gain: Array, time_s: Array) -> Array:
        """Utility of rounds of that gain and duration."""

    @abstractmethod
    def slope(self, gain: Array, time_s: Array) -> Array:
        """Utility that a second more per round costs."""

    @abstractmethod
    def share(self, gain: Array, fixed_s: Array, air_s: Array, price: float) -> Array:
        """Share z ≥ 0 that maximises the worth at a + k/z, minus `price` times z."""

    @abstractmethod
    def favoured(self, worth: Array, stay: float) -> Array:
        """Worth of the present choice, so much better that another one must gain the share `stay` of speed."""

    def worths(self, gain: Array, tokens: Array, time_s: Array, promise: Array) -> Array:
        """[n] terms of the objective: the worth; `LATE_WORTH` of it where promises count and the speed is below."""
        worth = self.worth(gain, time_s)
        if not self.promises:
            return worth
        return np.where(tokens >= KEPT * promise * time_s, worth, LATE_WORTH * worth)


class Goodput(Objective):
    """Σ (E − prices) / T: tokens per second; late ones count `LATE_WORTH`."""

    kind = "goodput"
    about = "tokens per second of UEs whose promised speed is kept"
    promises = idles = True

    def gain(self, table: RoundTable, prices: Prices) -> Array:
        """E minus the price of its energy and risk."""
        return table.tokens - prices.joule * table.joules - prices.risk * table.risk

    def worth(self, gain: Array, time_s: Array) -> Array:
        """See `Objective.worth`."""
        return gain / time_s

    def slope(self, gain: Array, time_s: Array) -> Array:
        """See `Objective.slope`."""
        return gain / time_s**2

    def share(self, gain: Array, fixed_s: Array, air_s: Array, price: float) -> Array:
        """Root of G·k / (a·z + k)² = λ."""
        wanted: Array = (np.sqrt(np.maximum(gain, 0.0) * air_s / price) - air_s) / fixed_s
        return np.maximum(wanted, 0.0)

    def favoured(self, worth: Array, stay: float) -> Array:
        """See `Objective.favoured`."""
        return worth + stay * np.abs(worth)


class Fairness(Objective):
    """Σ log(E/T) − prices per token: proportional fairness of token speed."""

    kind = "fair"
    about = "product of the UEs' token speeds (proportional fairness)"

    def gain(self, table: RoundTable, prices: Prices) -> Array:
        """log E minus the price of the energy and risk of a token."""
        priced = (prices.joule * table.joules + prices.risk * table.risk) / table.tokens
        found: Array = np.log(table.tokens) - priced
        return found

    def worth(self, gain: Array, time_s: Array) -> Array:
        """See `Objective.worth`."""
        found: Array = gain - np.log(time_s)
        return found

    def slope(self, gain: Array, time_s: Array) -> Array:
        """See `Objective.slope`."""
        return 1 / time_s

    def share(self, gain: Array, fixed_s: Array, air_s: Array, price: float) -> Array:
        """Root of k / (z·(a·z + k)) = λ, in the form without cancellation."""
        ratio = 4 * fixed_s / np.maximum(air_s * price, 1e-300)
        wanted: Array = 2 / price / (1 + np.sqrt(1 + ratio))
        return np.where(air_s > 0, wanted, 0.0)

    def favoured(self, worth: Array, stay: float) -> Array:
        """See `Objective.favoured`."""
        return worth + stay


OBJECTIVES: dict[str, Objective] = {one.kind: one for one in (Goodput(), Fairness())}


def objective(kind: str) -> Objective:
    """One of `OBJECTIVES`.

    Raises:
        BadInput: an unknown name.
    """
    if kind not in OBJECTIVES:
        raise BadInput(f"unknown objective {kind!r}; known: {', '.join(OBJECTIVES)}")
    return OBJECTIVES[kind]


def names() -> Sequence[str]:
    """Names of all objectives."""
    return tuple(OBJECTIVES)
