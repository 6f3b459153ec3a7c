"""Channel state information (CSI) of a link: rates, RTT, packet error rates, SNR."""

from __future__ import annotations

import math
from typing import Literal, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput

Source = Literal["assumed", "probe", "passive", "emulated", "trace"]
"""Given by the user; probed before the run; estimated from the rounds; configured in an emulation; read from the trace
that is replayed."""
FEATURES = ("log10_uplink_mbps", "log10_downlink_mbps", "log10_rtt_ms", "per_up", "per_down")
"""Entries of `Csi.features`, in order."""
LEAST_RTT_MS = 0.1
"""Lower limit of the RTT in features, for loopback and emulated links without delay."""
BEST_MBPS, WORST_RTT_MS = 1000.0, 500.0
"""Uplink goodput at which its part of `Csi.quality` reaches one, and RTT at which its part reaches zero."""


class Csi(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """State of one link, as measured, emulated or assumed; part of the header of every `Draft`.

    Raises:
        BadInput: a rate that is not positive and finite, an RTT that is negative or not finite, a packet error rate
            outside [0, 1), an SNR, RSSI or time that is not finite, an unknown source.
    """

    uplink_mbps: float
    downlink_mbps: float
    rtt_ms: float
    per_up: float = 0.0
    """Uplink packet error rate."""
    per_down: float = 0.0
    snr_db: float | None = None
    rssi_dbm: float | None = None
    time_s: float = 0.0
    """Time of the measurement, in seconds since the run (or the trace) began."""
    source: Source = "assumed"

    def __post_init__(self) -> None:
        for name in ("uplink_mbps", "downlink_mbps"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise BadInput(f"{name} must be positive and finite, not {value}")
        if not (math.isfinite(self.rtt_ms) and self.rtt_ms >= 0):
            raise BadInput(f"rtt_ms must be finite and not negative, not {self.rtt_ms}")
        for name in ("per_up", "per_down"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise BadInput(f"{name} must lie in [0, 1), not {value}")
        for name in ("snr_db", "rssi_dbm", "time_s"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise BadInput(f"{name} must be finite, not {value}")
        if self.source not in get_args(Source):
            raise BadInput(f"unknown source {self.source!r}; known: {', '.join(get_args(Source))}")

    @property
    def features(self) -> NDArray[np.float32]:
        """[5] input of a decision head (c in WISV eq. 23), entries as in `FEATURES`."""
        rtt_ms = max(self.rtt_ms, LEAST_RTT_MS)
        logs = [math.log10(value) for value in (self.uplink_mbps, self.downlink_mbps, rtt_ms)]
        return np.array([*logs, self.per_up, self.per_down], np.float32)

    @property
    def quality(self) -> float:
        """q(c) in [0, 1], the channel quality of WISV: 1 for a link that adds no cost to a round, 0 for a very poor
        one.

        The paper leaves q open. Ours is the mean of two parts on logarithmic scales: the uplink's goodput
        R·(1 − PER), from 1 Mbit/s to `BEST_MBPS`, and the RTT, from `WORST_RTT_MS` down to 1 ms. It never falls when
        the uplink rate rises, or when RTT or uplink PER falls.
        """
        goodput = math.log10(max(1.0, self.uplink_mbps * (1 - self.per_up))) / math.log10(BEST_MBPS)
        delay = 1 - math.log10(max(1.0, self.rtt_ms)) / math.log10(WORST_RTT_MS)
        return (min(1.0, goodput) + max(0.0, delay)) / 2


PERFECT = Csi(BEST_MBPS, BEST_MBPS, 1.0)
"""A link of quality 1, on which a head is least permissive. Relabelling keeps the original labels on it, and a round
without channel state is judged as if it ran on it."""
