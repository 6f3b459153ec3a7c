"""Link adaptation: reported SINRs choose the MCS, true SINRs decide what is lost, and an outer loop corrects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from testbed.channel.radio.air import AirState
from testbed.channel.radio.bler import MOST_CODE_BLOCK_BITS, nr_tables
from testbed.options import Config, option

MOST_OFFSET_DB = 20.0
"""Limit of the outer loop's correction."""
OUT_OF_RANGE = AirState(0.0, 1.0)
"""State of a UE whose report says that no MCS can be received (CQI 0)."""


class Adaptation(Config, frozen=True):
    """Link adaptation of a cell."""

    bler_target: Annotated[float, option("Block error rate that the outer loop aims at.", least=1e-4, most=0.9)] = 0.1
    outer_db: Annotated[
        float, option("Step of the outer loop after a lost block; 0: no outer loop.", least=0, most=10, unit="dB")
    ] = 0.5
    report_ms: Annotated[
        float, option("Period of SINR reports; 0: the SINR of the slot is known.", least=0, most=1e5, unit="ms")
    ] = 10.0
    delay_ms: Annotated[float, option("Age of a report when it is first used.", least=0, most=1e5, unit="ms")] = 4.0
    step_db: Annotated[float, option("Quantisation of reports; 0: none.", least=0, most=20, unit="dB")] = 2.0
    overhead: Annotated[
        float, option("Share of symbols for control and reference signals (3GPP TS 38.306).", least=0, below=1)
    ] = 0.14


class SinrSeries:
    """SINR of one direction of one UE over time; it repeats at its end.

    Args:
        sinr_db: [n] one value per step.
        step_s: duration of a step.
    """

    def __init__(self, sinr_db: NDArray[np.floating], step_s: float) -> None:
        self._values, self._step_s = sinr_db.astype(np.float32), step_s

    def at(self, t_s: float) -> float:
        """SINR in dB at a time of at least 0."""
        return float(self._values[int(t_s / self._step_s + 1e-6) % self._values.size])


class AdaptedAir:
    """Implements `Air`: MCSs that link adaptation chooses.

    The MCS is the highest whose BLER at the reported SINR minus the outer loop's offset is at most the target. A lost
    block raises the offset by `outer_db`, a good one lowers it by `outer_db` · target / (1 − target), so that the
    long-run BLER is the target.

    Args:
        series: [n] uplink and downlink of each UE.
        bler: block error rate in addition, in [0, 1).
    """

    def __init__(
        self, adaptation: Adaptation, series: Sequence[tuple[SinrSeries, SinrSeries]], bler: float = 0.0
    ) -> None:
        self._adaptation, self._series, self._more = adaptation, series, bler
        self._offset_db = [{True: 0.0, False: 0.0} for _ in series]
        self._tables = nr_tables()

    def sinr_db(self, ue: int, up: bool, t_s: float) -> float:
        """True SINR."""
        return self._series[ue][not up].at(t_s)

    def reported_db(self, ue: int, up: bool, t_s: float) -> float:
        """SINR as the scheduler knows it."""
        known = self._adaptation
        if known.report_ms:
            period_s = known.report_ms / 1e3
            t_s = max(0.0, math.floor((t_s - known.delay_ms / 1e3) / period_s + 1e-9) * period_s)
        value = self.sinr_db(ue, up, t_s)
        return math.floor(value / known.step_db) * known.step_db if known.step_db else value

    def state(self, ue: int, up: bool, t_s: float) -> AirState:
        """See `Air.state`."""
        table, reported_db = self._tables[up], self.reported_db(ue, up, t_s)
        if reported_db < table.least_db:
            return OUT_OF_RANGE
        mcs = table.choose(reported_db - self._offset_db[ue][up], self._adaptation.bler_target)
        efficiency = table.bits_per_symbol[mcs] * (1 - self._adaptation.overhead)
        bler = 1 - (1 - table.bler(mcs, self.sinr_db(ue, up, t_s))) * (1 - self._more)
        return AirState(efficiency, bler, MOST_CODE_BLOCK_BITS)

    def learn(self, ue: int, up: bool, lost: bool) -> None:
        """See `Air.learn`."""
        target, step_db = self._adaptation.bler_target, self._adaptation.outer_db
        change_db = step_db if lost else -step_db * target / (1 - target)
        offsets = self._offset_db[ue]
        offsets[up] = min(MOST_OFFSET_DB, max(-MOST_OFFSET_DB, offsets[up] + change_db))
