"""Fluid model of one direction of a link: given when bytes enter, it returns when the last of them arrives.

The proxy and the virtual link both use this model, so that emulated and virtual runs see the same link. A link serves
bytes in order at its rate (a token bucket without burst), retransmits lost packets, and then delays each packet:
arrival = end of its first transmission + recovery of its losses + delay ± jitter. Order is kept, and a message arrives
with its last packet.
"""

from __future__ import annotations

import abc
import asyncio
import bisect
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput

PIECE_S = 0.002
"""Duration of a piece of relayed data."""
SLACK_S, SLACK_BYTES = 0.05, 2**18
"""Buffer of a relayed direction beyond its bandwidth–delay product."""
FREE_HOLD_BYTES = 2**26
"""Buffer of a relayed direction with a delay but no rate limit."""
PACKET_BYTES = 1500
"""Size of a packet, the unit of loss, retransmission and jitter; also stands for a transport block."""
LEAST_MBPS, MOST_MBPS = 1e-6, 1e12
"""Least rate of a link, as of channel states: that of a constant one, or the mean of one that repeats. And the largest
finite one.
"""
LEAST_PIECE_S = 1e-9
"""Shortest time for which a link's state lasts."""
MOST_RTT_MS = 86_400e3
"""Longest RTT: the longest that a message can state."""


@dataclass(frozen=True)
class Recovery:
    """Time until a lost packet is sent again: by HARQ, or by RLC once HARQ has used all its attempts.

    It adds to the air time of the repetitions and does not hold the link: packets behind are sent meanwhile.

    Raises:
        BadInput: negative times, an RLC delay shorter than a HARQ round trip, or no attempt.
    """

    harq_rtt_s: float = 0.0
    """Time from the end of a transmission to its repetition; 0: repetitions cost air time only (WISV eqs. 6, 10)."""
    attempts: int = 4
    """Transmissions of a packet before HARQ gives up."""
    rlc_s: float = 0.0
    """The same after the last attempt, by RLC."""

    def __post_init__(self) -> None:
        if not 0 <= self.harq_rtt_s <= self.rlc_s < math.inf:
            raise BadInput(
                f"an RLC retransmission takes at least as long as a HARQ round trip, not {self.rlc_s * 1e3:g} ms and "
                f"{self.harq_rtt_s * 1e3:g} ms"
            )
        if self.attempts < 1:
            raise BadInput(f"HARQ needs at least 1 attempt, not {self.attempts}")

    def delay_s(self, losses: NDArray[np.int64]) -> NDArray[np.float64]:
        """[n] delays of packets that were lost [n] times."""
        by_rlc = losses // self.attempts
        delays: NDArray[np.float64] = by_rlc * self.rlc_s + (losses - by_rlc) * self.harq_rtt_s
        return delays


AIR_TIME_ONLY = Recovery()


@dataclass(frozen=True)
class Schedule:
    """State of one direction over time, piecewise constant, from the start of the emulation.

    Args:
        t_s: when each piece begins, increasing from 0.
        rate_mbps: rate of each piece; infinity means no limit, 0 an outage.
        delay_s: one-way propagation delay of each piece.
        per: packet error rate of each piece, in [0, 1).
        duration_s: period after which the pieces repeat; None: the last piece holds forever.

    Raises:
        BadInput: different numbers of times and values, times that do not increase from 0, negative or undefined
            values, or a rate that stays 0 or below `LEAST_MBPS`.
    """

    t_s: Sequence[float]
    rate_mbps: Sequence[float]
    delay_s: Sequence[float]
    per: Sequence[float]
    duration_s: float | None = None

    def __post_init__(self) -> None:
        count = len(self.t_s)
        if not count or {len(self.rate_mbps), len(self.delay_s), len(self.per)} != {count}:
            raise BadInput("a schedule needs one rate, delay and packet error rate for each of its times")
        if self.t_s[0] != 0 or any(not b - a >= LEAST_PIECE_S for a, b in itertools.pairwise(self.t_s)):
            raise BadInput(f"the times of a schedule must increase from 0, by {LEAST_PIECE_S:g} s or more")
        if self.duration_s is not None and not LEAST_PIECE_S <= self.duration_s - self.t_s[-1] < math.inf:
            raise BadInput(f"a schedule of {self.t_s[-1]:g} s cannot repeat every {self.duration_s:g} s")
        for name, values in (("rate_mbps", self.rate_mbps), ("delay_s", self.delay_s)):
            if any(not value >= 0 for value in values):
                raise BadInput(f"{name} must not be negative")
        if any(MOST_MBPS < value < math.inf for value in self.rate_mbps):
            raise BadInput(f"rate_mbps must be at most {MOST_MBPS:g}, or infinite for no limit")
        if any(not 0 <= p < 1 for p in self.per) or math.inf in self.delay_s:
            raise BadInput("packet error rates must lie in [0, 1), and delays be finite")
        if not any(self.rate_mbps) or (self.duration_s is None and not self.rate_mbps[-1]):
            raise BadInput("nothing ever passes a link whose rate ends at 0")
        if (mean_mbps := self._mean_mbps) < LEAST_MBPS * (1 - 1e-9):
            raise BadInput(f"a link carries {LEAST_MBPS:g} Mbit/s or more in the long run, not {mean_mbps:g}")

    @property
    def free(self) -> bool:
        """Whether it has no rate limit, no delay and no loss."""
        return set(self.rate_mbps) == {math.inf} and not any(self.delay_s) and not any(self.per)

    def piece(self, t_s: float) -> tuple[int, float]:
        """Index of the piece at a time, and when that piece ends (infinity: never)."""
        lap_s = 0.0
        if self.duration_s is not None:
            lap_s = t_s // self.duration_s * self.duration_s
        index = max(0, bisect.bisect_right(self.t_s, t_s - lap_s) - 1)
        if index + 1 < len(self.t_s):
            return index, lap_s + self.t_s[index + 1]
        return index, math.inf if self.duration_s is None else lap_s + self.duration_s

    def served_s(self, start_s: float, bits: float) -> float:
        """Time at which `bits` that enter at `start_s` are served, i.e. when the integral of the rate reaches them."""
        index, end_s = self.piece(start_s)
        first, left_s = index, max(0.0, end_s - start_s)
        while True:
            rate = self.rate_mbps[index] * 1e6
            room = rate * left_s if rate and left_s else 0.0
            if rate and room >= bits:
                return start_s + bits / rate
            bits, start_s = bits - room, start_s + left_s
            index = (index + 1) % len(self.t_s)
            if index == first and self.duration_s is not None:  # a whole lap has passed: skip those that do not suffice
                lap_bits = self._mean_mbps * 1e6 * self.duration_s
                if bits > lap_bits:
                    laps = -(-bits // lap_bits) - 1
                    start_s, bits = start_s + laps * self.duration_s, max(0.0, bits - laps * lap_bits)
            left_s = self._lasts_s[index]

    @cached_property
    def _lasts_s(self) -> list[float]:
        """Duration of each piece; not the difference of two moments, which may be 0 late in a run."""
        end_s = math.inf if self.duration_s is None else self.duration_s
        return [end - start for start, end in zip(self.t_s, [*self.t_s[1:], end_s], strict=True)]

    @cached_property
    def _mean_mbps(self) -> float:
        """Mean rate of a lap, or the last rate of a schedule that does not repeat."""
        if self.duration_s is None:
            return self.rate_mbps[-1]
        passed = math.fsum(rate * last_s for rate, last_s in zip(self.rate_mbps, self._lasts_s, strict=True))
        return passed / self.duration_s


def constant(rate_mbps: float = math.inf, delay_s: float = 0.0, per: float = 0.0) -> Schedule:
    """Schedule of a link that never changes."""
    return Schedule([0.0], [rate_mbps], [delay_s], [per])


class OneWay(Protocol):
    """One direction of a link; a pair of them, up and down, is a UE's link."""

    def carry(self, size_bytes: float, deliver: Callable[[], None]) -> None:
        """Send a message now; `deliver` is called on the running event loop when it arrives, never out of order."""


class Carrier(OneWay, Protocol):
    """One direction of a relayed connection."""

    @property
    def free(self) -> bool:
        """Whether data need not be held at all."""

    @property
    def hold_bytes(self) -> float:
        """Buffer after which reading stops, so that the sender sees backpressure as from a router with a full queue."""

    def piece_bytes(self, now_s: float) -> int:
        """Size of the pieces into which received data are split."""


class Private(abc.ABC):
    """Implements `OneWay` for a link of one UE alone, where the time of arrival is known when a message is sent."""

    @abc.abstractmethod
    def admit(self, now_s: float, size_bytes: float) -> float:
        """Take a message in at `now_s` (never earlier than before) and return when it arrives, never out of order."""

    def carry(self, size_bytes: float, deliver: Callable[[], None]) -> None:
        """See `OneWay.carry`."""
        loop = asyncio.get_running_loop()
        loop.call_at(self.admit(loop.time(), size_bytes), deliver)


class Direction(Private):
    """Implements `OneWay`: one direction of one link, with the bytes in flight.

    Packet errors cost link-layer retransmissions: the number of transmissions of a packet is geometric with the PER at
    the time when it starts, so that B bits take B / (R·(1 − p)) of air time on average (WISV eqs. 6, 10).

    Args:
        jitter_s: half-width of the uniform jitter of each packet's delay, as in netem; order is kept.
        seed: seed of errors and jitter.
        origin_s: when the schedule begins, on the caller's clock.
        recovery: delay of lost packets beyond their air time.

    Raises:
        BadInput: a jitter that is negative, or longer than the shortest delay.
    """

    def __init__(
        self,
        schedule: Schedule,
        jitter_s: float = 0.0,
        seed: Sequence[int] = (0,),
        origin_s: float = 0.0,
        recovery: Recovery = AIR_TIME_ONLY,
    ):
        if not 0 <= jitter_s <= min(schedule.delay_s) + 1e-12:
            raise BadInput(
                f"a jitter of ±{jitter_s * 1e3:g} ms needs a one-way delay of at least that, not "
                f"{min(schedule.delay_s) * 1e3:g} ms"
            )
        self.schedule, self.jitter_s, self.origin_s, self.recovery = schedule, jitter_s, origin_s, recovery
        self._free = schedule.free and not jitter_s
        self._rng = np.random.default_rng(list(seed))
        self._served_s = self._arrived_s = -math.inf

    @property
    def free(self) -> bool:
        """See `Carrier.free`."""
        return self._free

    @property
    def hold_bytes(self) -> float:
        """See `Carrier.hold_bytes`: beyond the bandwidth–delay product."""
        fastest = max(self.schedule.rate_mbps)
        if math.isinf(fastest):
            return FREE_HOLD_BYTES
        flight_s = max(self.schedule.delay_s) + self.jitter_s
        if any(self.schedule.per):
            flight_s += self.recovery.rlc_s
        return SLACK_BYTES + fastest * 1e6 / 8 * (flight_s + SLACK_S)

    def piece_bytes(self, now_s: float) -> int:
        """See `Carrier.piece_bytes`: what takes about `PIECE_S` to serve."""
        index, _ = self.schedule.piece(max(0.0, now_s - self.origin_s))
        rate_mbps = self.schedule.rate_mbps[index]
        if math.isinf(rate_mbps):
            return SLACK_BYTES
        return max(PACKET_BYTES, int(rate_mbps * 1e6 / 8 * PIECE_S))

    def admit(self, now_s: float, size_bytes: float) -> float:
        """Arrival time of the last of `size_bytes` that enter at `now_s`, which must not decrease between calls."""
        start_s = max(now_s - self.origin_s, self._served_s)
        index, _ = self.schedule.piece(start_s)
        packets, bits, per = math.ceil(size_bytes / PACKET_BYTES), 8 * size_bytes, self.schedule.per[index]
        losses = self._rng.geometric(1 - per, packets) - 1 if per and packets else None
        if losses is not None:
            bits *= 1 + int(losses.sum()) / packets
        self._served_s = self.schedule.served_s(start_s, bits)
        index, _ = self.schedule.piece(self._served_s)
        late_s = self._late_s(losses, packets, self._served_s - start_s) + self.schedule.delay_s[index]
        self._arrived_s = max(self._arrived_s, self._served_s + late_s)
        return self._arrived_s + self.origin_s

    def _late_s(self, losses: NDArray[np.int64] | None, packets: int, served_s: float) -> float:
        """Time from the last transmission to the last packet's arrival, without the delay; negative by jitter only."""
        if not packets or (losses is None and not self.jitter_s):
            return 0.0
        late = np.zeros(packets) if losses is None else self.recovery.delay_s(losses)
        if self.jitter_s:
            late = late + self._rng.uniform(-self.jitter_s, self.jitter_s, packets)
        late = late - served_s * np.arange(packets - 1, -1, -1) / packets  # earlier packets were sent earlier
        return float(late.max())


class RoundDelay(Private):
    """Implements `OneWay`: bytes at a rate, then half of a round's delay; see `round_delay`.

    Args:
        mean_s: delay of a round there and back until the first message.
        draw: the same, for each message.
        rate_mbps: rate; infinity: bytes take no time.
    """

    def __init__(self, mean_s: float, draw: Callable[[], float], rate_mbps: float = math.inf) -> None:
        self._draw, self.round_s, self._arrived_s = draw, mean_s, -math.inf
        self._rate_mbps, self._served_s = rate_mbps, -math.inf

    def admit(self, now_s: float, size_bytes: float) -> float:
        """See `Private.admit`."""
        self.round_s = self._draw()
        self._served_s = max(self._served_s, now_s) + 8e-6 * size_bytes / self._rate_mbps
        self._arrived_s = max(self._arrived_s, self._served_s + self.round_s / 2)
        return self._arrived_s


def round_delay(
    mean_s: float, spread: float, seed: int, rates_mbps: tuple[float, float] = (math.inf, math.inf)
) -> tuple[RoundDelay, RoundDelay]:
    """A link whose rounds have random delays, uniform in `mean_s`·(1 ± `spread`): drawn on the way up, and half of it
    each way.

    Args:
        rates_mbps: up and down; the time of the bytes comes on top of the delay.
    """
    dice = random.Random(seed)
    up = RoundDelay(mean_s, lambda: mean_s * dice.uniform(1 - spread, 1 + spread), rates_mbps[0])
    return up, RoundDelay(mean_s, lambda: up.round_s, rates_mbps[1])
