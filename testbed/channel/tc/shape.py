"""Parameters of a link that `tc` can emulate: of one direction (`LinkShape`) and of both (`Duplex`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from testbed.channel.trace import Trace
from testbed.errors import BadInput

LEAST_MBPS, MOST_MBPS = 1e-3, 1e5
OUTAGE_MBPS = 0.1
"""Lower limit of a trace's rates, 0 included. netem computes a packet's departure when it arrives, so that a lower rate
would hold packets long after the outage; in netem, a rate of 0 means no limit."""
MOST_DELAY_MS = 60_000.0
FRAME_BYTES = 1514
"""An Ethernet frame with an MTU of 1500 bytes."""
TC_PAYLOAD = 1448 / FRAME_BYTES
"""Share of the rate of full frames that TCP's payload has."""


@dataclass(frozen=True)
class LinkShape:
    """One direction of a link.

    Raises:
        BadInput: a value out of range, or values that cannot be combined.
    """

    rate_mbps: float | None = None
    """None: no limit."""
    delay_ms: float = 0.0
    """One-way delay."""
    jitter_ms: float = 0.0
    """Half-width of the uniform jitter; without a rate, packets overtake each other."""
    correlation: float = 0.0
    """Correlation of a packet's delay with that of the previous packet, in [0, 1)."""
    loss: float = 0.0
    """Probability that a packet is dropped, independent of others, in [0, 1]."""
    gilbert: tuple[float, float] | None = None
    """(p, r): bursty losses after Gilbert, "Capacity of a burst-noise channel", 1960. p and r, in (0, 1], are the
    probabilities per packet of going from good to bad and back, and all packets in the bad state are lost: a share of
    p/(p + r), in bursts of 1/r on average."""
    queue_ms: float = 100.0
    """Capacity of the queue before a limited rate, as time to send it; further packets are dropped."""

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
        """Whether it has a rate only, which needs no netem."""
        return not (self.delay_ms or self.loss or self.gilbert)

    @property
    def unlimited(self) -> bool:
        """Whether it has no effect."""
        return self.plain and self.rate_mbps is None

    def queue_bytes(self, frame_bytes: int = FRAME_BYTES) -> int:
        """Capacity of the queue in bytes: `queue_ms` at the rate, at least ten frames.

        Raises:
            BadInput: no rate.
        """
        if self.rate_mbps is None:
            raise BadInput("the length of a queue depends on the rate, and there is none")
        return max(10 * frame_bytes, math.ceil(self.rate_mbps * 1e3 / 8 * self.queue_ms))

    @property
    def packets(self) -> int:
        """Number of packets that a qdisc must hold: full frames in the delay and in the queue, at least a hundred,
        since a queue of acknowledgements has many packets and few bytes.
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
        """Whether neither direction needs netem."""
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
        """A link with half of the RTT in each direction; jitter, correlation and bursts are the same in both.

        Raises:
            BadInput: as `LinkShape`.
        """
        both = (rtt_ms / 2, jitter_ms, correlation)
        return Duplex(
            LinkShape(uplink_mbps, *both, per_up, gilbert), LinkShape(downlink_mbps, *both, per_down, gilbert)
        )

    @staticmethod
    def at(trace: Trace, index: int) -> Duplex:
        """The state in sample `index` of a trace; rates are at least `OUTAGE_MBPS`."""
        return Duplex.of(
            min(MOST_MBPS, max(OUTAGE_MBPS, float(trace.uplink_mbps[index]))),
            min(MOST_MBPS, max(OUTAGE_MBPS, float(trace.downlink_mbps[index]))),
            float(trace.rtt_ms[index]),
            float(trace.per_up[index]),
            float(trace.per_down[index]),
        )
