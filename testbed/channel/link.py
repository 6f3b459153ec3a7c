"""Message link between UE and BS: the interfaces `Link` and `ServerLink`, and their ZeroMQ implementation.

A UE has one `Link` (DEALER) per BS; the BS has one `ServerLink` (ROUTER) for all UEs, which identifies each peer by its
ZeroMQ identity, or with CURVE by its key and identity. Byte counts are those of the frames; ZMTP and TCP framing is not
included.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import zmq
import zmq.asyncio

from testbed.channel.access import Gate, check_address
from testbed.channel.frames import OTHER_BYTES, PART_BYTES, Frames, following, parts
from testbed.channel.keys import KEY_LENGTH, ClientKeys, ServerKeys
from testbed.channel.limits.connections import HANDSHAKE_S, Connections
from testbed.channel.limits.sockets import notice_gone_hosts
from testbed.channel.readiness import Readiness
from testbed.errors import BadInput, LinkError, LinkTimeout
from testbed.tasks import Background

HIGH_WATER = 1000
"""Messages that a UE's socket queues in each direction."""
INBOX, OUTBOX = 16, 128
"""Messages from and to each UE that the BS queues. Further messages from a UE stay on its side; further ones to it are
dropped."""
SILENT_S = 10.0
SLOWEST_BPS = 1e5
"""Time without an answer, beyond that of sending at the slowest rate, after which a UE connects anew."""
CURVE_BYTES = 33
"""Bytes that encryption adds to a frame."""
NAMELESS = b"\0"
"""First byte of libzmq's own identities, as of connections that lost theirs: nobody would close their sessions."""
MAX_MESSAGE_BYTES = 65 * 2**20
"""Largest frame."""
TURN_S = 2e-3
"""Time after which the BS lets other tasks run although further messages have come."""


RENEW_S = 10.0
"""Longest time to bind again."""
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
            (zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES), (zmq.IPV6, "[" in address),
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


class ZmqServerLink:
    """ROUTER socket on one or more addresses.

    Args:
        keys: keys of the BS, with the list of allowed clients; None: everyone may connect. Messages from and to a UE
            whose key was revoked are dropped; its connection may stay open.
        frame_bytes: largest frame, without its division into parts. A peer is disconnected if it sends a larger one, or
            a message of more than one such frame plus `OTHER_BYTES`.
    """

    def __init__(self, *addresses: str, keys: ServerKeys | None = None, frame_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self.background = Background()
        """Tasks of the process beside its main work; cancelled by `close`."""
        self._frame_bytes, self._checking, self._turn_s = frame_bytes, False, 0.0
        """Time since which the receiver has had the event loop to itself."""
        self.connections = Connections(frozenset(), frame_bytes + OTHER_BYTES, INBOX)
        self._context = zmq.asyncio.Context()
        self._gate = None if keys is None else Gate(self._context, keys, self.background, self.connections.arrived)
        self._open(addresses)
        self.addresses: list[str] = []
        try:
            for address in addresses:
                self._socket.bind(check_address(address))
                self.addresses.append(self._socket.getsockopt_string(zmq.LAST_ENDPOINT))
        except BadInput:
            self.close()
            raise
        except zmq.ZMQError as exc:
            self.close()
            raise BadInput(f"cannot bind {address}: {exc}") from exc
        tcp = (address for address in self.addresses if address.startswith("tcp://"))
        self.connections.ports = frozenset(int(address.rpartition(":")[2]) for address in tcp)

    def _open(self, addresses: Sequence[str]) -> None:
        """Create the socket."""
        self._socket: zmq.Socket[bytes] = zmq.Socket(self._context, zmq.ROUTER)
        self._ready = Readiness(self._socket)
        if self._gate is not None:
            self._gate.protect(self._socket)
        for option, value in (
            (zmq.LINGER, 200), (zmq.ROUTER_HANDOVER, 1), (zmq.SNDHWM, OUTBOX), (zmq.RCVHWM, INBOX),
            (zmq.MAXMSGSIZE, min(self._frame_bytes, PART_BYTES) + (CURVE_BYTES if self._gate else 0)),
            (zmq.HANDSHAKE_IVL, round(1000 * HANDSHAKE_S)), (zmq.IPV6, any("[" in a for a in addresses)),
        ):  # fmt: skip
            self._socket.setsockopt(option, value)
        notice_gone_hosts(self._socket)

    async def _renew(self) -> None:
        """Close all connections, which UEs open again at once, and with them those that libzmq keeps for ever."""
        LOG.warning("%d connections do not end: all are closed, and UEs connect again", self.connections.stuck)
        self._ready.close()
        self._socket.close()
        self._open(self.addresses)
        self.connections.stuck = 0
        until_s = time.monotonic() + RENEW_S
        for address in sorted(self.addresses, reverse=True):  # tcp:// first: the old socket removes the file of ipc://
            while True:  # until libzmq's own thread has ended it
                try:
                    self._socket.bind(address)
                    break
                except zmq.ZMQError as exc:
                    if time.monotonic() > until_s:
                        raise LinkError(f"cannot bind {address} again: {exc}") from exc
                await asyncio.sleep(1e-3)

    async def send(self, peer: bytes, frames: Frames) -> None:
        """Send to a peer; the message is dropped if its queue is full, or if the peer is gone or revoked."""
        if not self.serves(peer):
            return
        identity = peer if self._gate is None else peer[KEY_LENGTH:]
        with contextlib.suppress(zmq.Again):
            self._socket.send_multipart([identity, *frames], flags=zmq.NOBLOCK, copy=True)
        self._ready.taken()

    async def recv(self) -> tuple[bytes, list[bytes]]:
        """Wait for one message. Other tasks run at least every `TURN_S`, even if messages never cease."""
        if not self._checking and self.connections.watched:
            self._checking = True
            self.background.start("connection limits", lambda: self.connections.watch(lambda: self._ready.waiting))
        while True:
            if self.connections.clogged:
                await self._renew()
            if time.monotonic() - self._turn_s > TURN_S:
                await asyncio.sleep(0)
                self._turn_s = time.monotonic()
            while (first := self._take()) is None:
                await self._ready.wait()
                self._turn_s = time.monotonic()
            frames, excess = following(first, self._socket, self._frame_bytes)
            with contextlib.suppress(zmq.ZMQError):  # of peers below ZMTP 3.0, for which no bound holds: not served
                key = "" if self._gate is None else str(first.get("User-Id"))
                self.connections.taken(int(first.get(zmq.SRCFD)), excess, key)
                if excess or first.bytes.startswith(NAMELESS):
                    continue
                if self._gate is None or key in self._gate.allowed:
                    return key.encode() + first.bytes, frames

    def _take(self) -> zmq.Frame | None:
        """The first frame of a message that has come, which names its sender; None: there is none."""
        try:
            return self._socket.recv(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None

    def serves(self, peer: bytes) -> bool:
        """See `ServerLink.serves`."""
        return self._gate is None or self.owner(peer).decode() in self._gate.allowed

    def owner(self, peer: bytes) -> bytes:
        """The key of a peer; without keys, the peer itself."""
        return peer if self._gate is None else peer[:KEY_LENGTH]

    def close(self) -> None:
        """Close socket and context."""
        self.background.cancel()
        self.connections.close()
        if self._gate is not None:
            self._gate.close()
        self._ready.close()
        self._socket.close()
        self._context.term()
