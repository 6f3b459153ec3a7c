"""Interference between cells: the bandwidth that they used in the window of time before, and its mean power.

A cell that used a share of its downlink's bandwidth in a window sends with this share of its power, on average, and a
UE likewise on the uplink. What was used in one window interferes in the next, so that cells depend on each other only
from window to window, in whatever order their slots are computed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from testbed.channel.radio.config import PATTERNS, RadioConfig
from testbed.channel.trace import Array

PERIOD = math.lcm(*(len(pattern) or 1 for pattern in PATTERNS.values()))
"""Slots after which all duplex patterns repeat."""


T = TypeVar("T")


class RecentWindows(dict[int, T]):
    """Values by window of time, of which old ones are dropped.

    Args:
        kept: how many windows before the newest one are kept.
        make: makes the value of a window that has none.
    """

    def __init__(self, kept: float, make: Callable[[], T]) -> None:
        super().__init__()
        self._kept, self._make, self._newest = kept, make, -1

    def __missing__(self, window: int) -> T:
        """Make the value of a window, and drop what is older than windows that are kept."""
        self[window] = made = self._make()
        self._newest = max(self._newest, window)
        while (oldest := next(iter(self), window)) < self._newest - self._kept:
            del self[oldest]
        return made


class Loads:
    """Use of the bandwidth of several cells by windows of time.

    Args:
        window_slots: slots of a window.
        cells: number of cells.
        age_s: how long ago the times were at most for which anything is asked; inf: any time.
    """

    def __init__(self, radio: RadioConfig, window_slots: int, cells: int, age_s: float = math.inf) -> None:
        self._radio, self._slots, self._cells = radio, window_slots, cells
        self.kept = age_s / (window_slots * radio.slot_s) + 3
        """Windows before the newest one that are kept: one is asked for in the window that follows it."""
        self._down = RecentWindows[Array](self.kept, lambda: np.zeros(cells))
        self._carriers: dict[tuple[bool, int], int] = {}
        self._up = RecentWindows[dict[tuple[int, int], float]](self.kept, lambda: defaultdict(float))

    def window(self, t_s: float) -> int:
        """The window of a time since the first slot."""
        return int(t_s / self._radio.slot_s + 1e-6) // self._slots

    def begin_s(self, window: int) -> float:
        """Time of the first slot of a window."""
        return window * self._slots * self._radio.slot_s

    def count(self, cell: int, slot: int, ue: int, up: bool, share: float) -> None:
        """Count the share of the bandwidth that a UE had in a slot of a cell."""
        window = slot // self._slots
        if up:
            self._up[window][cell, ue] += share
        else:
            self._down[window][cell] += share

    def own(self, window: int) -> dict[int, float]:
        """Sums of the shares of the downlink that were counted in a window, by cell."""
        used = self._down.get(window)
        return {} if used is None else {int(cell): float(used[cell]) for cell in used.nonzero()[0]}

    def take(self, window: int, used: dict[int, float]) -> None:
        """Take such sums of other cells, that were counted elsewhere."""
        for cell, share in used.items():
            self._down[window][cell] = share

    def downlink(self, window: int) -> Array:
        """[cells] share of the bandwidth of the downlink that each cell used in a window."""
        return self._down.get(window, np.zeros(self._cells)) / self._carrying(False, window)

    def uplink(self, window: int) -> dict[tuple[int, int], float]:
        """The same of each UE that sent, by its cell and its number."""
        slots = self._carrying(True, window)
        return {key: used / slots for key, used in self._up.get(window, {}).items()}

    def _carrying(self, up: bool, window: int) -> int:
        """Slots of a window that carry a direction; at least one."""
        key = up, window * self._slots % PERIOD
        if key not in self._carriers:
            slots = range(window * self._slots, (window + 1) * self._slots)
            self._carriers[key] = max(1, sum(self._radio.carries(up, slot) for slot in slots))
        return self._carriers[key]
