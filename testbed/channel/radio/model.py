"""Built-in model of UEs' channels: path loss, correlated shadowing, Clarke fading, mobility, interference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np

from testbed.channel.radio.adaptation import Adaptation, AdaptedAir, LazySeries, SinrSeries
from testbed.channel.radio.cell import Mobility
from testbed.channel.radio.fading import PathLoss, Shadowing, SmallScale
from testbed.channel.trace import Array
from testbed.errors import BadInput
from testbed.options import Config, option

NOISE_DBM_HZ = -174.0
"""Thermal noise at 290 K."""
NEIGHBOURS = 6
STEPS_PER_COHERENCE = 8
LONGEST_STEP_S = 0.05
MOST_STEPS = 200_000
LEAST_SNR = 1e-30
PLACES = 2000
"""Places over which the interference of a neighbouring cell's UE is averaged."""


class RadioUe(NamedTuple):
    """A UE as its channel needs it."""

    group: int
    distance_m: tuple[float, float] = (10.0, 200.0)
    """Least and most distance from the BS: its place is uniform over the ring."""
    speed_mps: float = 0.0
    """It moves to the ring's far edge and back to its place, along the line to the BS."""


class Spectrum(NamedTuple):
    """A cell as its UEs' channels need it."""

    bandwidth_hz: float
    slot_s: float
    tdd: bool
    """Whether both directions have the same fading."""
    bler: float = 0.0
    """Block error rate in addition to that of the SINR."""


class ModelSource(Config, frozen=True, tag="model", tag_field="kind"):
    """Channels from positions. The defaults of path loss and shadowing are those of UMi street canyon without line of
    sight at 3.5 GHz (3GPP TR 38.901, Table 7.4.1-1, with its distance in three dimensions taken as horizontal).

    SINRs are those of the whole bandwidth: transmit power is spread over all of it, also if a UE gets a part. Fading is
    flat over the bandwidth. Each of the six neighbouring cells is active for the share `load` of the time, which counts
    as interference of that mean power, without fading; their UEs are uniform over their cells and use full power.
    """

    carrier_hz: Annotated[float, option("Carrier frequency.", least=1e8, most=1e11, unit="Hz")] = 3.5e9
    uplink_dbm: Annotated[float, option("Transmit power of a UE.", least=-40, most=60, unit="dBm")] = 23.0
    downlink_dbm: Annotated[float, option("Transmit power of the BS.", least=-40, most=80, unit="dBm")] = 43.0
    noise_figure_db: Annotated[tuple[float, float], option("Noise figures of BS and UE.", unit="dB")] = (5.0, 9.0)
    gain_1m_db: Annotated[float, option("Path gain at 1 m.", least=-150, most=0, unit="dB")] = -34.0
    exponent: Annotated[float, option("Path loss exponent.", above=0, most=10)] = 3.53
    shadowing_db: Annotated[float, option("Standard deviation of shadowing.", least=0, most=30, unit="dB")] = 7.8
    decorrelation_m: Annotated[float, option("Decorrelation distance of shadowing.", above=0, most=1e5, unit="m")] = (
        13.0
    )
    fading: Literal["none", "rayleigh", "rician"] = "rayleigh"
    k_db: Annotated[float, option("Rician K-factor.", least=-100, most=100, unit="dB")] = 9.0
    neighbour_m: Annotated[float, option("Distance to the six neighbouring cells.", above=0, most=1e6, unit="m")] = (
        500.0
    )
    load: Annotated[float, option("Load of the neighbouring cells; 0: no interference.", least=0, most=1)] = 0.0
    adaptation: Adaptation = Adaptation()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(0 <= figure <= 50 for figure in self.noise_figure_db):
            raise BadInput("noise figures lie in [0, 50] dB")

    def air(self, ues: Sequence[RadioUe], cell: Spectrum, seconds: float, seed: int) -> AdaptedAir:
        """The channels of UEs during `seconds`, after which they repeat.

        Raises:
            BadInput: distances out of order or not positive.
        """
        for least_m, most_m in {ue.distance_m for ue in ues}:
            if not 0 < least_m <= most_m < math.inf:
                raise BadInput(f"distances need [least, most] with 0 < least <= most, not [{least_m:g}, {most_m:g}] m")
        series = LazySeries(lambda n: self._series(ues[n], np.random.default_rng([seed, n]), cell, seconds))
        return AdaptedAir(self.adaptation, series, cell.bler)

    def _series(
        self, ue: RadioUe, rng: np.random.Generator, cell: Spectrum, seconds: float
    ) -> tuple[SinrSeries, SinrSeries]:
        fading = SmallScale(kind=self.fading, k_db=self.k_db, carrier_hz=self.carrier_hz)
        step_s = min(LONGEST_STEP_S, fading.coherence_at(ue.speed_mps) / STEPS_PER_COHERENCE)
        step_s = max(cell.slot_s, seconds / MOST_STEPS, step_s)
        n, angle = max(1, math.ceil(seconds / step_s)), rng.uniform(0, 2 * math.pi)
        distance_m = _mobility(ue, rng).distances(np.arange(n, dtype=np.float64) * step_s)
        moved_m = np.abs(np.diff(distance_m, prepend=distance_m[0]))
        loss = PathLoss(10 ** (self.gain_1m_db / 10), self.exponent)
        gain = loss.gains(distance_m) * Shadowing(self.shadowing_db, self.decorrelation_m).gains(rng, moved_m)
        up = fading.powers(rng, n, step_s, ue.speed_mps).mean(axis=1)
        down = up if cell.tdd else fading.powers(rng, n, step_s, ue.speed_mps).mean(axis=1)
        floors = [watts(NOISE_DBM_HZ + figure) * cell.bandwidth_hz for figure in self.noise_figure_db]
        from_ues, from_cells = self._from_ues(loss, ue.distance_m[0]), self._from_cells(loss, distance_m, angle)
        snrs = (
            watts(self.uplink_dbm) * gain * up / (floors[0] + self.load * from_ues),
            watts(self.downlink_dbm) * gain * down / (floors[1] + self.load * from_cells),
        )
        first, second = (SinrSeries(10 * np.log10(np.maximum(snr, LEAST_SNR)), step_s) for snr in snrs)
        return first, second

    def _from_cells(self, loss: PathLoss, distance_m: Array, angle: float) -> Array:
        """[n] power [W] that a UE receives from the neighbouring cells."""
        place = distance_m * np.exp(1j * angle)
        cells = self.neighbour_m * np.exp(2j * math.pi * np.arange(NEIGHBOURS) / NEIGHBOURS)
        away_m = np.maximum(1.0, np.abs(place[:, None] - cells))
        total: Array = watts(self.downlink_dbm) * loss.gains(away_m).sum(axis=1)
        return total

    def _from_ues(self, loss: PathLoss, least_m: float) -> float:
        """Mean power [W] that the BS receives from one UE in each neighbouring cell."""
        rng, edge_m = np.random.default_rng(0), self.neighbour_m / math.sqrt(3)
        least_m = min(least_m, edge_m)
        metres = np.sqrt(rng.uniform(least_m**2, edge_m**2, PLACES))
        places = self.neighbour_m + metres * np.exp(2j * math.pi * rng.uniform(size=PLACES))
        gains = loss.gains(np.maximum(1.0, np.abs(places)))
        return NEIGHBOURS * watts(self.uplink_dbm) * float(gains.mean())


def _mobility(ue: RadioUe, rng: np.random.Generator) -> Mobility:
    least_m, most_m = ue.distance_m
    start_m = math.sqrt(rng.uniform(least_m**2, most_m**2))
    return Mobility(start_m, ue.speed_mps if start_m < most_m else 0.0, most_m)


def watts(dbm: float) -> float:
    """A power in W."""
    return float(10 ** (dbm / 10 - 3))
