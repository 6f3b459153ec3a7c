"""Channel state as a modem reports it: periodic, late, quantised and noisy, like the CQI of LTE and NR."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
import numpy as np

from testbed.channel.csi import BEST_MBPS, Csi
from testbed.options import Config, option


class Reports(Config, frozen=True, kw_only=True):
    """Reporting of a link's state. The defaults are of the order of LTE and NR: 15 CQI levels (3GPP TS 38.214), a
    report every 40 ms, used 10 ms later.

    Raises:
        BadInput: a value out of its bounds.
    """

    period_ms: Annotated[float, option("Time between two reports.", least=0.1, most=1e6, unit="ms")] = 40.0
    delay_ms: Annotated[float, option("Time from a measurement to its use.", least=0, most=1e6, unit="ms")] = 10.0
    levels: Annotated[int, option("Reported rates, log-spaced from 1 to 1000 Mbit/s.", least=2, most=10**6)] = 15
    noise_db: Annotated[float, option("Standard deviation of a measured rate.", least=0, most=40, unit="dB")] = 1.0
    seed: Annotated[int, option("Seed of the noise.", least=0)] = 0

    def index(self, time_s: float) -> int:
        """Number of the newest report in use at a time since the link began; the first is used from the start."""
        return max(0, math.floor((1e3 * time_s - self.delay_ms) / self.period_ms + 1e-9))

    def measured_s(self, index: int) -> float:
        """Time at which a report was measured."""
        return index * self.period_ms / 1e3

    def report(self, truth: Csi, index: int) -> Csi:
        """The report of a link in state `truth`: its goodputs R·(1 − PER), with noise, on the nearest levels. A report
        carries no RTT and no packet error rate of its own: the former is the truth's here, the latter 0.
        """
        noise = np.random.default_rng((self.seed, index)).normal(0.0, self.noise_db / 10, 2).tolist()
        goodputs = truth.uplink_mbps * (1 - truth.per_up), truth.downlink_mbps * (1 - truth.per_down)
        up, down = (self._level(rate * 10**error) for rate, error in zip(goodputs, noise, strict=True))
        return msgspec.structs.replace(
            truth, uplink_mbps=up, downlink_mbps=down, per_up=0.0, per_down=0.0, source="report"
        )

    def _level(self, rate_mbps: float) -> float:
        """The nearest reported rate on a logarithmic scale."""
        step = (self.levels - 1) * math.log(max(rate_mbps, 1e-9)) / math.log(BEST_MBPS)
        return float(BEST_MBPS ** (min(max(round(step), 0), self.levels - 1) / (self.levels - 1)))
