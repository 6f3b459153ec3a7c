"""The link seam: frames out, frames in, bytes counted; and its ZeroMQ implementation.

The UE holds one `Link` to its BS (DEALER); the BS holds one `ServerLink` to all UEs (ROUTER), which names each peer
by its ZeroMQ identity, behind CURVE by its key and identity. Counted bytes are those of the frames; ZMTP and TCP
framing is not included.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast

import zmq
import zmq.asyncio

from testbed.channel.access import Gate
from testbed.channel.connections import AGAIN_S, LOOK_S, LOOK_SHARE, MOST_FRAMES, Connections
from testbed.channel.keys import KEY_LENGTH, ClientKeys, ServerKeys
from testbed.clock import within
from testbed.errors import BadInput, LinkError, LinkTimeout

Frames = Sequence["bytes | memoryview"]
HIGH_WATER = 1000
INBOX, OUTBOX = 16, 128
"""Messages of and for each UE that wait at the BS: more of its own stay on its side, more for it are dropped."""
CURVE_BYTES = 33
"""That encryption adds to a frame."""
HANDSHAKE_MS = 5000
"""After which a connection is closed that has not shown its key."""
MAX_MESSAGE_BYTES = 65 * 2**20
"""Of a frame."""
OTHER_BYTES = 2**20
"""Of the frames that come with a message's largest one: a header, ids, scales, padding."""


class Received(NamedTuple):
    """A message that came."""

    frames: list[bytes]
    size_bytes: int
    """What it took on the link."""


class Link(Protocol):
    """A UE's end of the link."""

    async def send(self, frames: Frames) -> int:
        """Send one message; returns its bytes. Raises LinkError where it cannot be taken."""

    async def recv(self, timeout_s: float) -> Received:
        """Next message. Raises LinkTimeout after `timeout_s`."""

    def close(self) -> None:
        """Drop the connection; what was not sent is discarded."""


class ServerLink(Protocol):
    """The BS's end."""

    async def send(self, peer: bytes, frames: Frames) -> None:
        """Send one message to a peer; to a peer that is gone it is dropped."""

    async def recv(self) -> tuple[bytes, list[bytes]]:
        """Next message and who sent it."""

    def close(self) -> None:
        """Stop listening."""


def new_identity() -> bytes:
    """A fresh ZeroMQ identity (one must not start with a zero byte)."""
    return b"ue-" + uuid.uuid4().bytes


def check_address(address: str) -> str:
    """Return a ZeroMQ address that can be used.

    Raises:
        BadInput: not tcp://HOST:PORT or ipc://PATH.
    """
    match = re.fullmatch(r"tcp://([^\s:/]+|\[[0-9a-fA-F:]+\]):(\d+|\*)|ipc://(\S+)", address)
    if not match or (match[2] and match[2] != "*" and not 0 < int(match[2]) < 65536):
        raise BadInput(f"bad address {address!r}; use tcp://HOST:PORT, such as tcp://127.0.0.1:5555, or ipc://PATH")
    return address


class ZmqLink:
    """DEALER socket to one BS; reconnects by itself. With keys, only the BS that they name can read and answer."""

    def __init__(self, address: str, identity: bytes, keys: ClientKeys | None = None) -> None:
        self.address, self.identity = check_address(address), identity
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._why = "is it there, and does it want keys?" if keys is None else "does it know this UE's key?"
        if keys is not None:
            self._socket.curve_serverkey = keys.server
            self._socket.curve_publickey, self._socket.curve_secretkey = keys.public, keys.secret
        for option, value in (
            (zmq.LINGER, 0), (zmq.ROUTING_ID, identity), (zmq.SNDHWM, HIGH_WATER), (zmq.RCVHWM, HIGH_WATER),
            (zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES), (zmq.IPV6, "[" in address),
        ):  # fmt: skip
            self._socket.setsockopt(option, value)
        try:
            self._socket.connect(address)
        except zmq.ZMQError as exc:
            self.close()
            raise BadInput(f"cannot connect to {address}: {exc}") from exc

    async def send(self, frames: Frames) -> int:
        """Hand one message to the socket."""
        try:
            await self._socket.send_multipart(frames, flags=zmq.NOBLOCK, copy=True)
        except zmq.Again as exc:
            raise LinkError(f"{self.address} takes no more messages: {self._why}") from exc
        return sum(map(len, frames))

    async def recv(self, timeout_s: float) -> Received:
        """Wait for one message."""
        try:
            frames = list(await within(timeout_s, self._socket.recv_multipart()))
            return Received(frames, sum(map(len, frames)))
        except asyncio.TimeoutError as exc:
            raise LinkTimeout(f"{self.address} did not answer within {timeout_s:g} s") from exc

    def close(self) -> None:
        """Close socket and context."""
        self._socket.close(0)
        self._context.term()


class ZmqServerLink:
    """ROUTER socket on one or more addresses.

    Args:
        keys: who is let in; None: everybody who can reach it. A UE whose key is revoked is heard no more, and what is
            sent to it is dropped; its connection may stand.
        frame_bytes: largest frame; who sends a larger one is disconnected, and so is who sends a message of more than
            one such frame and `OTHER_BYTES`.
    """

    def __init__(self, *addresses: str, keys: ServerKeys | None = None, frame_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._watch: asyncio.Task[None] | None = None
        self._waits = False
        self._context = zmq.asyncio.Context()
        self._gate = None if keys is None else Gate(self._context, keys)
        self._socket = self._context.socket(zmq.ROUTER)
        self._now: zmq.Socket[bytes] = zmq.Socket.shadow(self._socket.underlying)
        if self._gate is not None:
            self._gate.protect(self._socket)
        for option, value in (
            (zmq.LINGER, 200), (zmq.ROUTER_HANDOVER, 1), (zmq.SNDHWM, OUTBOX), (zmq.RCVHWM, INBOX),
            (zmq.MAXMSGSIZE, frame_bytes + (CURVE_BYTES if keys else 0)), (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
            (zmq.IPV6, any("[" in a for a in addresses)),
        ):  # fmt: skip
            self._socket.setsockopt(option, value)
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
        ports = frozenset(int(a.rpartition(":")[2]) for a in self.addresses if a.startswith("tcp://"))
        self.connections = Connections(ports, frame_bytes + OTHER_BYTES, INBOX)

    async def send(self, peer: bytes, frames: Frames) -> None:
        """Send to a peer; a full, vanished or revoked peer loses the message."""
        if self._gate is not None:
            if self.owner(peer).decode() not in self._gate.allowed:
                return
            peer = peer[KEY_LENGTH:]
        try:
            await self._socket.send_multipart([peer, *frames], flags=zmq.NOBLOCK, copy=True)
        except zmq.Again:
            return

    async def recv(self) -> tuple[bytes, list[bytes]]:
        """Wait for one message."""
        if self._watch is None and self.connections.watched:
            self._watch = asyncio.get_running_loop().create_task(self._look())
        while True:
            first, frames = await self._next()
            self.connections.heard(int(first.get(zmq.SRCFD)), frames=len(frames))
            if self._gate is None:
                return first.bytes, frames
            key = str(first.get("User-Id"))
            if key in self._gate.allowed:
                return key.encode() + first.bytes, frames

    async def _next(self) -> tuple[zmq.Frame, list[bytes]]:
        """A message's first frame, which names its sender, and the others: of ever so many the first ones."""
        coming = cast("asyncio.Future[zmq.Frame]", self._socket.recv(copy=False))
        self._waits = not coming.done()
        try:
            first = await coming
        except asyncio.CancelledError:
            if coming.done() and not coming.cancelled():  # it came, and its other frames are not the next message's
                self._rest(coming.result())
            raise
        self._waits = False
        return first, self._rest(first)

    def _rest(self, frame: zmq.Frame) -> list[bytes]:
        """The frames that follow one; they are all there."""
        frames: list[bytes] = []
        while frame.more:
            frame = self._now.recv(zmq.NOBLOCK, copy=False)
            if len(frames) <= MOST_FRAMES:
                frames.append(frame.bytes)
        return frames

    async def _look(self) -> None:
        """Hold connections to their bounds."""
        took_s, again = 0.0, False
        while True:
            await asyncio.sleep(AGAIN_S if again else max(LOOK_S, took_s / LOOK_SHARE))
            begun_s = time.perf_counter()
            again = self.connections.look(drained=self._waits)
            took_s = time.perf_counter() - begun_s

    def owner(self, peer: bytes) -> bytes:
        """The key that a peer came in with; without keys each peer is its own."""
        return peer if self._gate is None else peer[:KEY_LENGTH]

    def close(self) -> None:
        """Close socket and context."""
        if self._watch is not None:
            self._watch.cancel()
        if self._gate is not None:
            self._gate.close()
        self._socket.close()
        self._context.term()
