"""The received messages of one session or handshake, until they are read."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from testbed.protocols.codec import Packet
from testbed.protocols.messages import Message

MOST_WAITING = 4096
"""Capacity of a mailbox in messages; further messages are dropped, as if lost on the link."""
MOST_WAITING_BYTES = 2**24
"""The same in bytes: the largest messages, of `split`, have two bytes for each id of the vocabulary."""


class Mailbox:
    """Queue of received messages, for one reader at a time; a wait costs one future and one timer."""

    def __init__(self) -> None:
        self._packets: deque[Packet[Any]] = deque()
        self._bytes = 0
        self._arrival: asyncio.Future[None] | None = None
        self.awaited = False
        """Whether a reader is waiting."""

    def put(self, packet: Packet[Any]) -> None:
        """Add a packet and wake the reader; drops the packet if the mailbox is full."""
        if len(self._packets) < MOST_WAITING and self._bytes + packet.size_bytes <= MOST_WAITING_BYTES:
            self._packets.append(packet)
            self._bytes += packet.size_bytes
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def keep(self, kind: type[Message]) -> bool:
        """Drop the packets of other messages; returns whether there were any."""
        kept = [packet for packet in self._packets if isinstance(packet.message, kind)]
        dropped = len(kept) < len(self._packets)
        self._packets, self._bytes = deque(kept), sum(packet.size_bytes for packet in kept)
        return dropped

    def fail(self, error: Exception) -> None:
        """Raise an error in the waiting reader, if there is one."""
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_exception(error)

    async def get(self, timeout_s: float) -> Packet[Any]:
        """Remove and return the oldest packet; other tasks run meanwhile, though there is one.

        Raises:
            asyncio.TimeoutError: none came in time.
        """
        assert not self.awaited, "a mailbox has one reader at a time"
        self.awaited = True
        try:
            await (asyncio.sleep(0) if self._packets else self._arrives(timeout_s))
        finally:
            self.awaited = False
        packet = self._packets.popleft()
        self._bytes -= packet.size_bytes
        return packet

    async def _arrives(self, timeout_s: float) -> None:
        """Wait for a packet."""
        self._arrival = arrival = (loop := asyncio.get_running_loop()).create_future()
        timer = loop.call_later(timeout_s, _expire, arrival)
        try:
            await arrival
        finally:
            timer.cancel()
            self._arrival = None


def _expire(arrival: asyncio.Future[None]) -> None:
    if not arrival.done():
        arrival.set_exception(asyncio.TimeoutError())
