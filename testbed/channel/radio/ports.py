"""Ports of a radio cell: the data of one direction of one UE, with HARQ, RLC and its average throughput."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from testbed.channel.link_model import PACKET_BYTES, SLACK_BYTES, SLACK_S
from testbed.channel.radio.config import RadioConfig
from testbed.channel.radio.sharing import Demand

TINY_BITS = 1e-3
"""Bits below which a remainder is rounding."""
MEAN_MEMORY = 0.99
"""Weight of the past in the mean rate, per slot with data."""
PF_MEMORY = 0.98
"""Weight of the past in the average throughput, per slot: the default of Sionna's proportional-fair scheduler."""
LEAST_AVERAGE_BITS = 1e-9
PEAK_EFFICIENCY = 6.0
"""Spectral efficiency [bit/s/Hz] for which the buffer of a relayed connection suffices."""


class Medium(Protocol):
    """What a port needs of its cell."""

    config: RadioConfig

    def granted(self, up: bool) -> int:
        """First slot that data which arrive now can use."""

    def wake(self, port: RadioPort) -> None:
        """Serve a port that has data again."""

    def deliver(self, callback: Callable[[], None]) -> None:
        """Call back after the wired part of the way."""


@dataclass
class Block:
    """Bits [`start`, `end`) of a port's stream, to be sent again."""

    start: float
    end: float
    attempt: int
    ready: int
    """First slot in which it can be sent."""

    @property
    def bits(self) -> float:
        """Length of the block."""
        return self.end - self.start


class RadioPort:
    """One direction of one UE in a cell.

    Attributes:
        weight: share of the bandwidth relative to others, for scheduler `weights`; may change at any time.
        sent_bytes: bytes of all messages so far.
        slots: slots in which it has sent.
        backlogged: slots in which it had data to send.
        used: sum of its shares of the bandwidth.
        free: see `Carrier.free`.
    """

    free = False

    def __init__(self, cell: Medium, ue: int, up: bool, weight: float) -> None:
        self._cell, self.ue, self.up, self.weight = cell, ue, up, weight
        self.sent_bytes, self.slots, self.backlogged, self.used = 0, 0, 0, 0.0
        self._messages: deque[tuple[float, float, Callable[[], None]]] = deque()
        self._end = self._next = 0.0
        """Length of the stream so far, and its first bit that was never sent."""
        self._again: list[Block] = []
        self._in_air: list[Block] = []
        """Blocks in the air."""
        self._granted = 0
        self._average, self._averaged = 1.0, -1
        self._mean_bits = 0.0
        self._closed = False

    def carry(self, size_bytes: float, deliver: Callable[[], None], due_s: float = math.inf) -> None:
        """Send a message; `deliver` is called when it has arrived at the other end, in order.

        Args:
            due_s: time on the loop's clock by which it should arrive, for scheduler `edf`.
        """
        if self._closed:
            return
        if not self.waiting:
            self._granted = self._cell.granted(self.up)
        self.sent_bytes += int(size_bytes)
        self._end += 8 * size_bytes
        self._messages.append((self._end, due_s, deliver))
        if self.waiting:
            self._cell.wake(self)
        elif not self._in_air:  # an empty message
            self._deliver()

    @property
    def hold_bytes(self) -> float:
        """See `Carrier.hold_bytes`: what the cell carries during `SLACK_S` at `PEAK_EFFICIENCY`."""
        return SLACK_BYTES + self._cell.config.bandwidth_hz * PEAK_EFFICIENCY / 8 * SLACK_S

    def piece_bytes(self, now_s: float) -> int:
        """See `Carrier.piece_bytes`."""
        return PACKET_BYTES

    @property
    def waiting(self) -> bool:
        """Whether bits wait to be sent for the first time or again."""
        return self._end - self._next > TINY_BITS or bool(self._again)

    def first_slot(self) -> int:
        """First slot in which it can send, if anything waits."""
        fresh = self._end - self._next > TINY_BITS
        if not self._again:
            return self._granted
        again = min(block.ready for block in self._again)
        return min(again, self._granted) if fresh else again

    def demand(self, slot: int, slot_bits: float) -> Demand | None:
        """Demand of the UE in a slot; None: nothing to send."""
        need = sum(block.bits for block in self._again if block.ready <= slot) if self._again else 0.0
        if slot >= self._granted:
            need += self._end - self._next
        if need <= TINY_BITS or slot_bits <= 0:
            return None
        due_s = self._messages[0][1] if self._messages else math.inf
        mean = self._mean_bits
        self._mean_bits = MEAN_MEMORY * mean + (1 - MEAN_MEMORY) * slot_bits if mean else slot_bits
        return Demand(need, slot_bits, self._average_bits(slot), self._mean_bits, self.weight, due_s)

    def take(self, slot: int, bits: float) -> list[Block]:
        """Take the parts of its stream that a transport block of `bits` carries: retransmissions first."""
        self._average = self._average_bits(slot) * PF_MEMORY + (1 - PF_MEMORY) * bits
        self._averaged = slot + 1
        parts = []
        for block in [block for block in self._again if block.ready <= slot]:
            if bits <= TINY_BITS:
                break
            part = Block(block.start, min(block.end, block.start + bits), block.attempt, slot)
            bits -= part.bits
            parts.append(part)
            if block.end - part.end > TINY_BITS:
                block.start = part.end
            else:
                self._again.remove(block)
        fresh = min(bits, self._end - self._next)
        if fresh > TINY_BITS and slot >= self._granted:
            parts.append(Block(self._next, self._next + fresh, 0, slot))
            self._next += fresh
        self._in_air += parts
        return parts

    def end_slot(self, parts: list[Block], lost: bool) -> None:
        """End of the slot in which `parts` were sent: deliver what is complete, or send it again later."""
        for part in parts:
            self._in_air.remove(part)
            if lost and not self._closed:
                self._again.append(self._repeated(part))
        if self._closed:
            return
        if not lost:
            self._deliver()
        elif parts:
            self._cell.wake(self)

    def close(self) -> None:
        """Drop all messages that have not arrived, and those that come later: the UE has left the cell."""
        self._closed, self._next = True, self._end
        self._messages.clear()
        self._again.clear()

    def _repeated(self, part: Block) -> Block:
        harq = self._cell.config.harq
        by_rlc = part.attempt + 1 >= harq.attempts
        wait = self._cell.config.slots(harq.rlc_ms if by_rlc else harq.rtt_ms)
        return Block(part.start, part.end, 0 if by_rlc else part.attempt + 1, part.ready + wait)

    def _deliver(self) -> None:
        held = min([self._next, *(block.start for block in self._in_air), *(block.start for block in self._again)])
        while self._messages and self._messages[0][0] <= held + TINY_BITS:
            self._cell.deliver(self._messages.popleft()[2])

    def _average_bits(self, slot: int) -> float:
        """Discounted average at the beginning of a slot: slots without a grant count as 0."""
        return max(LEAST_AVERAGE_BITS, self._average * PF_MEMORY ** (slot - self._averaged))
