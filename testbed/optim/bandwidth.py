"""Uplink bandwidth allocation (edge SD batching, Sections II-D and III-A, eqs. 15, 16, 25–27).

Task k uploads D_k = λ·I_k bits over its share w_k of B hertz, at r_k = w_k·B·log2(1 + p_k·g_k/σ²). As in the paper, the
noise σ² is not scaled by the share.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from testbed.errors import BadInput

Array = npt.NDArray[np.float64]
ArrayLike = npt.ArrayLike


def bits_per_token(draft_hidden: int, verify_hidden: int) -> float:
    """λ = 16·(h_d + h_v): embeddings of one input token for both models in half precision (below eq. 15)."""
    return 16.0 * (draft_hidden + verify_hidden)


def spectral_efficiency(power_w: ArrayLike, gain: ArrayLike, noise_w: float) -> Array:
    """[K] spectral efficiencies log2(1 + p·g/σ²) in bit/s/Hz.

    Raises:
        BadInput: no task, or a power, gain or noise that is not positive.
    """
    power, gains = _positive("power", "W", power_w), _positive("channel gain", "", gain)
    _positive("noise", "W", [noise_w])
    if power.shape != gains.shape:
        raise BadInput(f"every task needs a power and a gain, not {power.size} powers and {gains.size} gains")
    with np.errstate(over="ignore", under="ignore"):
        efficiency: Array = np.log1p(power * gains / noise_w) / np.log(2)
    if not np.all((efficiency > 0) & np.isfinite(efficiency)):
        raise BadInput("power x gain / noise is too small or too large to compute with; check the units (W)")
    return efficiency


def rates_bps(shares: ArrayLike, bandwidth_hz: float, efficiency: ArrayLike) -> Array:
    """[K] uplink rates r_k (above eq. 15)."""
    _positive("bandwidth", "Hz", [bandwidth_hz])
    rates: Array = np.asarray(shares, float) * bandwidth_hz * np.asarray(efficiency, float)
    return rates


def upload_s(bits: ArrayLike, shares: ArrayLike, bandwidth_hz: float, efficiency: ArrayLike) -> Array:
    """[K] upload times T_k,com (eq. 15).

    Raises:
        BadInput: bits, shares or bandwidth that are not positive.
    """
    rates = rates_bps(_positive("share", "", shares), bandwidth_hz, efficiency)
    times: Array = _positive("upload", "bits", bits) / rates
    return times


def communication_s(bits: ArrayLike, shares: ArrayLike, bandwidth_hz: float, efficiency: ArrayLike) -> float:
    """T_com: the latest upload, after which inference starts (eq. 16)."""
    return float(upload_s(bits, shares, bandwidth_hz, efficiency).max())


# ---------------------------------------------------------------- policies


def simultaneous(bits: ArrayLike, efficiency: ArrayLike) -> Array:
    """Optimal shares: all uploads end at the same time, w_k ∝ D_k / log2(1 + SNR_k) (eq. 27).

    That time is t* = Σ D_k / (B·log2(1 + SNR_k)).
    """
    return _normalised(_positive("upload", "bits", bits) / _positive("spectral efficiency", "bit/s/Hz", efficiency))


def uniform(bits: ArrayLike, efficiency: ArrayLike) -> Array:
    """Equal shares (the paper's baseline)."""
    return _normalised(np.ones_like(_positive("upload", "bits", bits)))


def proportional_fair(bits: ArrayLike, efficiency: ArrayLike) -> Array:
    """Shares that maximise Σ D_k·log r_k: w_k ∝ D_k.

    The sum is weighted by demand: without weights, and with unscaled noise, equal shares maximise it.
    """
    return _normalised(_positive("upload", "bits", bits))


def max_min(bits: ArrayLike, efficiency: ArrayLike) -> Array:
    """Shares that maximise the lowest rate, which makes rates equal: w_k ∝ 1 / log2(1 + SNR_k)."""
    _positive("upload", "bits", bits)
    return _normalised(1 / _positive("spectral efficiency", "bit/s/Hz", efficiency))


POLICIES: dict[str, Callable[[ArrayLike, ArrayLike], Array]] = {
    "optimal": simultaneous,
    "uniform": uniform,
    "proportional-fair": proportional_fair,
    "max-min": max_min,
}
"""Policies by name: shares [K], which sum to 1, from bits [K] and spectral efficiencies [K]."""


def allocate(policy: str, bits: ArrayLike, efficiency: ArrayLike) -> Array:
    """[K] shares under one of `POLICIES`.

    Raises:
        BadInput: an unknown policy, no task, or numbers that are not positive.
    """
    if policy not in POLICIES:
        raise BadInput(f"no bandwidth policy {policy!r}; known: {', '.join(POLICIES)}")
    return POLICIES[policy](bits, efficiency)


def _normalised(parts: Array) -> Array:
    shares: Array = parts / parts.sum()
    return shares


def _positive(what: str, unit: str, values: ArrayLike) -> Array:
    array = np.asarray(values, float)
    if array.ndim != 1 or array.size == 0:
        raise BadInput("no tasks; give at least one")
    bad = np.flatnonzero(~((array > 0) & np.isfinite(array)))
    if bad.size:
        where = f" of task {bad[0]}" if array.size > 1 else ""
        raise BadInput(f"{what}{where} must be positive and finite, not {array[bad[0]]:g} {unit}".rstrip())
    return array
