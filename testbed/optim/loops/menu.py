"""The choices of a cell's UEs that the joint decision weighs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from testbed.optim.loops.rounds import Array, IntArray, RoundTable

Bools = npt.NDArray[np.bool_]


class Menu(NamedTuple):
    """MenuAtPass to weigh, [n, r]: all, or the best few of each UE."""

    table: RoundTable
    gain: Array
    columns: IntArray
    """Columns in the table of all choices."""
    allowed: Bools
    present: Bools
    """Which one a UE has until now."""

    def best(self, values: Array, count: int) -> Menu:
        """The `count` choices of each UE with the highest values, [n, r]."""
        if values.shape[1] <= count:
            return self
        at = np.argpartition(-values, count, axis=1)[:, :count]

        def taken(part: npt.NDArray[Any]) -> Any:
            return np.take_along_axis(part, at, axis=1)

        return Menu(RoundTable(*map(taken, self.table)), *map(taken, self[1:]))


class MenuAtPass(NamedTuple):
    """A menu at one mean pass, [n, r'] with r' = r, or 2·r where promises count: kept, then broken."""

    gain: Array
    fixed_s: Array
    air_s: Array
    lower: Array
    fits: Bools
    extra: Array
    """Price of the verifier's time."""
    present: Bools
    shares: Array | None
    """Where radio weights are given."""
