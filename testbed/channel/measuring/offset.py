"""The offset between the clocks of two hosts, out of handshakes that carry the other side's time.

As NTP has it (RFC 5905, Section 8): of all handshakes the one with the shortest round trip is believed, since queues
only ever add. The answer was written somewhere within that round trip, so the error is half of it at most, whatever
the two ways share it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from testbed.errors import BadInput


class Handshake(NamedTuple):
    """One question and its answer, in seconds; the first and the last on this side's clock."""

    sent_s: float
    answered_s: float
    """On the other side's clock."""
    received_s: float

    @property
    def seconds(self) -> float:
        """The round trip."""
        return self.received_s - self.sent_s


class Offset(msgspec.Struct, frozen=True):
    """The other side's clock less ours."""

    offset_s: float
    error_s: float
    """The most that it is off by, for clocks that run alike: half the shortest round trip."""
    n: int
    """Handshakes."""

    def ours(self, theirs_s: float) -> float:
        """A time of the other side's clock on ours."""
        return theirs_s - self.offset_s


def clock_offset(handshakes: Sequence[Handshake]) -> Offset:
    """Estimate the offset.

    Raises:
        BadInput: no handshakes, times that are not finite, or an answer before its question.
    """
    good = all(map(math.isfinite, (t for handshake in handshakes for t in handshake)))
    if not handshakes or not good or any(handshake.seconds < 0 for handshake in handshakes):
        raise BadInput(f"an offset needs handshakes whose answers follow their questions, not {list(handshakes)[:4]}")
    best = min(handshakes, key=lambda handshake: handshake.seconds)
    return Offset(best.answered_s - (best.sent_s + best.received_s) / 2, best.seconds / 2, len(handshakes))
