"""The BS's end of the link over ZeroMQ: connections of all UEs, their bounds and their order."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Sequence

import zmq
import zmq.asyncio

from testbed.channel.access import Gate, check_address
from testbed.channel.frames import OTHER_BYTES, PART_BYTES, Frames, following, skipped
from testbed.channel.keys import KEY_LENGTH, ServerKeys
from testbed.channel.limits.connections import Connections
from testbed.channel.limits.counts import HANDSHAKE_S
from testbed.channel.limits.listeners import Listeners
from testbed.channel.limits.sockets import notice_gone_hosts
from testbed.channel.link import MAX_MESSAGE_BYTES
from testbed.channel.readiness import Readiness
from testbed.errors import BadInput, LinkError
from testbed.tasks import Background

INBOX, OUTBOX = 16, 128
"""Messages from and to each UE that the BS queues. Further messages from a UE stay on its side; further ones to it are
dropped."""
CURVE_BYTES = 33
"""Bytes that encryption adds to a frame."""
NAMELESS = b"\0"
"""First byte of libzmq's own identities, as of connections that lost theirs: nobody would close their sessions."""
TURN_S = 2e-3
"""Time after which the BS lets other tasks run although further messages have come."""
SKIPPED_AT_ONCE, MOST_SKIPPED = 1000, 250_000
"""Parts of messages with too many that are taken before other tasks run, and before the socket is opened anew, which
frees all of them at once."""
RENEW_S = 10.0
"""Longest time in which a socket is opened anew."""
LOG = logging.getLogger(__name__)


class ZmqServerLink:
    """ROUTER socket on one or more addresses.

    Args:
        keys: keys of the BS, with the list of allowed clients; None: everyone may connect. Messages from and to a UE
            whose key was revoked are dropped, and its next one closes its connection.
        frame_bytes: largest frame, without its division into parts. A peer is disconnected if it sends a larger one, or
            a message of more than one such frame plus `OTHER_BYTES`.
    """

    def __init__(self, *addresses: str, keys: ServerKeys | None = None, frame_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self.background = Background()
        """Tasks of the process beside its main work; cancelled by `close`."""
        self._frame_bytes, self._checking, self._turn_s = frame_bytes, False, 0.0
        """Time since which the receiver has had the event loop to itself."""
        self._skipped = 0
        """Parts that were skipped since the socket was opened."""
        self.connections = Connections(frozenset(), frame_bytes + OTHER_BYTES, INBOX)
        self._context = zmq.asyncio.Context()
        self._gate = None if keys is None else Gate(self._context, keys, self.background, self.connections.arrived)
        self._open(addresses)
        self.addresses: list[str] = []
        self._listeners = Listeners()
        try:
            for address in addresses:
                self._socket.bind(check_address(address))
                self.addresses.append(self._socket.getsockopt_string(zmq.LAST_ENDPOINT))
                self._listeners.keep(self.addresses[-1])
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

    async def _renew(self, why: str) -> None:
        """Close all connections, which UEs open again at once, and with them those that libzmq keeps for ever.

        Ports stay bound meanwhile, and connections that come wait.
        """
        LOG.warning("%s: all connections are closed, and UEs connect again", why)
        self._ready.close()
        self._socket.close()
        until_s = time.monotonic() + RENEW_S
        await _repeated(lambda: self._open(self.addresses), "open a socket", until_s)
        self.connections.stuck = self._skipped = 0
        for address in sorted(self.addresses, reverse=True):  # tcp:// first: the old socket removes the file of ipc://
            await _repeated(functools.partial(self._listeners.bind, self._socket, address), f"bind {address}", until_s)

    async def send(self, peer: bytes, frames: Frames) -> None:
        """Send to a peer; the message is dropped if its queue is full, or if the peer is gone or revoked."""
        if not self.serves(peer) or self._socket.closed:
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
                await self._renew(f"{self.connections.stuck} connections do not end")
            if self._socket.getsockopt(zmq.RCVMORE):
                await self._skip()
            if time.monotonic() - self._turn_s > TURN_S:
                await asyncio.sleep(0)
                self._turn_s = time.monotonic()
            while (first := self._take()) is None:
                await self._ready.wait()
                self._turn_s = time.monotonic()
            frames, excess = following(first, self._socket, self._frame_bytes)
            if peer := self._sender(first, excess):
                return peer, frames

    def _sender(self, first: zmq.Frame, excess: str) -> bytes:
        """The peer that has sent a message; empty: the message is not taken."""
        try:
            descriptor, key = int(first.get(zmq.SRCFD)), "" if self._gate is None else str(first.get("User-Id"))
        except zmq.ZMQError:  # peers below ZMTP 3.0, for which no bound holds
            return b""
        allowed, revoked = True, ""
        if self._gate is not None and not (allowed := key in self._gate.allowed) and self._gate.allowed.readable:
            revoked = "its key is not allowed any more"
        self.connections.taken(descriptor, excess or revoked, key)
        if self._socket.getsockopt(zmq.RCVMORE):
            self.connections.shun(descriptor, key)
        taken = allowed and not excess and not first.bytes.startswith(NAMELESS)
        return key.encode() + first.bytes if taken else b""

    async def _skip(self) -> None:
        """Take the other parts of a message that has too many, while other tasks run."""
        while not skipped(self._socket, SKIPPED_AT_ONCE):
            self._skipped += SKIPPED_AT_ONCE
            if self._skipped >= MOST_SKIPPED:
                await self._renew("messages of too many frames")
                return
            await asyncio.sleep(0)

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
        self._listeners.close()
        self._socket.close()
        self._context.term()


async def _repeated(action: Callable[[], None], what: str, until_s: float) -> None:
    """Try until libzmq's own thread has ended the socket before, and freed its descriptors.

    Raises:
        LinkError: it fails until `until_s`.
    """
    while True:
        try:
            return action()
        except (zmq.ZMQError, OSError) as exc:
            if time.monotonic() > until_s:
                raise LinkError(f"cannot {what} again: {exc}") from exc
        await asyncio.sleep(1e-3)
