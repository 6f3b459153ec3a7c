"""Cell model: UEs at distances from the BS, standing or moving, share the bandwidth; generates a trace per UE."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Literal, get_args

import numpy as np

from testbed.channel.radio.fading import (
    Blockage,
    GilbertElliott,
    PathLoss,
    Shadowing,
    SmallScale,
    require,
    shannon_mbps,
)  # fmt: skip
from testbed.channel.trace import Array, Trace
from testbed.errors import BadInput

RADIUS_M = 400.0
"""Cell radius (edge-SD, Section IV)."""
MOST_SAMPLES = 50_000
USES = ("fading", "shadowing", "loss", "blockage", "rtt", "crowd", "downlink fading")
"""Random quantities. Each has its own generator, so that changing one does not affect the others."""
DECIMALS = {"t_s": 9, "uplink_mbps": 3, "downlink_mbps": 3, "rtt_ms": 3, "per_up": 6, "per_down": 6, "snr_db": 2}
Duplexing = Literal["fdd", "tdd"]
_Draw = Callable[[str], np.random.Generator]


@dataclass(frozen=True)
class Mobility:
    """Movement of a UE along a line through the BS: at rest, or back and forth to `until_m` at constant speed.

    Raises:
        BadInput: distances that are not positive, a negative speed, or a moving UE with equal distances.
    """

    distance_m: float
    speed_mps: float = 0.0
    until_m: float = RADIUS_M

    def __post_init__(self) -> None:
        for metres in (self.distance_m, self.until_m):
            require(0 < metres < math.inf, f"distances must be positive, not {metres:g} m")
        require(0 <= self.speed_mps < math.inf, f"speed must not be negative, not {self.speed_mps:g} m/s")
        moves = self.speed_mps == 0 or self.until_m != self.distance_m
        require(moves, f"a moving UE needs an until_m other than {self.distance_m:g} m")

    def distances(self, t_s: Array) -> Array:
        """[n] distances from the BS [m]."""
        way = abs(self.until_m - self.distance_m)
        if not self.speed_mps:
            return np.full(t_s.shape, self.distance_m)
        gone = (self.speed_mps * t_s) % (2 * way)
        distances: Array = self.distance_m + np.sign(self.until_m - self.distance_m) * np.minimum(gone, 2 * way - gone)
        return distances


@dataclass(frozen=True)
class Crowd:
    """Number of other active UEs over time: an M/M/∞ queue.

    Raises:
        BadInput: a negative mean, or a stay that is not positive.
    """

    mean: float = 0.0
    stay_s: float = 5.0

    def __post_init__(self) -> None:
        require(0 <= self.mean < 1e6, f"the number of others must lie in [0, 1e6), not {self.mean:g}")
        require(0 < self.stay_s < math.inf, f"others must stay for more than 0 s, not {self.stay_s:g}")

    def sizes(self, rng: np.random.Generator, n: int, step_s: float) -> Array:
        """[n] number of other UEs at each step; stationary, Poisson."""
        stays = math.exp(-step_s / self.stay_s)
        sizes = [int(rng.poisson(self.mean))]
        for come in rng.poisson(self.mean * (1 - stays), n - 1).tolist():
            sizes.append(int(rng.binomial(sizes[-1], stays)) + come)
        return np.array(sizes, np.float64)


@dataclass(frozen=True)
class Cell:
    """Radio parameters of a cell; those of the uplink are from edge-SD, Section IV and Table II.

    Rates are Shannon capacities in which shares divide the bandwidth but not the noise: an upper bound on real links.

    Raises:
        BadInput: a value out of range.
    """

    bandwidth_hz: float = 20e6
    """Bandwidth of the uplink and of the downlink: one each under FDD, one for both under TDD."""
    duplex: Duplexing = "fdd"
    """fdd: two bands, whose small-scale fading is independent; tdd: one band that the directions share in time, with
    the same fading in both."""
    uplink_time: float = 0.25
    """TDD only: share of the time for the uplink; the downlink has the rest. Guard times are neglected."""
    noise_w: float = 2.5e-14
    """σ² = −106 dBm; not scaled by the share."""
    uplink_w: float = 0.2
    downlink_w: float = 2.0
    """Our value: the paper neglects the downlink."""
    outage_snr_db: float = -7.0
    """Below this SNR the rate is 0; about the limit of LTE's lowest modulation and coding scheme."""
    rtt_ms: float = 20.0
    jitter_ms: float = 0.0
    """Half-width of the uniform jitter of each direction's delay; one draw per sample."""
    queue_ms: float = 0.0
    """RTT added by each other active UE."""
    path_loss: PathLoss = field(default_factory=PathLoss)
    small_scale: SmallScale = field(default_factory=SmallScale)
    shadowing: Shadowing = field(default_factory=Shadowing)
    loss: GilbertElliott = field(default_factory=GilbertElliott)
    """Packet loss; both directions have the same state."""
    blockage: Blockage = field(default_factory=Blockage)
    crowd: Crowd = field(default_factory=Crowd)

    def __post_init__(self) -> None:
        for name in ("bandwidth_hz", "noise_w", "uplink_w", "downlink_w"):
            value = getattr(self, name)
            require(0 < value < math.inf, f"{name} must be positive, not {value:g}")
        for name in ("rtt_ms", "jitter_ms", "queue_ms"):
            value = getattr(self, name)
            require(0 <= value < math.inf, f"{name} must be finite and not negative, not {value:g}")
        text = (
            f"a jitter of ±{self.jitter_ms:g} ms in each direction needs an RTT of at least {2 * self.jitter_ms:g} ms"
        )
        require(self.jitter_ms <= self.rtt_ms / 2, text)
        known = get_args(Duplexing)
        require(self.duplex in known, f"unknown duplex {self.duplex!r}; known: {', '.join(known)}")
        require(0 < self.uplink_time < 1, f"the uplink's share of the time must lie in (0, 1), not {self.uplink_time}")
        require(not math.isnan(self.outage_snr_db), "the SNR of an outage must be a number")

    def traces(
        self, ues: Sequence[Mobility], seconds: float, step_s: float, seed: int, shares: Sequence[float] | None = None
    ) -> list[Trace]:
        """Generate a trace of n = seconds / step_s samples per UE; a sample's rate is the mean over its step.

        The UEs share the bandwidth equally or according to `shares`; each other UE of `crowd` takes as much as one of
        them on average. `snr_db` is the uplink's. The same seed gives the same traces; adding a UE changes only the
        shares of the others.

        Raises:
            BadInput: no UE, an invalid duration or step, invalid shares, a negative seed, or steps too long for the
                loss bursts or the blockage.
        """
        require(len(ues) > 0, "a cell needs at least one UE")
        require(0 < step_s <= seconds < math.inf, f"{seconds:g} s in steps of {step_s:g} s make no trace")
        require(
            seconds / step_s <= MOST_SAMPLES, f"{seconds:g} s in steps of {step_s:g} s exceed {MOST_SAMPLES} samples"
        )
        require(seed >= 0, f"a seed must not be negative, not {seed}")
        shares = [1 / len(ues)] * len(ues) if shares is None else shares
        good = len(shares) == len(ues) and all(share > 0 for share in shares) and sum(shares) <= 1 + 1e-9
        require(good, f"{len(ues)} UEs need {len(ues)} positive shares that add up to 1 at most, not {list(shares)}")
        t_s: Array = np.arange(round(seconds / step_s), dtype=np.float64) * step_s
        others = self.crowd.sizes(_generator(seed, "crowd"), t_s.size, step_s)
        left = len(ues) / (len(ues) + others)
        return [
            self._trace(ue, t_s, step_s, share * left, others, partial(_generator, seed, ue=i))
            for i, (ue, share) in enumerate(zip(ues, shares, strict=True))
        ]

    def _trace(self, ue: Mobility, t_s: Array, step_s: float, share: Array, others: Array, draw: _Draw) -> Trace:
        n = t_s.size
        distance_m = ue.distances(t_s)
        moved_m = np.abs(np.diff(distance_m, prepend=distance_m[0]))
        gain = self.path_loss.gains(distance_m) * self.shadowing.gains(draw("shadowing"), moved_m)
        gain *= self.blockage.gains(draw("blockage"), n, step_s)
        separate = self.duplex == "fdd"
        rho = [self.small_scale.powers(draw("fading"), n, step_s, ue.speed_mps)] * 2
        if separate:
            rho[1] = self.small_scale.powers(draw("downlink fading"), n, step_s, ue.speed_mps)
        up, down = (
            gain[:, None] * r * w / self.noise_w for r, w in zip(rho, (self.uplink_w, self.downlink_w), strict=True)
        )
        time = (1.0, 1.0) if separate else (self.uplink_time, 1 - self.uplink_time)
        per = self.loss.rates(draw("loss"), n, step_s)
        jitter_ms = draw("rtt").uniform(-self.jitter_ms, self.jitter_ms, (2, n)).sum(axis=0)
        return Trace(
            t_s=t_s,
            uplink_mbps=self._rates(up, share * time[0]),
            downlink_mbps=self._rates(down, share * time[1]),
            rtt_ms=self.rtt_ms + self.queue_ms * others + jitter_ms,
            per_up=per,
            per_down=per,
            snr_db=10 * np.log10(up.mean(axis=1)),
        )

    def _rates(self, snr: Array, share: Array) -> Array:
        """[n] mean rates [Mbit/s] of steps with m draws of the SNR each, [n, m]."""
        heard = snr >= 10 ** (self.outage_snr_db / 10)
        rates: Array = shannon_mbps(self.bandwidth_hz, share, np.where(heard, snr, 0.0).T).mean(axis=0)
        return rates


def scaled(trace: Trace, mean_uplink_mbps: float) -> tuple[Trace, float]:
    """Scale both rates so that the mean uplink rate has a given value; returns the trace and the factor.

    Raises:
        BadInput: a mean that is not positive, or a trace whose uplink rate is always 0.
    """
    require(0 < mean_uplink_mbps < math.inf, f"the mean uplink must be positive, not {mean_uplink_mbps:g} Mbit/s")
    mean = trace.means()["uplink_mbps"]
    if not mean:
        raise BadInput(f"a trace that is always in outage cannot be scaled to a mean of {mean_uplink_mbps:g} Mbit/s")
    factor = mean_uplink_mbps / mean
    return replace(trace, uplink_mbps=trace.uplink_mbps * factor, downlink_mbps=trace.downlink_mbps * factor), factor


def rounded(trace: Trace) -> Trace:
    """The trace rounded to the decimals of its file format."""
    return Trace(**{f.name: np.round(getattr(trace, f.name), DECIMALS[f.name]) for f in fields(trace)})


def _generator(seed: int, use: str, ue: int = 0) -> np.random.Generator:
    return np.random.default_rng([seed, 1 + USES.index(use), ue])
