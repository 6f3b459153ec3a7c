"""Channel state information (CSI) of a link: rates, RTT, packet error rates, SNR."""

from __future__ import annotations

import ctypes
import math
from typing import Literal, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput

Source = Literal["assumed", "probe", "passive", "emulated", "trace", "handshake", "report"]
"""Given by the user; probed before the run; estimated from the rounds; configured in an emulation; read from the trace
that is replayed; the RTT of a handshake with assumed rates; periodic reports like a modem's CQI."""
FEATURES = ("log10_uplink_mbps", "log10_downlink_mbps", "log10_rtt_ms", "per_up", "per_down")
"""Entries of `Csi.features`, in order."""
LEAST_RTT_MS = 0.1
"""Lower limit of the RTT in features, for loopback and emulated links without delay."""
BEST_MBPS, WORST_RTT_MS = 1000.0, 500.0
"""Uplink goodput at which its part of `quality` reaches one, and RTT at which its part reaches zero."""
QualityKind = Literal["goodput", "goodput-rtt"]


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


def single(value: float) -> float:
    """A measured number in single precision, which takes 5 bytes in a message where a double takes 9; infinite if it is
    out of range.
    """
    return ctypes.c_float(value).value


def quality(csi: Csi, kind: QualityKind) -> float:
    """q(c) in [0, 1], the channel quality of WISV Section V-B, which the paper leaves open beyond its two parts, rate
    and packet error rate. It never falls when the uplink rate rises, or when uplink PER or RTT falls.

    `goodput`: log(R·(1 − p)) / log(`BEST_MBPS`), R in Mbit/s, within [0, 1]. A packet error rate p costs as much q as
    the rate R·(1 − p) without errors, since both take the same time (eqs. 6, 10).

    `goodput-rtt`: the mean of that and of the RTT's part, 1 − log(RTT) / log(`WORST_RTT_MS`), RTT in ms: an extension,
    by which a link of long delay is poor at any rate.
    """
    goodput = min(1.0, math.log10(max(1.0, csi.uplink_mbps * (1 - csi.per_up))) / math.log10(BEST_MBPS))
    if kind == "goodput":
        return goodput
    return (goodput + max(0.0, 1 - math.log10(max(1.0, csi.rtt_ms)) / math.log10(WORST_RTT_MS))) / 2


PERFECT = Csi(BEST_MBPS, BEST_MBPS, 1.0)
"""A link of quality 1, on which a head is least permissive. Relabelling keeps the original labels on it, and a round
without channel state is judged as if it ran on it."""
