"""Channel state information (CSI): what a round knows of the link it runs over."""

from __future__ import annotations

import math

import msgspec

from testbed.errors import BadInput


class Csi(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """State of one link, as measured, emulated or assumed; it rides in the header of every `Draft`.

    Raises:
        BadInput: a rate or RTT that is not positive and finite, or a packet error rate outside [0, 1).
    """

    uplink_mbps: float
    downlink_mbps: float
    rtt_ms: float
    per_up: float = 0.0
    """Uplink packet error rate."""
    per_down: float = 0.0

    def __post_init__(self) -> None:
        for name in ("uplink_mbps", "downlink_mbps", "rtt_ms"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise BadInput(f"{name} must be positive and finite, not {value}")
        for name in ("per_up", "per_down"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise BadInput(f"{name} must lie in [0, 1), not {value}")
