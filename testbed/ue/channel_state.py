"""Where the channel state of a run comes from: given, replayed beside a trace, or measured from the rounds."""

from __future__ import annotations

from typing import Protocol

import msgspec

from testbed.channel.csi import Csi
from testbed.channel.measuring.passive import PassiveMeter
from testbed.channel.trace import Trace
from testbed.clock import Clock
from testbed.ue.records import RoundRecord


class ChannelState(Protocol):
    """Asked before every round, told after it."""

    def now(self) -> Csi | None:
        """The state that rides with the next round; None: not known."""

    def observe(self, record: RoundRecord) -> None:
        """A round over the link ended."""


class Unknown:
    """Nothing is known."""

    def now(self) -> Csi | None:
        """None."""
        return None

    def observe(self, record: RoundRecord) -> None:
        """Nothing is learnt."""


class Given:
    """A link that is what it was set to."""

    def __init__(self, csi: Csi, clock: Clock) -> None:
        self._csi, self._clock, self._start_s = csi, clock, clock.time()

    def now(self) -> Csi | None:
        """The same state, at this time."""
        return msgspec.structs.replace(self._csi, time_s=self._clock.time() - self._start_s)

    def observe(self, record: RoundRecord) -> None:
        """Nothing is learnt."""


class Replayed:
    """A link that follows a trace.

    Args:
        origin_s: when the replay began, on the clock.
    """

    def __init__(self, trace: Trace, clock: Clock, origin_s: float) -> None:
        self._trace, self._clock, self._origin_s = trace, clock, origin_s

    def now(self) -> Csi | None:
        """What the trace says of this time."""
        return self._trace.csi(max(0.0, self._clock.time() - self._origin_s))

    def observe(self, record: RoundRecord) -> None:
        """Nothing is learnt."""


class Measured:
    """A link that is measured from the rounds themselves, starting from a prior."""

    def __init__(self, prior: Csi, clock: Clock) -> None:
        self._meter, self._clock, self._start_s = PassiveMeter(prior), clock, clock.time()

    def now(self) -> Csi | None:
        """The estimate so far."""
        return self._meter.csi()

    def observe(self, record: RoundRecord) -> None:
        """Learn from a round's bytes and its time on the link."""
        trips = 2 if record.queried else 1
        now_s = self._clock.time() - self._start_s
        self._meter.update(record.uplink_bytes, record.downlink_bytes, trips, record.link_s, now_s)
