"""What `tc` makes of a link: the shape of one direction, and of both."""

from __future__ import annotations

import math
from dataclasses import dataclass

from testbed.channel.trace import Trace
from testbed.errors import BadInput

LEAST_MBPS, MOST_MBPS = 1e-3, 1e5
OUTAGE_MBPS = 0.1
"""What lower rates of a trace become, 0 included. netem fixes a packet's time when it comes in, so that a lower rate
would hold packets long after the outage; to netem a rate of 0 means none at all."""
MOST_DELAY_MS = 60_000.0
FRAME_BYTES = 1514
"""An Ethernet frame with an MTU of 1500 bytes."""


@dataclass(frozen=True)
class LinkShape:
    """One direction of a link.

    Raises:
        BadInput: a value out of its range, or values that do not go together.
    """

    rate_mbps: float | None = None
    """None: no limit."""
    delay_ms: float = 0.0
    """One way."""
    jitter_ms: float = 0.0
    """Each packet's delay is uniform within ± this; without a rate, packets overtake each other."""
    correlation: float = 0.0
    """Share of a packet's delay that follows that of the packet before it, in [0, 1)."""
    loss: float = 0.0
    """Share of packets dropped, each by itself, in [0, 1]."""
    gilbert: tuple[float, float] | None = None
    """(p, r): losses in bursts after Gilbert, "Capacity of a burst-noise channel", 1960. p and r, in (0, 1], are the
    chances to go from good to bad and back at every packet, and all packets of the bad state are lost: p/(p + r) of
    all, 1/r in a row."""
    queue_ms: float = 100.0
    """How long the queue before a limited rate can become, in time to send it; what comes on top is dropped."""

    def __post_init__(self) -> None:
        if self.rate_mbps is not None and not LEAST_MBPS <= self.rate_mbps <= MOST_MBPS:
            raise BadInput(f"a rate must lie in [{LEAST_MBPS:g}, {MOST_MBPS:g}] Mbit/s, not {self.rate_mbps}")
        for name, least_ms in (("delay_ms", 0.0), ("jitter_ms", 0.0), ("queue_ms", 1.0)):
            if not least_ms <= getattr(self, name) <= MOST_DELAY_MS:
                raise BadInput(f"{name} must lie in [{least_ms:g}, {MOST_DELAY_MS:g}], not {getattr(self, name)}")
        if self.jitter_ms > self.delay_ms:
            raise BadInput(f"a jitter of ±{self.jitter_ms:g} ms needs a delay of at least that, not {self.delay_ms:g}")
        if not 0 <= self.correlation < 1:
            raise BadInput(f"a correlation must lie in [0, 1), not {self.correlation}")
        if self.correlation and not self.jitter_ms:
            raise BadInput("a correlation of delays needs a jitter_ms")
        if not 0 <= self.loss <= 1:
            raise BadInput(f"a loss must lie in [0, 1], not {self.loss}")
        if self.gilbert is not None:
            if not all(0 < chance <= 1 for chance in self.gilbert):
                raise BadInput(f"gilbert takes two chances (p, r) in (0, 1], not {self.gilbert}")
            if self.loss:
                raise BadInput("give a loss or gilbert=(p, r), not both")

    @property
    def plain(self) -> bool:
        """Whether it is a rate at most, which needs no netem."""
        return not (self.delay_ms or self.loss or self.gilbert)

    @property
    def unlimited(self) -> bool:
        """Whether it changes nothing."""
        return self.plain and self.rate_mbps is None

    def queue_bytes(self, frame_bytes: int = FRAME_BYTES) -> int:
        """Bytes that may wait before the rate: `queue_ms` of them, but never less than ten frames.

        Raises:
            BadInput: there is no rate.
        """
        if self.rate_mbps is None:
            raise BadInput("a queue is as long as its rate says, and there is none")
        return max(10 * frame_bytes, math.ceil(self.rate_mbps * 1e3 / 8 * self.queue_ms))

    @property
    def packets(self) -> int:
        """Packets that a qdisc must hold: full frames on their way through the delay and in the queue.

        At least a hundred: a queue of acknowledgements has many packets and few bytes.
        """
        held_ms = self.delay_ms + self.jitter_ms + self.queue_ms
        rate_mbps = MOST_MBPS / 10 if self.rate_mbps is None else self.rate_mbps
        return max(100, math.ceil(rate_mbps * 1e3 / 8 * held_ms / FRAME_BYTES))


@dataclass(frozen=True)
class Duplex:
    """Both directions of one UE's link."""

    up: LinkShape = LinkShape()
    down: LinkShape = LinkShape()

    @property
    def plain(self) -> bool:
        """Whether both directions need no netem."""
        return self.up.plain and self.down.plain

    @staticmethod
    def of(
        uplink_mbps: float | None = None,
        downlink_mbps: float | None = None,
        rtt_ms: float = 0.0,
        per_up: float = 0.0,
        per_down: float = 0.0,
        jitter_ms: float = 0.0,
        correlation: float = 0.0,
        gilbert: tuple[float, float] | None = None,
    ) -> Duplex:
        """Half of the RTT goes each way; jitter (each way), its correlation and bursts of loss are those of both.

        Raises:
            BadInput: as `LinkShape`.
        """
        both = (rtt_ms / 2, jitter_ms, correlation)
        return Duplex(
            LinkShape(uplink_mbps, *both, per_up, gilbert), LinkShape(downlink_mbps, *both, per_down, gilbert)
        )

    @staticmethod
    def at(trace: Trace, index: int) -> Duplex:
        """The state in sample `index` of a trace; rates below `OUTAGE_MBPS` become that."""
        return Duplex.of(
            min(MOST_MBPS, max(OUTAGE_MBPS, float(trace.uplink_mbps[index]))),
            min(MOST_MBPS, max(OUTAGE_MBPS, float(trace.downlink_mbps[index]))),
            float(trace.rtt_ms[index]),
            float(trace.per_up[index]),
            float(trace.per_down[index]),
        )
