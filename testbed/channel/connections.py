"""Connections that a listening ZeroMQ socket has taken in: how many, and how much of one message each may send.

libzmq bounds a frame, but not the frames of a message: it keeps them until the last one, unseen by its user, so that a
peer that never sends a last frame fills the memory. What a peer has sent can be asked of the kernel (TCP_INFO), and
what has come through whole is known by who receives. A connection on which more lies between the two than a message
may take is shut down, and libzmq forgets what it kept for it.

Linux tells; elsewhere, and for `ipc://`, nothing is watched.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import logging
import os
import resource
import socket
import struct
import sys
import termios
from collections.abc import Iterator
from dataclasses import dataclass

LOOK_S = 0.05
"""Between two looks at all connections; more where a look takes long. At 5 GB/s, on loopback, 250 MB come meanwhile."""
AGAIN_S = 0.01
"""Until the second look at one that is over its bound: time for what is whole to be taken."""
LOOK_SHARE = 0.03
"""Of the time, for looks."""
CANDIDATE_LOOKS = 2
"""Looks in a row at which a connection must be over its bound."""
SPARE_BYTES = 2**17
"""Handshakes, framing, and what is under way inside libzmq."""
TRIM_LOOKS = 20
"""After a cut, until libzmq has dropped what it kept, and the C library is asked to return it to the system."""
SHARE = 0.75
"""Of the files that the process may open, for connections."""
MOST_FRAMES = 64
"""Of a message whose sender is not cut off at once."""
TCP_RECEIVED = 128
"""Where `tcpi_bytes_received` stands in Linux's `tcp_info`."""
TCP_INFO_BYTES = 136
DESCRIPTORS = "/proc/self/fd"
FAMILIES = (socket.AF_INET, socket.AF_INET6)
LOG = logging.getLogger(__name__)


@dataclass
class Connection:
    """One peer's TCP connection."""

    peer: object
    family: int
    heard_bytes: int = 0
    """What had come at the last look after a whole message of it was taken."""
    heard: bool = False
    over: int = 0
    """Looks in a row at which it was over its bound."""


class Connections:
    """The connections of some listening ports of this process.

    Args:
        ports: local ports.
        message_bytes: the largest message.
        waiting: messages of a connection that may be whole and not taken yet.
        most: connections at once; None: a share of the files that the process may open.

    Attributes:
        cut: connections that were shut down.
    """

    def __init__(self, ports: frozenset[int], message_bytes: int, waiting: int, most: int | None = None) -> None:
        self._ports, self._message_bytes, self._waiting = ports, message_bytes, waiting
        self._most = _room() if most is None else most
        self._known: dict[int, Connection] = {}
        self._heard: set[int] = set()
        """Descriptors that messages came over since the last look."""
        self._trim_in = 0
        self.cut = 0

    @property
    def watched(self) -> bool:
        """Whether this system tells what connections have received."""
        return bool(self._ports) and sys.platform == "linux" and os.path.isdir(DESCRIPTORS)

    def heard(self, descriptor: int, frames: int) -> None:
        """A whole message of a connection was taken; who sends one of more than `MOST_FRAMES` is shut out."""
        self._heard.add(descriptor)
        if frames > MOST_FRAMES:
            with _handle(descriptor) as connected:
                if connected is not None:
                    self._shut(connected, f"a message of more than {MOST_FRAMES} frames")

    def look(self, drained: bool) -> bool:
        """Shut down what is over a bound; returns whether something may be, and another look should be soon.

        Args:
            drained: whether every whole message has been taken, so that whatever else came belongs to a message that
                has not ended.
        """
        limit = self._message_bytes * (1 if drained else 1 + self._waiting) + SPARE_BYTES
        heard, self._heard = self._heard, set()
        found: dict[int, Connection] = {}
        suspects = 0
        for descriptor, connected, known in self._open():
            found[descriptor] = known
            received = _received(connected)
            if descriptor in heard:
                known.heard_bytes, known.heard = received, True
            over = received - known.heard_bytes > limit and received - _unread(connected) - known.heard_bytes > limit
            known.over = known.over + 1 if over else 0
            suspects += known.over == 1
            if known.over >= CANDIDATE_LOOKS:
                self._shut(connected, f"a message of more than {limit} bytes that does not end")
            elif not known.heard and len(found) > self._most:
                self._shut(connected, f"{self._most} connections are there already")
        self._known = found
        if self._trim_in:
            self._trim_in -= 1
            if not self._trim_in:
                _trim()
        return suspects > 0

    def _shut(self, connected: socket.socket, why: str) -> None:
        self.cut, self._trim_in = self.cut + 1, TRIM_LOOKS
        if self.cut & (self.cut - 1) == 0:  # the first, the second, the fourth …: peers must not fill the log
            LOG.warning("a connection is cut, the %d. so far: %s", self.cut, why)
        with contextlib.suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)

    def _open(self) -> Iterator[tuple[int, socket.socket, Connection]]:
        """Every connection that stands. The socket is a handle of its own: whatever libzmq closes meanwhile, it is the
        connection that was looked at.
        """
        for name in os.listdir(DESCRIPTORS):
            descriptor = int(name)
            known = self._known.get(descriptor)
            with _handle(descriptor, None if known is None else known.family) as connected:
                if connected is None:
                    continue
                try:
                    peer = connected.getpeername()
                    if known is None or known.peer != peer:  # new: descriptors are used again
                        if connected.family not in FAMILIES or connected.getsockname()[1] not in self._ports:
                            continue
                        known = Connection(peer, connected.family)
                    yield descriptor, connected, known
                except OSError:  # listens, or is gone
                    continue


@contextlib.contextmanager
def _handle(descriptor: int, family: int | None = None) -> Iterator[socket.socket | None]:
    """A socket's own handle; None where the descriptor is no socket. Its family is found out where it is not known."""
    try:
        copy = os.dup(descriptor)
    except OSError:
        yield None
        return
    try:
        if family is None:
            connected = socket.socket(fileno=copy)
        else:
            connected = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, copy)
    except OSError:
        os.close(copy)
        yield None
        return
    with connected:
        yield connected


def _received(connected: socket.socket) -> int:
    """Bytes that a connection has brought."""
    info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    if len(info) < TCP_INFO_BYTES:  # before Linux 4.1
        return 0
    received: int = struct.unpack_from("<Q", info, TCP_RECEIVED)[0]
    return received


def _unread(connected: socket.socket) -> int:
    """Those of them that the kernel still has."""
    unread = array.array("i", [0])
    fcntl.ioctl(connected, termios.FIONREAD, unread)
    return unread[0]


def _trim() -> None:
    """glibc keeps what was freed in small pieces, for ever if need be."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _room() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**20 if soft == resource.RLIM_INFINITY else max(1, int(SHARE * soft))
