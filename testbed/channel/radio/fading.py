"""Fading models of a radio channel: path loss, shadowing, small-scale fading, blockage, and bursts of packet loss.

The model is that of the edge-SD paper, Section IV: g = g0·ρ·d^−2 with ρ ~ Exp(1) (Rayleigh), and the rate of its
eq. 15, r = w·B·log2(1 + p·g/σ²). The correlation over time, Clarke's, is our addition: the paper draws each gain once.
Functions that draw random numbers take the generator as an argument.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from testbed.channel.trace import Array
from testbed.errors import BadInput

Kind = Literal["none", "rayleigh", "rician"]
LIGHT_MPS = 299_792_458.0
STILL_COHERENCE_S = 1.0
"""Coherence time of a UE at rest, whose surroundings move; an assumption of ours."""
COHERENCE_DOPPLER = 9 / (16 * math.pi)
"""Coherence time times maximum Doppler frequency (Rappaport); there J0² = 0.50."""
DRAWS_PER_COHERENCE = 4
MOST_DRAWS_PER_STEP = 64
STEPS_S = (1e-3, 0.1)
"""Shortest and longest default step of a trace: a transport block's time, and the step of slow fading."""
LEAST_BINS, MOST_BINS = 16, 2**20
"""Frequencies that sample a Doppler spectrum."""
LEAST_DOPPLER = 1e-300
"""Smallest Doppler frequency times sampling interval that is computed with."""


def require(good: bool, text: str) -> None:
    """Raise BadInput with `text` unless `good`."""
    if not good:
        raise BadInput(text)


def shannon_mbps(bandwidth_hz: float, share: Array | float, snr: Array | float) -> Array:
    """Shannon rate of a share of the bandwidth [Mbit/s], w·B·log2(1 + p·g/σ²) (edge-SD, before eq. 15); snr is
    linear.
    """
    rate: Array = np.asarray(share * bandwidth_hz * np.log2(1 + np.asarray(snr)) / 1e6)
    return rate


def coherence_time_s(speed_mps: float, carrier_hz: float) -> float:
    """Coherence time of a moving UE's channel: 9/(16π·f_D), f_D = v·f_c/c (Rappaport, Wireless Communications)."""
    return COHERENCE_DOPPLER * LIGHT_MPS / (speed_mps * carrier_hz)


def clarke(rng: np.random.Generator, n: int, doppler: float) -> NDArray[np.complex128]:
    """[n] complex Gaussian process of variance 1 with the autocorrelation J0(2π·`doppler`·lag) of Clarke's model
    ("A statistical theory of mobile-radio reception", 1968).

    White noise is shaped by Jakes's Doppler spectrum 1/(π·f_D·sqrt(1 − (f/f_D)²)), integrated over each frequency bin;
    frequencies beyond the sampling rate fold.

    Args:
        doppler: maximum Doppler frequency f_D times the sampling interval, positive.
    """
    doppler = max(doppler, LEAST_DOPPLER)
    wanted = max(2 * n, min(MOST_BINS, math.ceil(LEAST_BINS / doppler)))
    bins = 1 << (wanted - 1).bit_length()
    white = rng.standard_normal((2, bins))
    shaped = _jakes(bins, doppler) * (white[0] + 1j * white[1])
    return np.asarray(np.fft.ifft(shaped, norm="forward")[:n], np.complex128)


@functools.lru_cache(maxsize=8)
def _jakes(bins: int, doppler: float) -> Array:
    """[bins] amplitudes of the frequency bins of `clarke`; UEs of one speed share them."""
    most = math.ceil(doppler * bins)
    edges = (np.arange(-most, most + 2) - 0.5) / (doppler * bins)
    power = np.zeros(bins)
    np.add.at(power, np.arange(-most, most + 1) % bins, np.diff(np.arcsin(np.clip(edges, -1, 1))) / math.pi)
    return np.asarray(np.sqrt(power / 2), np.float64)


def gauss_markov(white: NDArray[np.inexact], correlation: Array | float) -> NDArray[np.inexact]:
    """[n] Gauss–Markov process x[0] = w[0], x[i] = a[i]·x[i−1] + sqrt(1 − a[i]²)·w[i], of the variance of w [n].

    `correlation` is a, one number or [n], within [0, 1].
    """
    keep = np.broadcast_to(np.asarray(correlation, np.float64), white.shape)
    fresh = (np.sqrt(1 - keep**2) * white).tolist()
    value = white[0].item()
    values = [value]
    for a, w in zip(keep[1:].tolist(), fresh[1:], strict=True):
        value = a * value + w
        values.append(value)
    return np.array(values, white.dtype)


def two_state(rng: np.random.Generator, n: int, enter: float, leave: float) -> NDArray[np.bool_]:
    """[n] on/off Markov chain with the probabilities of entering and leaving the on state per step; starts
    stationary.
    """
    on = bool(rng.random() < (enter / (enter + leave) if enter else 0.0))
    states = []
    for draw in rng.random(n).tolist():
        states.append(on)
        on = draw >= leave if on else draw < enter
    return np.array(states, bool)


@dataclass(frozen=True)
class PathLoss:
    """Mean gain over distance, g0·d^−exponent.

    Raises:
        BadInput: a gain that is not positive, or an exponent out of range.
    """

    reference_gain: float = 1e-6
    """g0, the gain at 1 m: −30 dBm in edge-SD, Section IV, interpreted as 10⁻⁶."""
    exponent: float = 2.0

    def __post_init__(self) -> None:
        require(0 < self.reference_gain < math.inf, f"gain at 1 m must be positive, not {self.reference_gain:g}")
        require(0 < self.exponent <= 10, f"path loss exponent must lie in (0, 10], not {self.exponent:g}")

    def gains(self, distance_m: Array) -> Array:
        """[n] linear power gains at distances [m] > 0."""
        gains: Array = self.reference_gain * distance_m**-self.exponent
        return gains


@dataclass(frozen=True)
class SmallScale:
    """Multipath fading: ρ = |h|² with mean 1, h a process of Clarke's model (`clarke`) around a constant line-of-sight
    component. The coherence time is that after which the power's correlation, J0², has fallen to one half.

    Raises:
        BadInput: unknown kind, a K-factor that is not finite, a time or a carrier that is not positive.
    """

    kind: Kind = "rayleigh"
    k_db: float = 6.0
    """Rician K-factor: power of the line-of-sight path over that of all others."""
    coherence_s: float | None = None
    """None: from speed and carrier frequency, `STILL_COHERENCE_S` at rest."""
    carrier_hz: float = 3.5e9

    def __post_init__(self) -> None:
        kinds = get_args(Kind)
        require(self.kind in kinds, f"unknown fading {self.kind!r}; known: {', '.join(kinds)}")
        require(abs(self.k_db) <= 100, f"K-factor must lie between -100 and 100 dB, not {self.k_db:g} dB")
        given = self.coherence_s
        require(given is None or 0 < given < math.inf, f"coherence time must be positive, not {given} s")
        require(0 < self.carrier_hz < math.inf, f"carrier must be positive, not {self.carrier_hz:g} Hz")

    def coherence_at(self, speed_mps: float) -> float:
        """Coherence time [s] of a UE that moves at a speed."""
        if self.coherence_s is not None:
            return self.coherence_s
        return coherence_time_s(speed_mps, self.carrier_hz) if speed_mps else STILL_COHERENCE_S

    def default_step_s(self, speed_mps: float, seconds: float, most: int) -> float:
        """Step of a trace of at most `most` samples in which a short message meets the fades: a quarter of the
        coherence time, within `STEPS_S`, in whole tenths of a millisecond.
        """
        least_s, most_s = STEPS_S
        step_s = min(most_s, max(least_s, self.coherence_at(speed_mps) / DRAWS_PER_COHERENCE))
        return math.ceil(max(step_s, seconds / most) * 1e4 - 1e-9) / 1e4

    def powers(self, rng: np.random.Generator, n: int, step_s: float, speed_mps: float = 0.0) -> Array:
        """[n, m] ρ during n steps with m draws each, m depending on the coherence time, at most
        `MOST_DRAWS_PER_STEP`.
        """
        if self.kind == "none":
            return np.ones((n, 1))
        coherence_s = self.coherence_at(speed_mps)
        m = max(1, min(MOST_DRAWS_PER_STEP, math.ceil(DRAWS_PER_COHERENCE * step_s / coherence_s - 1e-9)))
        diffuse = clarke(rng, n * m, COHERENCE_DOPPLER * step_s / (m * coherence_s))
        k = 10 ** (self.k_db / 10) if self.kind == "rician" else 0.0
        amplitude = np.abs(math.sqrt(k / (k + 1)) + diffuse / math.sqrt(k + 1))
        return np.asarray(amplitude**2, np.float64).reshape(n, m)


@dataclass(frozen=True)
class Shadowing:
    """Log-normal shadowing with median 1, correlated over distance: e^(−Δd/decorrelation) (Gudmundson 1991).

    Raises:
        BadInput: a negative spread, or a distance that is not positive.
    """

    sigma_db: float = 0.0
    decorrelation_m: float = 20.0

    def __post_init__(self) -> None:
        require(0 <= self.sigma_db <= 30, f"shadowing must lie between 0 and 30 dB, not {self.sigma_db:g} dB")
        good = 0 < self.decorrelation_m < math.inf
        require(good, f"decorrelation distance must be positive, not {self.decorrelation_m:g} m")

    def gains(self, rng: np.random.Generator, moved_m: Array) -> Array:
        """[n] linear gains, given the distance moved [m] since the previous sample; constant at rest."""
        white = rng.standard_normal(moved_m.size)
        if not moved_m.any():
            return np.full(moved_m.size, 10 ** (self.sigma_db / 10 * white[:1]))
        spread = gauss_markov(white, np.exp(-moved_m / self.decorrelation_m))
        return np.asarray(10 ** (self.sigma_db / 10 * spread), np.float64)


@dataclass(frozen=True)
class GilbertElliott:
    """Gilbert–Elliott packet loss: a good and a bad state with a packet error rate each.

    Raises:
        BadInput: rates outside [0, 1), a mean outside of the two, or a burst duration that is not positive.
    """

    mean: float = 0.0
    """Long-term packet error rate."""
    burst_s: float = 1.0
    """Mean time in the bad state."""
    good: float = 0.0
    bad: float = 0.5

    def __post_init__(self) -> None:
        text = f"loss needs 0 <= good <= mean < bad < 1, not good {self.good:g}, mean {self.mean:g}, bad {self.bad:g}"
        require(0 <= self.good <= self.mean < self.bad < 1, text)
        require(0 < self.burst_s < math.inf, f"a burst of loss must last for more than 0 s, not {self.burst_s:g}")

    def rates(self, rng: np.random.Generator, n: int, step_s: float) -> Array:
        """[n] packet error rates of steps of `step_s`.

        Raises:
            BadInput: steps too long for the duration or frequency of the bursts.
        """
        if self.mean == self.good:
            return np.full(n, self.good)
        share = (self.mean - self.good) / (self.bad - self.good)
        leave = step_s / self.burst_s
        enter = leave * share / (1 - share)
        require(max(enter, leave) <= 1, f"a step of {step_s:g} s is too long for bursts of loss of {self.burst_s:g} s")
        return np.where(two_state(rng, n, enter, leave), self.bad, self.good)


@dataclass(frozen=True)
class Blockage:
    """Occasional blockage of the signal, with geometric durations.

    Raises:
        BadInput: times that are not positive, or a negative loss.
    """

    every_s: float | None = None
    """Mean time between the end of a blockage and the next; None: no blockage."""
    for_s: float = 3.0
    loss_db: float = 60.0

    def __post_init__(self) -> None:
        good = (self.every_s is None or 0 < self.every_s < math.inf) and 0 < self.for_s < math.inf
        require(good, f"blockage needs positive times, not every {self.every_s} s for {self.for_s:g} s")
        require(0 <= self.loss_db <= 300, f"blockage must cost between 0 and 300 dB, not {self.loss_db:g} dB")

    def gains(self, rng: np.random.Generator, n: int, step_s: float) -> Array:
        """[n] linear gains of steps of `step_s`.

        Raises:
            BadInput: steps longer than the mean duration of blockages, or than the mean time between them.
        """
        if self.every_s is None:
            return np.ones(n)
        fits = step_s <= min(self.every_s, self.for_s)
        require(fits, f"a step of {step_s:g} s is too long for blockage every {self.every_s:g} s for {self.for_s:g} s")
        blocked = two_state(rng, n, step_s / self.every_s, step_s / self.for_s)
        return np.where(blocked, 10 ** (-self.loss_db / 10), 1.0)
