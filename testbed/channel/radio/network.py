"""Channels between the UEs and several cells: places, received powers, and SINRs.

Parameters are those of `ModelSource`; interference comes from what the cells use (`Loads`), not from its `load`. The
gain of a UE and a cell is path loss, antenna and shadowing, independent between places of base stations; small-scale
fading belongs to the UE, and acts on its serving cell alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.channel.radio.adaptation import AdaptedAir, LazySeries, SinrSeries
from testbed.channel.radio.cell import Mobility
from testbed.channel.radio.fading import PathLoss, Shadowing, SmallScale
from testbed.channel.radio.loads import Loads, RecentWindows
from testbed.channel.radio.model import (
    LEAST_SNR,
    LONGEST_STEP_S,
    MOST_STEPS,
    NOISE_DBM_HZ,
    STEPS_PER_COHERENCE,
    ModelSource,
    Spectrum,
    watts,
)
from testbed.channel.trace import Array
from testbed.errors import BadInput

PLACE_STEP_S, STEP_M = 0.1, 0.5
"""Longest step of places, in time and in distance."""
LEAST_GAIN = 1e-30
MOST_GAINS = 2**28
"""Most gains of a network: 1 GiB, if all UEs move; beside them a UE's computation holds arrays of one step each."""
NEAREST_M = 1.0
"""Least distance between a UE and a base station."""
FARTHEST_M = 1e7
"""Largest coordinate of a place."""


BEAM_DEG, BACK_DB, GAIN_DBI = 65.0, 30.0, 8.0
"""Beamwidth, front-to-back ratio and gain of a sector's antenna (3GPP TR 38.901, Table 7.3-1, horizontal cut)."""


class CellPlace(NamedTuple):
    """Place and antenna of a cell."""

    at: complex
    """x + iy [m]"""
    azimuth_deg: float | None = None
    """Boresight of a sector, counterclockwise from x; None: an omnidirectional antenna of 0 dBi."""

    def antenna(self, towards_deg: Array) -> Array | float:
        """[n] linear gains in directions [n], or one gain in all of them."""
        if self.azimuth_deg is None:
            return 1.0
        off_deg = (towards_deg - self.azimuth_deg + 180) % 360 - 180
        gains: Array = 10 ** ((GAIN_DBI - np.minimum(12 * (off_deg / BEAM_DEG) ** 2, BACK_DB)) / 10)
        return gains


class NetworkUe(NamedTuple):
    """A UE of a network as its channels need it."""

    distance_m: tuple[float, float] = (10.0, 200.0)
    """Without a path: its place is uniform over this ring around a base station, one after the other. With a speed it
    moves away from it to the ring's far edge, and back."""
    speed_mps: float = 0.0
    path_m: tuple[tuple[float, float], ...] = ()
    """Points between which it moves along straight lines, to the last and back."""
    start: float = 0.0
    """Share of the path at which it starts."""


def places(ue: NetworkUe, home: complex, rng: np.random.Generator, t_s: Array) -> NDArray[np.complex128]:
    """[n] places [m] at times [n], x + iy.

    Raises:
        BadInput: distances out of order or not positive, or a path without length or beyond `FARTHEST_M`.
    """
    if not ue.path_m:
        least_m, most_m = ue.distance_m
        if not 0 < least_m <= most_m < math.inf:
            raise BadInput(f"distances need [least, most] with 0 < least <= most, not [{least_m:g}, {most_m:g}] m")
        start_m, angle = math.sqrt(rng.uniform(least_m**2, most_m**2)), rng.uniform(0, 2 * math.pi)
        away = Mobility(start_m, ue.speed_mps if start_m < most_m else 0.0, most_m).distances(t_s)
        return np.asarray(home + away * np.exp(1j * angle), np.complex128)
    if not all(abs(metres) <= FARTHEST_M for point in ue.path_m for metres in point):
        raise BadInput(f"the points of a path lie within {FARTHEST_M:g} m")
    points = np.array([complex(x, y) for x, y in ue.path_m])
    gone_m = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(points)))])
    length_m = float(gone_m[-1])
    if not length_m > 0:
        raise BadInput("a path needs two points at different places")
    along = (ue.start * length_m + ue.speed_mps * t_s) % (2 * length_m)
    along = np.minimum(along, 2 * length_m - along)
    return np.asarray(np.interp(along, gone_m, points.real) + 1j * np.interp(along, gone_m, points.imag))


class Used(NamedTuple):
    """What some of the cells used in a window of time."""

    window: int
    downlink: dict[int, float]
    """Sums of the shares of the bandwidth, by cell."""
    uplink: dict[int, Array]
    """[cells] share of the bandwidth times gain to each cell, summed over the UEs of one cell, by this one."""


class NetworkChannels:
    """Gains between all UEs and cells during `rest_s` and `seconds`, after which they repeat.

    Args:
        cells: [c] their places and antennas.
        loads: what the cells use; None: they do not interfere.
        rest_s: time at first in which channels stay as they are; what follows does not depend on it.

    Raises:
        BadInput: see `places`, or too many of them.
    """

    def __init__(
        self,
        source: ModelSource,
        cells: Sequence[CellPlace],
        ues: Sequence[NetworkUe],
        spectrum: Spectrum,
        seconds: float,
        seed: int,
        loads: Loads | None = None,
        rest_s: float = 0.0,
    ) -> None:
        self._source, self._cell, self._ues, self._seed = source, spectrum, ues, seed
        self._rest_s, self._seconds = rest_s, seconds
        self._loads, self._places = loads, tuple(cells)
        kept = math.inf if loads is None else loads.kept
        self._from_ues = RecentWindows[Array](kept, lambda: np.zeros(len(cells)))
        self._parts = RecentWindows[dict[int, Array]](kept, dict)
        fastest_mps = max(ue.speed_mps for ue in ues)
        self._step_s = min(PLACE_STEP_S, STEP_M / fastest_mps) if fastest_mps else PLACE_STEP_S
        self._step_s = max(self._step_s, seconds / MOST_STEPS)
        self._resting = math.ceil(rest_s / self._step_s)
        self._steps = self._resting + max(1, math.ceil(seconds / self._step_s))
        if len(ues) * len(cells) * self._steps > MOST_GAINS:
            raise BadInput(
                f"{len(ues)} UEs, {len(cells)} cells and {seconds:g} s in steps of {self._step_s:.3g} s are too many "
                f"channels; at most {MOST_GAINS} steps of all"
            )
        self.gains = LazySeries[NDArray[np.float32]](self._gains)
        """[cells, steps] linear gains of each UE: path loss, antenna and shadowing; computed when first used, at rest
        once for all steps."""
        for number in range(len(ues)):
            self._place(number)
        self._floors = [watts(NOISE_DBM_HZ + figure) * spectrum.bandwidth_hz for figure in source.noise_figure_db]
        self._fading = LazySeries(self._faded)

    def at(self, t_s: float) -> int:
        """The step of a time."""
        return int(t_s / self._step_s + 1e-6) % self._steps

    def rsrp_dbm(self, t_s: float, ues: Sequence[int] | None = None) -> Array:
        """[ues, cells] powers that the UEs, or some of them, receive from the cells, without fading and noise."""
        at, known = self.at(t_s), range(len(self._ues)) if ues is None else ues
        gains = np.array([self.gains[ue][:, at] for ue in known], np.float64).reshape(len(known), len(self._places))
        powers: Array = self._source.downlink_dbm + 10 * np.log10(gains)
        return powers

    def forget(self, ue: int) -> None:
        """Free the gains of a UE, which are computed again when they are needed."""
        self.gains.pop(ue, None)

    def used(self, window: int) -> Used:
        """What was counted of a window that has ended."""
        assert self._loads is not None
        uplink = self._uplink(window)
        self._parts[window].update(uplink)
        return Used(window, self._loads.own(window), uplink)

    def take(self, used: Used) -> None:
        """Take what other cells used in a window, before anything in the next one is asked."""
        assert self._loads is not None
        self._loads.take(used.window, used.downlink)
        self._parts[used.window].update(used.uplink)

    def air(self, cell: int) -> AdaptedAir:
        """The channels of all UEs to one cell."""
        return AdaptedAir(
            self._source.adaptation,
            LazySeries(lambda ue: (LinkSinr(self, ue, cell, True), LinkSinr(self, ue, cell, False))),
            self._cell.bler,
        )

    def sinr_db(self, ue: int, cell: int, up: bool, t_s: float) -> float:
        """SINR between a UE and a cell that serves it."""
        dbm = self._source.uplink_dbm if up else self._source.downlink_dbm
        power_w = watts(dbm) * float(self.gains[ue][cell, self.at(t_s)])
        snr = power_w / (self._floors[not up] + self.interference_w(ue, cell, up, t_s))
        return 10 * math.log10(max(snr, LEAST_SNR)) + self._fading[ue][not up].at(max(0.0, t_s - self._rest_s))

    def interference_w(self, ue: int, cell: int, up: bool, t_s: float) -> float:
        """Mean power of the other cells at a time: at the cell's base station on the uplink, at the UE on the downlink.

        They send as much of their power as the share of the bandwidth that they used in the window before.
        """
        if self._loads is None or (window := self._loads.window(t_s) - 1) < 0:
            return 0.0
        if up:
            return float(self._uplink_w(window)[cell])
        used = self._loads.downlink(window)
        used[cell] = 0.0
        return watts(self._source.downlink_dbm) * float(used @ self.gains[ue][:, self.at(t_s)])

    def _uplink_w(self, window: int) -> Array:
        """[cells] mean power that each receives from the UEs of others in a window that has ended."""
        if (found := self._from_ues.get(window)) is None:
            parts, found = self._parts.pop(window, None) or self._uplink(window), self._from_ues[window]
            for cell in sorted(parts):
                found += parts[cell]
            found *= watts(self._source.uplink_dbm)
        return found

    def _uplink(self, window: int) -> dict[int, Array]:
        """See `Used.uplink`: what was counted here."""
        assert self._loads is not None
        found, at = defaultdict[int, Array](lambda: np.zeros(len(self._places))), self.at(self._loads.begin_s(window))
        for (own, ue), share in self._loads.uplink(window).items():
            powers = share * self.gains[ue][:, at]
            powers[own] = 0.0
            found[own] += powers
        return dict(found)

    def _place(self, number: int, steps: int = 1) -> tuple[NDArray[np.complex128], np.random.Generator]:
        """[steps] first places of a UE after the rest, and its random numbers that follow."""
        rng = np.random.default_rng([self._seed, number])
        stations = list(dict.fromkeys(cell.at for cell in self._places))
        t_s = np.arange(steps, dtype=np.float64) * self._step_s
        return places(self._ues[number], stations[number % len(stations)], rng, t_s), rng

    def _gains(self, number: int) -> NDArray[np.float32]:
        """[cells, steps] gains of a UE, station by station: one that moves has no other array of this size."""
        source, moves, moving = self._source, self._ues[number].speed_mps > 0, self._steps - self._resting
        place, rng = self._place(number, moving if moves else 1)
        moved_m = np.abs(np.diff(place, prepend=place[0])) if moves else np.zeros(moving)
        first, steps = (self._resting, self._steps) if moves else (0, 1)
        loss = PathLoss(10 ** (source.gain_1m_db / 10), source.exponent)
        shadowing = Shadowing(source.shadowing_db, source.decorrelation_m)
        found = np.empty((len(self._places), steps), np.float32)
        for at, cells in self._stations().items():
            gains = loss.gains(np.maximum(NEAREST_M, np.abs(place - at)))
            if shadowing.sigma_db:
                gains *= shadowing.gains(rng, moved_m)[: len(place)]
            towards_deg = np.degrees(np.angle(place - at))
            for cell in cells:
                found[cell, first:] = np.maximum(gains * self._places[cell].antenna(towards_deg), LEAST_GAIN)
        found[:, :first] = found[:, first : first + 1]
        return np.broadcast_to(found, (len(found), self._steps))

    def _stations(self) -> dict[complex, list[int]]:
        """Numbers of the cells of each place of base stations."""
        found = defaultdict[complex, list[int]](list)
        for number, cell in enumerate(self._places):
            found[cell.at].append(number)
        return found

    def _faded(self, ue: int) -> tuple[SinrSeries, SinrSeries]:
        """Small-scale fading of a UE in dB, up and down."""
        fading = SmallScale(kind=self._source.fading, k_db=self._source.k_db, carrier_hz=self._source.carrier_hz)
        speed_mps, rng = self._ues[ue].speed_mps, np.random.default_rng([self._seed, ue, 1])
        step_s = min(LONGEST_STEP_S, fading.coherence_at(speed_mps) / STEPS_PER_COHERENCE)
        step_s = max(self._cell.slot_s, self._seconds / MOST_STEPS, step_s)
        n = max(1, math.ceil(self._seconds / step_s))

        def drawn() -> SinrSeries:
            powers = fading.powers(rng, n, step_s, speed_mps).mean(axis=1)
            return SinrSeries(10 * np.log10(np.maximum(powers, LEAST_SNR)), step_s)

        up = drawn()
        return up, up if self._cell.tdd else drawn()


class LinkSinr(SinrSeries):
    """SINR over time of one direction between a UE and a cell."""

    def __init__(self, channels: NetworkChannels, ue: int, cell: int, up: bool) -> None:
        self._channels, self._ue, self._own, self._up = channels, ue, cell, up

    def at(self, t_s: float) -> float:
        """SINR in dB at a time of at least 0."""
        return self._channels.sinr_db(self._ue, self._own, self._up, t_s)
