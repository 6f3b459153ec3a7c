"""Passive estimation of a link's RTT and rates from the rounds that run over it, without probe traffic."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.channel.csi import LEAST_RTT_MS, Csi
from testbed.errors import BadInput

Reals = NDArray[np.floating[Any]]

MEMORY_S = 10.0
"""Time constant of the exponential forgetting: an exchange this old has the weight 1/e."""
SPREAD = 1.0
"""Relative standard deviation of the prior."""
NOISE = 0.2
"""Prior of σ, the relative standard deviation of an exchange's duration."""
NOISE_WEIGHT = 4.0
"""Number of exchanges that the prior of σ counts for."""
LEAST_NOISE = 0.005
SURPRISE = 3.0
"""An error above this number of standard deviations is an outlier, or the link has changed."""
MIDDLING_RTT_MS, MIDDLING_MBPS = 20.0, 20.0
"""A typical wireless link. No prior is taken to be more certain than one of this link, because very good links are
often assumed without evidence."""
UNSURE = 0.5
"""Relative standard deviation above which an expected duration is too uncertain to scale errors with."""
CHANGE = 3
"""Number of consecutive outliers in one direction that count as a change of the link."""
MAX_LINK_S = 86_400.0
FLOOR = 1e-3
"""Lower limit of each estimate relative to its prior, so that none becomes zero and no rate infinite."""


class PassiveMeter:
    """Estimates RTT, uplink and downlink rate from the durations and bytes of exchanges (the link part of one round).

    Model (WISV eqs. 6 and 10, the packet error rate inside an effective rate R·(1 − p)):

        link_s = trips·RTT + 8·up_bytes / R_up + 8·down_bytes / R_down + error

    Errors are proportional to the duration, since fading and queues affect long exchanges more. θ = (RTT, 1/R_up,
    1/R_down) is estimated by recursive least squares with exponential forgetting and a Gaussian prior: θ minimizes

        Σ_i e^(−age_i / memory_s)·((link_s_i − x_i·θ) / (σ·expected_s_i))² + Σ_j ((θ_j − prior_j) / (spread·prior_j))²

    over θ > 0, with σ estimated from the errors. The prior's spread is relative to the larger of the estimate and a
    typical link, because a prior that is far too good would otherwise dominate. A rate that the exchanges do not reveal
    (token ids alone do not) keeps the prior's value, returns to it once older evidence is forgotten, and has a large
    `uncertainty`.

    An error above `SURPRISE` standard deviations does not change the estimate but increases σ. After `CHANGE` such
    errors in a row in one direction, the link has changed: the exchange gets its full weight, and all earlier exchanges
    together the weight of one.

    Args:
        prior: state that was measured or assumed before the run; its packet error rates are kept.

    Raises:
        BadInput: a memory or spread that is not positive.
    """

    def __init__(self, prior: Csi, memory_s: float = MEMORY_S, spread: float = SPREAD) -> None:
        if not (memory_s > 0 and spread > 0):
            raise BadInput(f"memory_s and spread must be positive, not {memory_s} and {spread}")
        self._prior, self._memory_s, self._spread = prior, memory_s, spread
        rates_mbps = prior.uplink_mbps * (1 - prior.per_up), prior.downlink_mbps * (1 - prior.per_down)
        self._unit = np.array([max(prior.rtt_ms, LEAST_RTT_MS) / 1e3, *(1e-6 / r for r in rates_mbps)])
        """[3] the prior's θ, in s and s/bit; all other quantities are relative to it."""
        middling = np.array([MIDDLING_RTT_MS / 1e3, 1e-6 / MIDDLING_MBPS, 1e-6 / MIDDLING_MBPS])
        self._least = np.maximum(1.0, middling / self._unit)
        """[3] lower limit of the values that the spread is relative to."""
        self._theta: Reals = np.ones(3)
        self._squares, self._products = np.zeros((3, 3)), np.zeros(3)
        """Weighted sums of x·xᵀ [3, 3] and x·link_s [3], both over expected_s²."""
        self._weight = 0.0
        """Effective number of exchanges remembered."""
        self._errors = NOISE_WEIGHT * NOISE**2
        """Sum of squared relative errors, including the prior's."""
        self._surprises = 0
        """Number of consecutive outliers; negative if the exchanges were faster than expected."""
        self._surprise_bytes = 0
        """Bytes of the last outlier."""
        self._time_s: float | None = None

    def update(self, up_bytes: int, down_bytes: int, trips: int, link_s: float, time_s: float) -> None:
        """Update with one exchange, in constant time. A `link_s` of 0 (below the clock's resolution) is ignored.

        Args:
            trips: number of round trips: 1, or 2 if SH queried hidden states.
            link_s: the exchange's duration without the BS's own time.
            time_s: when it ended, on any clock; if the clock goes back, time counts as unchanged.

        Raises:
            BadInput: negative or non-finite numbers, or an exchange without bytes and trips.
        """
        work = np.array([trips, 8.0 * up_bytes, 8.0 * down_bytes])
        if not (np.isfinite(work).all() and work.min() >= 0 and work.any()):
            raise BadInput(f"an exchange has bytes or trips, and none negative: {up_bytes}, {down_bytes}, {trips}")
        if not (0 <= link_s <= MAX_LINK_S and math.isfinite(time_s)):
            raise BadInput(f"link_s must lie in [0, {MAX_LINK_S:g}] and time_s be finite, not {link_s} and {time_s}")
        if link_s > 0:
            self._learn(work * self._unit, up_bytes + down_bytes, link_s, time_s)

    def csi(self) -> Csi:
        """The estimated state of the link; before the first exchange, the prior.

        Rates are such that, with the prior's packet error rates, they give the estimated effective rates. SNR and RSSI
        are None, since exchanges do not reveal them.
        """
        if self._time_s is None:
            return self._prior
        prior, (rtt_s, up, down) = self._prior, (self._theta * self._unit).tolist()
        return Csi(
            uplink_mbps=1e-6 / (up * (1 - prior.per_up)),
            downlink_mbps=1e-6 / (down * (1 - prior.per_down)),
            rtt_ms=1e3 * rtt_s,
            per_up=prior.per_up,
            per_down=prior.per_down,
            time_s=self._time_s,
            source="passive",
        )

    def uncertainty(self) -> dict[str, float]:
        """Relative standard deviation of RTT and rates (for a rate, of 1/R), by field name of `Csi`.

        `spread` or more means that only the prior is known. The value is for a link that may change within the memory;
        on a constant link with regular exchanges, errors are smaller by a factor of √2.
        """
        deviations = np.sqrt(np.diag(self._covariance())) / self._theta
        return dict(zip(("rtt_ms", "uplink_mbps", "downlink_mbps"), deviations.tolist(), strict=True))

    def _learn(self, x: Reals, size_bytes: int, link_s: float, time_s: float) -> None:
        """Update with an exchange unless it is an outlier; `x` [3] are its parts under the prior, in s."""
        first = self._time_s is None
        self._forget(time_s)
        expected_s = float(x @ self._theta)
        unknown = float(x @ self._covariance() @ x) / expected_s**2
        error = link_s / expected_s - 1
        surprise = not first and abs(error) > SURPRISE * math.sqrt(unknown + self._variance)
        self._count((1 if error > 0 else -1) if surprise else 0, size_bytes)
        changed = first or abs(self._surprises) >= CHANGE  # the first exchange may contradict the prior
        if surprise and not changed:
            self._weight += 1
            self._errors += SURPRISE**2 * self._variance
            return
        # an uncertain expectation is no scale for the size of an error
        scale_s = max(link_s, expected_s) if changed or unknown > UNSURE**2 else expected_s
        if changed:
            self._surprises = 0
            self._keep((expected_s / scale_s) ** 2 / max(1.0, self._weight))
        self._add(x / scale_s, link_s / scale_s)
        left = link_s / float(x @ self._theta) - 1
        self._errors += NOISE**2 if changed else min(abs(left), 1.0) ** 2

    @property
    def _variance(self) -> float:
        """σ², estimated from the errors."""
        return max(self._errors / (self._weight + NOISE_WEIGHT), LEAST_NOISE**2)

    def _information(self) -> tuple[Reals, Reals]:
        """Information matrix of data and prior [3, 3], and the prior's diagonal [3]."""
        prior = (self._spread * np.maximum(self._least, self._theta)) ** -2
        return self._squares / self._variance + np.diag(prior), prior

    def _covariance(self) -> Reals:
        """[3, 3] covariance of θ, relative to the prior."""
        return np.linalg.inv(self._information()[0])

    def _forget(self, time_s: float) -> None:
        if self._time_s is None:
            self._time_s = time_s
        elif time_s > self._time_s:
            self._keep(math.exp((self._time_s - time_s) / self._memory_s))
            self._time_s = time_s

    def _keep(self, share: float) -> None:
        """Scale down the weight of all earlier exchanges."""
        self._squares *= share
        self._products *= share
        self._weight *= share
        self._errors = share * self._errors + (1 - share) * NOISE_WEIGHT * NOISE**2

    def _count(self, side: int, size_bytes: int) -> None:
        """Update the number of consecutive outliers; an exchange much smaller than the last outlier does not end it."""
        if side:
            self._surprises = side + (self._surprises if self._surprises * side > 0 else 0)
            self._surprise_bytes = size_bytes
        elif 2 * size_bytes >= self._surprise_bytes:
            self._surprises = 0

    def _add(self, x: Reals, duration: float) -> None:
        """Add one exchange, scaled by its expected duration, and solve for θ."""
        self._squares += np.outer(x, x)
        self._products += duration * x
        self._weight += 1
        information, prior = self._information()
        right = self._products / self._variance + prior
        self._theta = np.linalg.solve(information, right)
        for _ in range(len(self._theta) - 1):  # fix entries below the floor to it, and solve for the others
            low = self._theta < FLOOR
            if not low.any():
                break
            stiff = 1e9 * np.diag(information) * low
            information, right = information + np.diag(stiff), right + stiff * FLOOR
            self._theta = np.linalg.solve(information, right)
        self._theta = np.maximum(self._theta, FLOOR)
