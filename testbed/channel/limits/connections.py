"""Limits on the TCP connections of a listening ZeroMQ socket: their number, new ones from one address, and the size of
unfinished messages and handshakes.

libzmq limits the size of a frame but not the number of frames in a message: it buffers them until the last one arrives,
without telling its user, so a peer that never sends a last frame can fill the memory. Here the bytes that the kernel
has received on a connection (TCP_INFO) are compared with those received when its last complete message was taken; a
connection that exceeds the size of a message in between is shut down, and libzmq frees its buffers.

libzmq also handles every handshake, whoever sends it, in the thread that serves all connections. What one address has
sent over connections without a complete message is therefore bounded, too.

Works on Linux over TCP; elsewhere, and for `ipc://`, nothing is checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator

from testbed.channel.limits.arrivals import (
    ADDRESS_AT_ONCE,
    ADDRESS_PER_S,
    SHUNNED_S,
    Arrivals,
    ClosedAddresses,
    Shunned,
    loopback,
    origin_of,
)
from testbed.channel.limits.counts import CHECK_S, RECHECK_S, Connection, ConnectionCounts
from testbed.channel.limits.sockets import (
    FAMILIES,
    Duplicates,
    descriptors,
    discard,
    limit,
    listens,
    received_by,
    trim,
    watchable,
)

CHECK_SHARE = 0.03
"""Largest share of the time spent in checks; where they take long, intervals are longer than `CHECK_S`."""
UNHEARD_BYTES = 2**21
"""Largest number of bytes that one address may have sent for handshakes that may be unfinished: 113 of the largest
ones, each of which takes libzmq 1 ms.
"""
TRIM_CHECKS = 20
"""Number of checks between a shutdown and the request to the C library to return freed memory to the system."""
SHARE = 0.75
"""Share of the process's file descriptors that connections may take."""
STUCK_CHECKS = 3
"""Number of consecutive checks after which a closed connection that libzmq keeps is stuck."""
LOG = logging.getLogger(__name__)


class Connections:
    """The connections of this process's listening ports.

    Args:
        ports: local ports.
        message_bytes: size of the largest message.
        waiting: number of complete messages of a connection that may be queued.
        most: largest number of connections, of which one key has at most half; None: `SHARE` of the process's file
            descriptors.

    Attributes:
        cut: number of connections that were shut down.
        stuck: number of closed connections whose descriptors libzmq keeps: those from which it had not read everything
            when another connection took their identity.
    """

    def __init__(self, ports: frozenset[int], message_bytes: int, waiting: int, most: int | None = None) -> None:
        self.ports, self._message_bytes, self._waiting = ports, message_bytes, waiting
        self._most = _room() if most is None else most
        self._known: dict[int, Connection] = {}
        self._taken: dict[int, str] = {}
        """Descriptors of which a message was taken since the last check, and the key of its sender."""
        self._trim_in = 0
        self.cut = self.stuck = 0
        self._arrivals, self._closed = Arrivals(ADDRESS_AT_ONCE, ADDRESS_PER_S), ClosedAddresses()
        self._listening: dict[int, int] = {}
        """Descriptors of the listening sockets, and their inodes."""
        self._duplicates = Duplicates()
        self._shunned = Shunned()

    def close(self) -> None:
        """Close the descriptors kept for checks."""
        self._duplicates.close()

    @property
    def watched(self) -> bool:
        """Whether this system reports the bytes received per connection."""
        return bool(self.ports) and watchable()

    @property
    def clogged(self) -> bool:
        """Whether more than half of all possible connections are stuck. Opening the socket again ends them."""
        return self.stuck > self._most // 2

    async def watch(self, drained: Callable[[], bool]) -> None:
        """Check the limits periodically, until cancelled; `drained`: see `check`."""
        took_s, again = 0.0, False
        while True:
            await asyncio.sleep(RECHECK_S if again else max(CHECK_S, took_s / CHECK_SHARE))
            begun_s = time.perf_counter()
            again = self.check(drained())
            took_s = time.perf_counter() - begun_s

    def taken(self, descriptor: int, excess: str = "", key: str = "") -> None:
        """Note that a complete message was taken; its sender, who owns `key`, is disconnected if it exceeds a bound,
        `excess`.
        """
        self._taken[descriptor] = key
        if excess:
            with self._duplicates.of(descriptor) as connected:
                if connected is not None:
                    self._disconnect(connected, excess)

    def shun(self, descriptor: int, key: str) -> None:
        """Close all connections of a key, now and for `SHUNNED_S`; without keys, those of a connection's address unless
        it is loopback.
        """
        now_s, known = time.monotonic(), self._known.get(descriptor)
        origin = b"" if key or known is None or loopback(known.origin) else known.origin
        self._shunned.add(key or origin, now_s)
        if origin:
            self._closed.add(origin, now_s, SHUNNED_S)

    def arrived(self, address: str, key: str) -> bool:
        """Count a handshake from an address; returns False if it is one too many, or if its key is not served now. The
        address is refused in the first case.
        """
        now_s = time.monotonic()
        if self._shunned.has(key, now_s):
            return False
        if self._counted(origin_of(address), now_s):
            return True
        self._refuse(now_s)
        return False

    def _refuse(self, now_s: float) -> None:
        """Have the kernel refuse the addresses that have opened too many connections."""
        for descriptor, inode in self._listening.items():
            with self._duplicates.of(descriptor) as listener:
                if listener is not None and os.fstat(listener.fileno()).st_ino == inode:
                    self._closed.apply(listener, inode, now_s)

    def _counted(self, origin: bytes, now_s: float) -> bool:
        """Count a connection or handshake; returns False if it is one too many."""
        if not origin or self._arrivals.take(origin, now_s):
            return True
        self._closed.add(origin, now_s)
        return False

    def check(self, drained: bool) -> bool:
        """Shut down connections over a limit; returns whether there are suspects, which need another check soon.

        Args:
            drained: whether all complete messages have been taken, so that all other received bytes belong to an
                unfinished message.
        """
        now_s = time.monotonic()
        taken, self._taken = self._taken, {}
        most_bytes = self._message_bytes * (1 if drained else 1 + self._waiting)
        found: dict[int, Connection] = {}
        counts, suspects = ConnectionCounts(now_s), 0
        for descriptor, connected, known in self._open(now_s):
            found[descriptor], counts.number = known, len(found) + 1
            received, closed = received_by(connected)
            known.closed = known.closed + 1 if closed else 0
            if descriptor in taken:
                known.base_bytes, known.active, known.key = received, True, taken[descriptor]
            excess = known.unfinished(connected, received, most_bytes)
            suspects += known.over == 1
            if not closed:
                counts.add(known, received if drained else 0)
                excess = excess or self._crowded(known, counts)
            if excess:
                self._disconnect(connected, excess)
        self._known = found
        self._refuse(now_s)
        self.stuck = sum(known.closed >= STUCK_CHECKS for known in found.values())
        if self._trim_in:
            self._trim_in -= 1
            if not self._trim_in:
                trim()
        return suspects > 0

    def _crowded(self, known: Connection, counts: ConnectionCounts) -> str:
        """Why a connection is shut down for others beside it, `counts` with it included; empty: it is not."""
        if known.first_s == counts.now_s and not self._counted(known.origin, counts.now_s):
            return "too many new connections from one address"
        unheard = not known.active and known.first_s <= self._shunned.last_s  # its key is not known
        if unheard or self._shunned.has(known.key or known.origin, counts.now_s):
            return "its peer sent a message of too many frames"
        if not known.active and counts.number > self._most:
            return f"more than {self._most} connections"
        if counts.handshaking(known) and counts.handshake_bytes[known.origin] > UNHEARD_BYTES:
            return f"more than {UNHEARD_BYTES} bytes of handshakes from one address"
        if known.key and counts.held[known.key] > self._most // 2:
            return f"more than {self._most // 2} connections with the same key"
        return ""

    def _disconnect(self, connected: socket.socket, why: str) -> None:
        self.cut, self._trim_in = self.cut + 1, TRIM_CHECKS
        if self.cut & (self.cut - 1) == 0:  # log the 1st, 2nd, 4th, 8th …, so that peers cannot fill the log
            LOG.warning("connection closed (%d so far): %s", self.cut, why)
        with contextlib.suppress(OSError):
            discard(connected)

    def _open(self, now_s: float) -> Iterator[tuple[int, socket.socket, Connection]]:
        """All open connections, each as a duplicate of its socket."""
        self._listening.clear()
        for descriptor in descriptors():
            known = self._known.get(descriptor)
            with self._duplicates.of(descriptor, None if known is None else known.family) as connected:
                if connected is None:
                    continue
                try:
                    inode = os.fstat(connected.fileno()).st_ino
                    if known is None or known.socket != inode:
                        if connected.family not in FAMILIES or connected.getsockname()[1] not in self.ports:
                            continue
                        if listens(connected):
                            self._listening[descriptor] = inode
                            continue
                        known = Connection(inode, connected.family, _origin(connected), now_s)
                    yield descriptor, connected, known
                except OSError:  # closed
                    continue


def _origin(connected: socket.socket) -> bytes:
    try:
        return origin_of(connected.getpeername()[0])
    except OSError:  # its peer has reset it
        return b""


def _room() -> int:
    return max(1, int(SHARE * limit()))
