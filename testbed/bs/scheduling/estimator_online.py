"""Online estimator of pass times, with drift detection against its initial coefficients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput
from testbed.optim.pass_time import Coefficients, RequestWork, features

Reals = NDArray[np.float64]

TYPICAL = np.array([100.0, 30_000.0, 1_000.0, 1.0])
"""Features of a typical pass, the scale of coefficients that are 0."""
LEAST_TYPICAL_S = 1e-9
"""Shortest time of a typical pass to begin with."""
LEAST_SHARE = 0.05
"""Lower bound of a term's prior scale, as a share of a typical pass."""
OUTLIER = 3.0
"""Standard deviations beyond which errors count linearly instead of quadratically (Huber)."""


@dataclass(frozen=True, kw_only=True)
class OnlineConfig:
    """Learning rate and drift detection of the estimator.

    Raises:
        BadInput: a value out of range.
    """

    memory: float = 500.0
    """Passes after which one counts 1/e of a new one."""
    spread: float = 0.1
    """Relative standard deviation of a pass around its estimate; the fit's MAPE times 1.25 for normal errors."""
    prior_spread: float = 0.5
    """Relative standard deviation of the initial coefficients."""
    allowance: float = 0.5
    """Lasting bias, in standard deviations, that is no drift."""
    alarm: float = 8.0
    """Accumulated bias beyond the allowance, in standard deviations, that is drift."""

    def __post_init__(self) -> None:
        if not self.memory >= 1:
            raise BadInput(f"memory counts passes, 1 or more, not {self.memory:g}")
        for name in ("spread", "prior_spread", "allowance", "alarm"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise BadInput(f"{name} must be positive, not {value:g}")


class OnlineEstimator:
    """Recursive least squares with exponential forgetting and a permanent prior.

    After passes x_1 … x_n (features of eq. 18) of y_1 … y_n seconds the coefficients θ minimize

        Σ_i λ^(n−i)·w_i·((y_i − x_i·θ) / (σ·ŷ_i))² + Σ_j ((θ_j − θ0_j) / (ρ·θ0_j))²        λ = e^(−1/memory)

    with ŷ_i the estimate before the pass and w_i Huber's weight; negative results are set to 0. The denominator ρ·θ0_j
    is at least `LEAST_SHARE` of a typical pass, so that a term that starts at 0 can be learnt. Terms that the passes do
    not identify keep their values: the estimate stays stable if all passes are alike.

    Drift is measured against the initial coefficients. The rule is a two-sided CUSUM on z = ln(y / ŷ0) / σ, clipped at
    ±`OUTLIER`: S⁺ ← max(0, S⁺ + z − allowance), and S⁻ the same with −z; either above `alarm` is drift. With the
    defaults, a true model with normal errors raises it about once in ten thousand passes, and passes that take 15 %
    longer raise it after eight. It stays raised until `rebase`.

    Args:
        start: initial coefficients.
    """

    def __init__(self, start: Coefficients, config: OnlineConfig | None = None) -> None:
        self._config = config or OnlineConfig()
        self._keep = math.exp(-1 / self._config.memory)
        self.passes = 0
        if (typical_s := float(TYPICAL @ np.array(start.values))) < LEAST_TYPICAL_S:
            raise BadInput(f"the coefficients give a typical pass {typical_s:g} s; {LEAST_TYPICAL_S:g} s is the least")
        self._begin(start)

    def _begin(self, start: Coefficients) -> None:
        self._start = self._now = start
        begun = np.array(start.values)
        least = LEAST_SHARE * float(TYPICAL @ begun) / TYPICAL
        self._scale = np.maximum(begun, least)
        self._prior = np.full(len(begun), self._config.prior_spread**-2)
        self._information = np.zeros((len(begun), len(begun)))
        self._moment = np.zeros(len(begun))
        self._above = self._below = 0.0
        self._drifted = False

    @property
    def coefficients(self) -> Coefficients:
        """Current estimate."""
        return self._now

    @property
    def drifted(self) -> bool:
        """Whether passes have drifted from the initial (or last rebased) coefficients."""
        return self._drifted

    @property
    def bias(self) -> float:
        """The larger of the two CUSUMs, negative for passes shorter than expected; ±`alarm` is drift."""
        return self._above if self._above >= self._below else -self._below

    def observe(self, batch: Sequence[RequestWork], latency_s: float) -> None:
        """Update the estimate with a pass.

        Raises:
            BadInput: an empty batch, or a latency that is not positive.
        """
        if not batch:
            raise BadInput("a pass has one request or more, not none")
        if not (math.isfinite(latency_s) and latency_s > 0):
            raise BadInput(f"a pass takes a positive time, not {latency_s:g} s")
        x = features(batch)
        self.passes += 1
        self._watch(float(x @ np.array(self._start.values)), latency_s)
        expected_s = max(float(x @ np.array(self._now.values)), 1e-9)
        noise_s = self._config.spread * expected_s
        weight = min(1.0, OUTLIER / max(abs(latency_s - expected_s) / noise_s, 1e-12))
        row = x * self._scale / noise_s
        self._information = self._keep * self._information + weight * np.outer(row, row)
        self._moment = self._keep * self._moment + weight * row * (latency_s / noise_s)
        self._now = self._solve()

    def rebase(self) -> None:
        """Make the current estimate the initial one, prior included, and clear the alarm."""
        self._begin(self._now)

    def _watch(self, expected_s: float, latency_s: float) -> None:
        z = math.log(latency_s / max(expected_s, 1e-9)) / self._config.spread
        z = max(-OUTLIER, min(OUTLIER, z))
        self._above = max(0.0, self._above + z - self._config.allowance)
        self._below = max(0.0, self._below - z - self._config.allowance)
        self._drifted = self._drifted or max(self._above, self._below) > self._config.alarm

    def _solve(self) -> Coefficients:
        """The minimum of the objective, computed in units of `_scale`."""
        begun = np.array(self._start.values) / self._scale
        found = np.linalg.solve(self._information + np.diag(self._prior), self._moment + self._prior * begun)
        values = np.maximum(found, 0.0) * self._scale
        return Coefficients(*values.tolist()) if values.any() else self._now
