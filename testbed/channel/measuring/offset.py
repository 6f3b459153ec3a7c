"""Clock offset between two hosts, from handshakes that carry the other host's time.

As in NTP (RFC 5905, Section 8), the handshake with the shortest round trip is used, since queues only add delay. The
answer was sent at some time within that round trip, so the error is at most half of it, however asymmetric the path is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from testbed.errors import BadInput


class Handshake(NamedTuple):
    """A request and its answer; times in seconds, the first and the last on this host's clock."""

    sent_s: float
    answered_s: float
    """Time on the other host's clock."""
    received_s: float

    @property
    def seconds(self) -> float:
        """Round-trip time."""
        return self.received_s - self.sent_s


class Offset(msgspec.Struct, frozen=True):
    """Offset of the other host's clock: its time minus ours."""

    offset_s: float
    error_s: float
    """Largest error if both clocks run at the same rate: half the shortest round trip."""
    n: int
    """Number of handshakes."""

    def ours(self, theirs_s: float) -> float:
        """Convert a time of the other host's clock to ours."""
        return theirs_s - self.offset_s


def clock_offset(handshakes: Sequence[Handshake]) -> Offset:
    """Estimate the offset.

    Raises:
        BadInput: no handshakes, times that are not finite, or an answer received before its request was sent.
    """
    good = all(map(math.isfinite, (t for handshake in handshakes for t in handshake)))
    if not handshakes or not good or any(handshake.seconds < 0 for handshake in handshakes):
        raise BadInput(f"an offset needs handshakes whose answers follow their requests, not {list(handshakes)[:4]}")
    best = min(handshakes, key=lambda handshake: handshake.seconds)
    return Offset(best.answered_s - (best.sent_s + best.received_s) / 2, best.seconds / 2, len(handshakes))
