"""Handover between cells by measurement: event A3 of 3GPP TS 38.331, section 5.5.4.4.

A UE measures the received power (RSRP) of its own cell and of all others. Once another one is better by an offset,
after layer-3 filtering and for the time to trigger, it is handed over to that cell.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from testbed.channel.trace import Array
from testbed.options import Config, option

TOLERANCE_S = 1e-9


class Handover(Config, frozen=True):
    """When UEs are handed over, and how long that takes; names as in 3GPP TS 38.331."""

    a3_offset_db: Annotated[float, option("Offset of event A3.", least=-15, most=15, unit="dB")] = 3.0
    hysteresis_db: Annotated[float, option("Hysteresis of event A3.", least=0, most=15, unit="dB")] = 1.0
    time_to_trigger_ms: Annotated[
        float, option("Time for which the entering condition must hold.", least=0, most=5120, unit="ms")
    ] = 160.0
    filter_coefficient: Annotated[
        float, option("k of the layer-3 filter, whose weight of a new measurement is 1/2^(k/4).", least=0, most=19)
    ] = 4.0
    measure_ms: Annotated[float, option("Time between two measurements.", least=1, most=1e4, unit="ms")] = 40.0
    interruption_ms: Annotated[
        float, option("Time in which a UE that changes cells neither sends nor receives.", least=0, most=1e4, unit="ms")
    ] = 50.0
    t310_ms: Annotated[
        float,
        option("Time until a UE whose base station fails declares radio link failure.", least=0, most=6e4, unit="ms"),
    ] = 1000.0

    @property
    def measure_s(self) -> float:
        """Time between two measurements in seconds."""
        return self.measure_ms / 1e3


class A3Events:
    """Events A3 of UEs, by measurements that all of them take at the same times.

    A cell's entering condition (A3-1) is Mn − Hys > Mp + Off, with the filtered measurements Mn of the neighbour and Mp
    of the UE's own cell; offsets of frequencies and cells are 0. Several cells that trigger at once: the strongest.
    """

    def __init__(self, config: Handover, ues: int, cells: int) -> None:
        self._config, self._new = config, 0.5 ** (config.filter_coefficient / 4)
        self.filtered_dbm: Array = np.full((ues, cells), -math.inf)
        """[ues, cells] measurements after layer-3 filtering; −∞: not received."""
        self._since_s: Array = np.full((ues, cells), math.nan)

    def measure(
        self, now_s: float, rsrp_dbm: Array, serving: NDArray[np.int_], ues: NDArray[np.int_] | None = None
    ) -> dict[int, int]:
        """Take a measurement of all cells.

        Args:
            rsrp_dbm: [n, cells] received powers; −∞: not received.
            serving: [n] number of each UE's cell; −1: it has none, and triggers nothing.
            ues: [n] UEs that measure. Default: all.

        Returns:
            The UEs for which an event triggers, and the cell of each.
        """
        who = np.arange(len(self.filtered_dbm)) if ues is None else ues
        before, rows = self.filtered_dbm[who], np.arange(len(serving))
        known = np.isfinite(before) & np.isfinite(rsrp_dbm)
        mixed = (1 - self._new) * np.where(known, before, 0.0) + self._new * np.where(known, rsrp_dbm, 0.0)
        filtered = self.filtered_dbm[who] = np.where(known, mixed, rsrp_dbm)
        own = filtered[rows, serving][:, None]
        entering = filtered - self._config.hysteresis_db > own + self._config.a3_offset_db
        entering[rows, serving] = False
        entering[serving < 0] = False
        since_s = self._since_s[who]
        since_s = self._since_s[who] = np.where(entering, np.where(np.isnan(since_s), now_s, since_s), math.nan)
        least_s = self._config.time_to_trigger_ms / 1e3 - TOLERANCE_S
        triggered = entering & (now_s - np.nan_to_num(since_s, nan=math.inf) >= least_s)
        best = np.where(triggered, filtered, -math.inf).argmax(axis=1)
        return {int(who[row]): int(best[row]) for row in np.flatnonzero(triggered.any(axis=1))}

    def of(self, ue: int) -> tuple[Array, Array]:
        """What is known of a UE: its filtered measurements, and since when conditions hold."""
        return self.filtered_dbm[ue].copy(), self._since_s[ue].copy()

    def restore(self, ue: int, filtered_dbm: Array, since_s: Array) -> None:
        """Go on with a UE from what `of` returned elsewhere."""
        self.filtered_dbm[ue], self._since_s[ue] = filtered_dbm, since_s

    def strongest(self, ue: int) -> int | None:
        """The cell that a UE receives best; None: it receives none."""
        best = int(self.filtered_dbm[ue].argmax())
        return best if math.isfinite(self.filtered_dbm[ue, best]) else None

    def moved(self, ue: int) -> None:
        """Forget how long conditions of a UE have held: it has another cell."""
        self._since_s[ue] = math.nan
