"""Message link between UE and BS: the interfaces `Link` and `ServerLink`, and the UE's end over ZeroMQ.

A UE has one `Link` (DEALER) per BS; the BS has one `ServerLink` (ROUTER) for all UEs, which identifies each peer by its
ZeroMQ identity, or with CURVE by its key and identity. Byte counts are those of the frames; ZMTP and TCP framing is not
included.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import NamedTuple, Protocol

import zmq
import zmq.asyncio

from testbed.channel.access import check_address
from testbed.channel.frames import Frames, parts
from testbed.channel.keys import ClientKeys
from testbed.channel.readiness import Readiness
from testbed.errors import BadInput, LinkError, LinkTimeout

HIGH_WATER = 1000
"""Messages that a UE's socket queues in each direction."""
SILENT_S = 10.0
SLOWEST_BPS = 1e5
"""Time without an answer, beyond that of sending at the slowest rate, after which a UE connects anew."""
MAX_MESSAGE_BYTES, ANSWER_BYTES = 65 * 2**20, 2**22
"""Largest frame, and largest one to a UE: a distribution has two bytes for each id."""


class Received(NamedTuple):
    """A received message."""

    frames: list[bytes]
    size_bytes: int
    """Bytes on the link."""


class Link(Protocol):
    """A UE's end of the link."""

    async def send(self, frames: Frames) -> int:
        """Send one message; returns its size in bytes. Raises LinkError if the send queue is full."""

    async def recv(self, timeout_s: float) -> Received:
        """Next message. Raises LinkTimeout after `timeout_s`."""

    def close(self) -> None:
        """Close the connection; unsent messages are discarded."""


class ServerLink(Protocol):
    """The BS's end of the link."""

    async def send(self, peer: bytes, frames: Frames) -> None:
        """Send one message to a peer; it is dropped if the peer is gone."""

    async def recv(self) -> tuple[bytes, list[bytes]]:
        """Next message, preceded by its sender."""

    def serves(self, peer: bytes) -> bool:
        """Whether messages of this peer are received and sent; False once its key was revoked."""

    def close(self) -> None:
        """Stop listening."""


def new_identity() -> bytes:
    """A new random ZeroMQ identity; it must not start with a zero byte."""
    return b"ue-" + uuid.uuid4().bytes


class ZmqLink:
    """DEALER socket to one BS; reconnects automatically. With keys, only the BS that owns them can read and answer."""

    def __init__(self, address: str, identity: bytes, keys: ClientKeys | None = None) -> None:
        self.address, self.identity = check_address(address), identity
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._ready = Readiness(self._socket)
        self._hint = "is it running, and does it require keys?" if keys is None else "does it know this UE's key?"
        if keys is not None:
            self._socket.curve_serverkey = keys.server
            self._socket.curve_publickey, self._socket.curve_secretkey = keys.public, keys.secret
        for option, value in (
            (zmq.LINGER, 0), (zmq.ROUTING_ID, identity), (zmq.SNDHWM, HIGH_WATER), (zmq.RCVHWM, HIGH_WATER),
            (zmq.MAXMSGSIZE, ANSWER_BYTES), (zmq.IPV6, "[" in address),
        ):  # fmt: skip
            self._socket.setsockopt(option, value)
        self._unanswered_bytes, self._silent_since_s = 0, 0.0
        """Bytes sent since the last message or connection, and the time of the first of them."""
        try:
            self._socket.connect(address)
        except zmq.ZMQError as exc:
            self.close()
            raise BadInput(f"cannot connect to {address}: {exc}") from exc

    async def send(self, frames: Frames) -> int:
        """Queue one message for sending."""
        self._refresh()
        try:
            self._socket.send_multipart(parts(frames), flags=zmq.NOBLOCK, copy=True)
        except zmq.Again as exc:
            self._ready.taken()
            raise LinkError(f"{self.address} takes no more messages: {self._hint}") from exc
        self._ready.taken()
        size = sum(map(len, frames))
        self._unanswered_bytes += size
        return size

    def _refresh(self) -> None:
        """Connect anew after a silence in which everything sent must have arrived. The connection may be dead although
        both ends keep it open, for example because another peer has taken this one's identity.
        """
        now_s = time.monotonic()
        if not self._unanswered_bytes:
            self._silent_since_s = now_s
        elif now_s - self._silent_since_s > SILENT_S + 8 * self._unanswered_bytes / SLOWEST_BPS:
            self._socket.disconnect(self.address)
            self._socket.connect(self.address)
            self._unanswered_bytes, self._silent_since_s = 0, now_s

    async def recv(self, timeout_s: float) -> Received:
        """Wait for one message."""
        until_s, left_s = time.monotonic() + timeout_s, timeout_s
        await asyncio.sleep(0)  # others run, too, while one message follows another
        while not (frames := self._take()):
            if left_s <= 0:
                raise LinkTimeout(f"{self.address} did not answer within {timeout_s:g} s")
            await self._ready.wait(left_s)
            left_s = until_s - time.monotonic()
        self._unanswered_bytes = 0
        return Received(frames, sum(map(len, frames)))

    def _take(self) -> list[bytes]:
        """A message that has come; empty: there is none."""
        try:
            return self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return []

    def close(self) -> None:
        """Close socket and context."""
        self._ready.close()
        self._socket.close(0)
        self._context.term()
