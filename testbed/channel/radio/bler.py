"""Block error rates over SINR, by Sionna's link-level simulations of 5G NR with MCS table 1 of 3GPP TS 38.214."""

from __future__ import annotations

import functools
from importlib import resources

import numpy as np
from numpy.typing import NDArray

MOST_CODE_BLOCK_BITS = 8448
"""Longest code block of LDPC base graph 1 (3GPP TS 38.212)."""


class BlerTable:
    """BLER of code blocks in AWGN, for each MCS that was simulated.

    Computed by `scripts/radio_tables.py` with Sionna 2.2.0 (Apache-2.0) for blocks of 2,000 bits, the longest that it
    simulated; it uses the same curves for longer ones. SINRs outside the simulated range count as its ends: below,
    every block is lost.

    Args:
        sinr_db: [n] equally spaced SINRs.
        bler: [m, n] BLER of each MCS.
        bits_per_symbol: [m] information bits per symbol, ascending.
    """

    def __init__(
        self, sinr_db: NDArray[np.floating], bler: NDArray[np.floating], bits_per_symbol: NDArray[np.floating]
    ) -> None:
        self.least_db, self._step_db = float(sinr_db[0]), float(sinr_db[1] - sinr_db[0])
        self._bler: list[list[float]] = np.clip(bler, 0, 1).astype(float).tolist()
        self._last, self._most_db = sinr_db.size - 1, float(sinr_db[-1])
        self._choices = functools.cache(self.choices)
        self.bits_per_symbol: list[float] = bits_per_symbol.tolist()

    def choices(self, target: float) -> list[int]:
        """[n] highest MCS with a BLER of `target` at most, for each SINR; the lowest MCS if none has."""
        chosen = []
        for at in range(self._last + 1):
            fit = [mcs for mcs, rates in enumerate(self._bler) if rates[at] <= target]
            chosen.append(max(fit, default=0))
        return chosen

    def choose(self, sinr_db: float, target: float) -> int:
        """MCS (row of the table) for an SINR: the highest whose BLER is at most `target`."""
        return self._choices(target)[self._index(sinr_db)]

    def bler(self, mcs: int, sinr_db: float) -> float:
        """BLER of a code block; 1 below the simulated range."""
        return self._bler[mcs][self._index(sinr_db)] if sinr_db >= self.least_db - self._step_db / 2 else 1.0

    def _index(self, sinr_db: float) -> int:
        if not sinr_db > self.least_db:  # or nan
            return 0
        if sinr_db >= self._most_db:
            return self._last
        return round((sinr_db - self.least_db) / self._step_db)


@functools.cache
def nr_tables() -> dict[bool, BlerTable]:
    """The tables of the uplink (True; PUSCH) and the downlink (False; PDSCH)."""
    with resources.files(__package__).joinpath("bler.npz").open("rb") as file, np.load(file) as found:
        return {
            up: BlerTable(found["sinr_db"], found[f"{name}_bler"], found[f"{name}_bits_per_symbol"])
            for up, name in ((True, "uplink"), (False, "downlink"))
        }
