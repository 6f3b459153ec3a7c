"""Link adaptation: reported SINRs choose the MCS, true SINRs decide what is lost, and an outer loop corrects."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from testbed.channel.radio.air import AirState
from testbed.channel.radio.bler import MOST_CODE_BLOCK_BITS, BlerTable, nr_tables
from testbed.options import Config, option

T = TypeVar("T")

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
        self._values, self._step_s = array("f", sinr_db.astype(np.float32).tobytes()), step_s
        self._count = len(self._values)

    def at(self, t_s: float) -> float:
        """SINR in dB at a time of at least 0."""
        return self._values[int(t_s / self._step_s + 1e-6) % self._count]


Ways = tuple[SinrSeries, SinrSeries]
"""Uplink and downlink of a UE."""


class LazySeries(dict[int, T]):
    """Series by number of the UE, each computed when it is first used.

    Args:
        make: computes those of a UE.
    """

    def __init__(self, make: Callable[[int], T]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, ue: int) -> T:
        """Compute the series of a UE."""
        self[ue] = found = self._make(ue)
        return found


class _Choice(NamedTuple):
    """MCS that link adaptation chose."""

    report_s: float
    """Time of the report."""
    offset_db: float
    """Offset of the outer loop."""
    mcs: int | None
    """None: no MCS can be received."""
    efficiency: float
    """Spectral efficiency [bit/s/Hz]."""


class AdaptedAir:
    """Implements `Air`: MCSs that link adaptation chooses.

    The MCS is the highest whose BLER at the reported SINR minus the outer loop's offset is at most the target. A lost
    block raises the offset by `outer_db`, a good one lowers it by `outer_db` · target / (1 − target), so that the
    long-run BLER is the target.

    Args:
        series: uplink and downlink of each UE.
        bler: block error rate in addition, in [0, 1).
    """

    def __init__(self, adaptation: Adaptation, series: Sequence[Ways] | LazySeries[Ways], bler: float = 0.0) -> None:
        self._adaptation, self._series, self._more = adaptation, series, bler
        self._offset_db = defaultdict[int, dict[bool, float]](lambda: {True: 0.0, False: 0.0})
        self._tables, self._choices = nr_tables(), dict[tuple[int, bool], _Choice]()
        self._step_db, self._now_s, self._report_s = adaptation.step_db, math.nan, math.nan

    def sinr_db(self, ue: int, up: bool, t_s: float) -> float:
        """True SINR."""
        return self._series[ue][not up].at(t_s)

    def reported_db(self, ue: int, up: bool, t_s: float) -> float:
        """SINR as the scheduler knows it."""
        value, step_db = self._series[ue][not up].at(self._measured_s(t_s)), self._step_db
        return math.floor(value / step_db) * step_db if step_db else value

    def _measured_s(self, t_s: float) -> float:
        """Time at which the reports in use were measured; remembered, since all UEs of a slot need it."""
        if t_s != self._now_s:
            known, self._now_s, self._report_s = self._adaptation, t_s, t_s
            if known.report_ms:
                period_s = known.report_ms / 1e3
                self._report_s = max(0.0, math.floor((t_s - known.delay_ms / 1e3) / period_s + 1e-9) * period_s)
        return self._report_s

    def efficiency(self, ue: int, up: bool, t_s: float) -> float:
        """See `Air.efficiency`."""
        return self._choice(ue, up, t_s).efficiency

    def state(self, ue: int, up: bool, t_s: float) -> AirState:
        """See `Air.state`."""
        choice = self._choice(ue, up, t_s)
        return (
            OUT_OF_RANGE if choice.mcs is None else self._sent(self._tables[up], choice.mcs, self.sinr_db(ue, up, t_s))
        )

    def ideal(self, ue: int, up: bool, t_s: float) -> AirState:
        """See `Air.ideal`."""
        table, sinr_db = self._tables[up], self.sinr_db(ue, up, t_s)
        mcs = self._best(table, sinr_db, sinr_db)
        return OUT_OF_RANGE if mcs is None else self._sent(table, mcs, sinr_db)

    def _choice(self, ue: int, up: bool, t_s: float) -> _Choice:
        """The MCS in use; remembered until the report or the offset changes."""
        report_s, offset_db = self._measured_s(t_s), self._offset_db[ue][up]
        found = self._choices.get((ue, up))
        if found is None or found.report_s != report_s or found.offset_db != offset_db:
            table, reported_db = self._tables[up], self.reported_db(ue, up, t_s)
            mcs = self._best(table, reported_db, reported_db - offset_db)
            efficiency = 0.0 if mcs is None else self._efficiency(table, mcs)
            found = self._choices[ue, up] = _Choice(report_s, offset_db, mcs, efficiency)
        return found

    def _best(self, table: BlerTable, reported_db: float, assumed_db: float) -> int | None:
        """MCS for an assumed SINR; None: the reported one is out of range."""
        return None if reported_db < table.least_db else table.choose(assumed_db, self._adaptation.bler_target)

    def _efficiency(self, table: BlerTable, mcs: int) -> float:
        return table.bits_per_symbol[mcs] * (1 - self._adaptation.overhead)

    def _sent(self, table: BlerTable, mcs: int, sinr_db: float) -> AirState:
        bler = 1 - (1 - table.bler(mcs, sinr_db)) * (1 - self._more)
        return AirState(self._efficiency(table, mcs), bler, MOST_CODE_BLOCK_BITS)

    def learn(self, ue: int, up: bool, lost: bool) -> None:
        """See `Air.learn`."""
        target, step_db = self._adaptation.bler_target, self._adaptation.outer_db
        change_db = step_db if lost else -step_db * target / (1 - target)
        offsets = self._offset_db[ue]
        offsets[up] = min(MOST_OFFSET_DB, max(-MOST_OFFSET_DB, offsets[up] + change_db))
