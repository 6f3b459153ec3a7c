"""Message link between UE and BS: the interfaces `Link` and `ServerLink`, and the UE's end over ZeroMQ.

A UE has one `Link` (DEALER) per BS; the BS has one `ServerLink` (ROUTER) for all UEs, which identifies each peer by its
ZeroMQ identity, or with CURVE by its key and identity. Byte counts are those of the frames; ZMTP and TCP framing is not
included.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from typing import NamedTuple, Protocol

import zmq
import zmq.asyncio

from testbed.channel.access import check_address
from testbed.channel.frames import OTHER_BYTES, Frames, answer, parts
from testbed.channel.keys import ClientKeys
from testbed.channel.limits.outgoing import OutgoingConnection
from testbed.channel.limits.sockets import trim
from testbed.channel.readiness import Readiness
from testbed.errors import BadInput, LinkError, LinkTimeout

HIGH_WATER = 1000
"""Messages that a UE's socket queues in each direction."""
SILENT_S = 10.0
SLOWEST_BPS = 1e5
"""Time without an answer, beyond that of sending at the slowest rate, after which a UE connects anew."""
FIRST_PAUSE_S, MOST_PAUSE_S = 0.1, 5.0
"""Time from a connection that was closed because the peer broke a bound to the next one: doubled each time."""
WITHIN_S = 20.0
"""Time without such a closing after which the doubling begins again."""
TRIM_S = 1.0
"""Time from the end of a connection that was cut to the request to return its memory to the system."""
MAX_MESSAGE_BYTES, ANSWER_BYTES = 65 * 2**20, 2**22
"""Largest frame, and largest one to a UE: a distribution has two bytes for each id."""
LOG = logging.getLogger(__name__)


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
        """Next message. Raises LinkTimeout after `timeout_s`, LinkError if the peer breaks a bound; it may be called
        again after both.
        """

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
    """DEALER socket to one BS; reconnects automatically. With keys, only the BS that owns them can read and answer.

    Args:
        source: own IPv4 address to connect from; None: the system chooses.
        waiting: number of received messages that wait, at most; then the peer has to.
    """

    def __init__(
        self,
        address: str,
        identity: bytes,
        keys: ClientKeys | None = None,
        source: str | None = None,
        waiting: int = HIGH_WATER,
    ) -> None:
        self.address, self.identity, self._waiting = check_address(address), identity, waiting
        self._way = address if source is None else f"tcp://{source}:0;{address.removeprefix('tcp://')}"
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._keys = keys
        self._hint = "is it running, and does it require keys?" if keys is None else "does it know this UE's key?"
        self._cuts = 0
        """Number of connections that were closed because the peer broke a bound."""
        self._pause_s, self._paused, self._cut_s = 0.0, False, -WITHIN_S
        self._trimming: asyncio.TimerHandle | None = None
        try:
            self._open()
        except zmq.ZMQError as exc:
            self.close()
            raise BadInput(f"cannot connect to {address}: {exc}") from exc

    def _open(self) -> None:
        """Create and connect the socket."""
        self._socket = self._context.socket(zmq.DEALER)
        self._ready = Readiness(self._socket)
        self._connection = OutgoingConnection(self._socket, ANSWER_BYTES + OTHER_BYTES)
        self._unanswered_bytes, self._silent_since_s = 0, 0.0
        """Bytes sent since the last message or connection, and the time of the first of them."""
        if self._keys is not None:
            self._socket.curve_serverkey = self._keys.server
            self._socket.curve_publickey, self._socket.curve_secretkey = self._keys.public, self._keys.secret
        for option, value in (
            (zmq.LINGER, 0), (zmq.ROUTING_ID, self.identity), (zmq.SNDHWM, HIGH_WATER), (zmq.RCVHWM, self._waiting),
            (zmq.MAXMSGSIZE, ANSWER_BYTES), (zmq.IPV6, "[" in self.address),
        ):  # fmt: skip
            self._socket.setsockopt(option, value)
        self._paused = bool(self._pause_s)
        if not self._paused:
            self._socket.connect(self._way)

    async def send(self, frames: Frames) -> int:
        """Queue one message for sending; it is lost after the peer has broken a bound, before the next connection."""
        if self._paused:
            return sum(map(len, frames))
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
            self._socket.disconnect(self._way)
            self._socket.connect(self._way)
            self._unanswered_bytes, self._silent_since_s = 0, now_s

    async def recv(self, timeout_s: float) -> Received:
        """Wait for one message. Raises LinkError after the peer has broken a bound; the link connects anew."""
        until_s, left_s = time.monotonic() + timeout_s, timeout_s
        await asyncio.sleep(self._pause_s if self._paused else 0)  # others run, too, while one message follows another
        if self._paused:
            self._socket.connect(self._way)
            self._paused = False
        while not (frames := self._take()):
            if left_s <= 0:
                raise LinkTimeout(f"{self.address} did not answer within {timeout_s:g} s")
            await self._ready.wait(min(left_s, self._connection.due_s))
            left_s = until_s - time.monotonic()
        self._unanswered_bytes = 0
        return Received(frames, sum(map(len, frames)))

    def _take(self) -> list[bytes]:
        """A message that has come; empty: there is none. Raises LinkError if one exceeds a bound."""
        try:
            frames, excess = answer(self._socket, ANSWER_BYTES + OTHER_BYTES)
            self._connection.taken()
        except zmq.Again:
            frames, excess = [], self._connection.excess()
        if excess:
            self._cut(excess)
        return frames

    def _cut(self, excess: str) -> None:
        """Connect anew, on another socket: the old one holds what was received. Raises LinkError."""
        self._cuts += 1
        last_s, self._cut_s = self._cut_s, time.monotonic()
        recent = self._cut_s - last_s < WITHIN_S
        self._pause_s = min(MOST_PAUSE_S, 2 * self._pause_s) if recent else FIRST_PAUSE_S
        if self._cuts & (self._cuts - 1) == 0:  # log the 1st, 2nd, 4th, 8th …, so that a peer cannot fill the log
            LOG.warning("%s: connection closed (%d so far): %s", self.address, self._cuts, excess)
        self._shut()
        self._open()
        if self._trimming is not None:
            self._trimming.cancel()
        self._trimming = asyncio.get_running_loop().call_later(TRIM_S, trim)
        raise LinkError(f"{self.address} sent {excess}")

    def _shut(self) -> None:
        self._ready.close()
        self._connection.close()
        self._socket.close(0)

    def close(self) -> None:
        """Close socket and context."""
        self._shut()
        self._context.term()
