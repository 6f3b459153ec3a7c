"""Sources of a run's channel state: given, read from a replayed trace, or estimated from the rounds."""

from __future__ import annotations

from typing import Protocol

import msgspec

from testbed.channel.csi import Csi
from testbed.channel.measuring.passive import PassiveMeter
from testbed.channel.trace import Trace
from testbed.clock import Clock
from testbed.protocols.methods import round_trips
from testbed.ue.records import RoundRecord


class ChannelState(Protocol):
    """Provides the channel state before every round, and is told of each round's record."""

    def now(self) -> Csi | None:
        """Channel state for the next round; None: unknown."""

    def observe(self, record: RoundRecord) -> None:
        """Take note of a finished round."""


class UnknownChannel:
    """An unknown channel state."""

    def now(self) -> Csi | None:
        """None."""
        return None

    def observe(self, record: RoundRecord) -> None:
        """Ignored."""


class ConstantChannel:
    """A constant channel state, such as that of an emulated link."""

    def __init__(self, csi: Csi, clock: Clock) -> None:
        self._csi, self._clock, self._start_s = csi, clock, clock.time()

    def now(self) -> Csi | None:
        """The state, with the current time."""
        return msgspec.structs.replace(self._csi, time_s=self._clock.time() - self._start_s)

    def observe(self, record: RoundRecord) -> None:
        """Ignored."""


class TraceChannel:
    """The channel state of a trace that is replayed.

    Args:
        origin_s: start of the replay on the clock.
    """

    def __init__(self, trace: Trace, clock: Clock, origin_s: float) -> None:
        self._trace, self._clock, self._origin_s = trace, clock, origin_s

    def now(self) -> Csi | None:
        """The trace's state at the current time."""
        return self._trace.csi(max(0.0, self._clock.time() - self._origin_s))

    def observe(self, record: RoundRecord) -> None:
        """Ignored."""


class MeasuredChannel:
    """A channel state estimated from the rounds, starting from a prior."""

    def __init__(self, prior: Csi, clock: Clock) -> None:
        self._meter, self._clock, self._start_s = PassiveMeter(prior), clock, clock.time()

    def now(self) -> Csi | None:
        """The current estimate."""
        return self._meter.csi()

    def observe(self, record: RoundRecord) -> None:
        """Update the estimate with a round's bytes and its time on the link."""
        trips = round_trips(record.protocol, record.queried)
        now_s = self._clock.time() - self._start_s
        self._meter.update(record.uplink_bytes, record.downlink_bytes, trips, record.link_s, now_s)
