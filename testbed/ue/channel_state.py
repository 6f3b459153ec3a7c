"""Sources of a run's channel state: given, read from a replayed trace, reported, or estimated from what is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from testbed.channel.csi import Csi, single
from testbed.channel.measuring.passive import PassiveMeter
from testbed.channel.measuring.reading import RadioReading
from testbed.channel.measuring.reports import Reports
from testbed.channel.trace import Trace
from testbed.clock import Clock
from testbed.protocols.methods import round_trips
from testbed.ue.records import RoundRecord

Handshake = Callable[[], Awaitable[float]]
"""Measures the RTT in seconds."""


class ChannelState(Protocol):
    """Provides the channel state before every round, and observes each round's record."""

    async def begin(self) -> None:
        """Called before every request, outside its latency."""

    def now(self) -> Csi | None:
        """Channel state for the next round; None: unknown."""

    def observe(self, record: RoundRecord) -> None:
        """Take note of a finished round."""


class KnownChannel(ChannelState, Protocol):
    """The channel state of a link that is known at all times, such as an emulated one."""

    origin_s: float
    """Start of the link on the clock."""

    def at(self, time_s: float) -> Csi:
        """The state at a time since `origin_s`."""


class UnknownChannel:
    """An unknown channel state."""

    async def begin(self) -> None:
        """Nothing to do."""

    def now(self) -> Csi | None:
        """None."""
        return None

    def observe(self, record: RoundRecord) -> None:
        """Ignored."""


UNKNOWN = UnknownChannel()


class ConstantChannel:
    """A constant channel state, such as that of an emulated link."""

    def __init__(self, csi: Csi, clock: Clock) -> None:
        self._csi, self._clock, self.origin_s = csi, clock, clock.time()

    async def begin(self) -> None:
        """Nothing to do."""

    def at(self, time_s: float) -> Csi:
        """The state, with a time since `origin_s`."""
        return msgspec.structs.replace(self._csi, time_s=single(time_s))

    def now(self) -> Csi | None:
        """The state, with the current time."""
        return self.at(self._clock.time() - self.origin_s)

    def observe(self, record: RoundRecord) -> None:
        """Ignored."""


class TraceChannel:
    """The channel state of a trace that is replayed.

    Args:
        origin_s: start of the replay on the clock.
    """

    def __init__(self, trace: Trace, clock: Clock, origin_s: float) -> None:
        self._trace, self._clock, self.origin_s = trace, clock, origin_s

    async def begin(self) -> None:
        """Nothing to do."""

    def at(self, time_s: float) -> Csi:
        """The trace's state at a time since `origin_s`."""
        csi = self._trace.csi(max(0.0, time_s))
        return msgspec.structs.replace(csi, time_s=single(csi.time_s))

    def now(self) -> Csi | None:
        """The trace's state at the current time."""
        return self.at(self._clock.time() - self.origin_s)

    def observe(self, record: RoundRecord) -> None:
        """Ignored."""


class HandshakeChannel:
    """The RTT as measured by handshakes before every request (WISV Section VII-B); the rates stay as assumed.

    Args:
        assumed: rates and packet error rates.
    """

    def __init__(self, handshake: Handshake, assumed: Csi, clock: Clock) -> None:
        self._handshake, self._csi, self._clock, self._start_s = handshake, assumed, clock, clock.time()

    async def begin(self) -> None:
        """Measure the RTT."""
        rtt_s = await self._handshake()
        time_s = single(self._clock.time() - self._start_s)
        self._csi = msgspec.structs.replace(self._csi, rtt_ms=single(rtt_s * 1e3), time_s=time_s, source="handshake")

    def now(self) -> Csi | None:
        """The latest measurement."""
        return self._csi

    def observe(self, record: RoundRecord) -> None:
        """Ignored."""


class ReportedChannel:
    """Reports of a known link's rates, and the RTT of handshakes, which no report carries.

    Args:
        truth: the link's state.
    """

    def __init__(self, truth: KnownChannel, reports: Reports, rtt: HandshakeChannel, clock: Clock) -> None:
        self._truth, self._reports, self._rtt, self._clock = truth, reports, rtt, clock

    async def begin(self) -> None:
        """Measure the RTT."""
        await self._rtt.begin()

    def now(self) -> Csi | None:
        """The newest report in use, with the latest RTT."""
        index = self._reports.index(self._clock.time() - self._truth.origin_s)
        report, rtt = self._reports.report(self._truth.at(self._reports.measured_s(index)), index), self._rtt.now()
        assert rtt is not None
        return msgspec.structs.replace(report, rtt_ms=rtt.rtt_ms)

    def observe(self, record: RoundRecord) -> None:
        """Ignored."""


class MeasuredChannel:
    """A channel state estimated from the rounds, starting from a prior.

    Args:
        read: reads SNR and signal level before every request; None: they are not known.
    """

    def __init__(self, prior: Csi, clock: Clock, read: Callable[[], RadioReading] | None = None) -> None:
        self._meter, self._clock, self._start_s = PassiveMeter(prior), clock, clock.time()
        self._read, self._reading = read, RadioReading()

    async def begin(self) -> None:
        """Read the radio."""
        if self._read is not None:
            self._reading = await asyncio.to_thread(self._read)

    def now(self) -> Csi | None:
        """The current estimate."""
        csi = self._meter.csi()
        numbers = ("uplink_mbps", "downlink_mbps", "rtt_ms", "time_s")
        rounded = msgspec.structs.replace(csi, **{name: single(getattr(csi, name)) for name in numbers})
        if self._read is None:
            return rounded
        levels = {name: None if value is None else single(value) for name, value in self._reading._asdict().items()}
        return msgspec.structs.replace(rounded, **levels)

    def observe(self, record: RoundRecord) -> None:
        """Update the estimate with a round's bytes and its time on the link."""
        trips = round_trips(record.protocol, record.queried)
        now_s = self._clock.time() - self._start_s
        self._meter.update(record.uplink_bytes, record.downlink_bytes, trips, record.link_s, now_s)
