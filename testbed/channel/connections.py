"""Limits on the TCP connections of a listening ZeroMQ socket: their number, and the size of an unfinished message.

libzmq limits the size of a frame but not the number of frames in a message: it buffers them until the last one arrives,
without telling its user, so a peer that never sends a last frame can fill the memory. Here the bytes that the kernel
has received on a connection (TCP_INFO) are compared with those received when its last complete message was taken; a
connection that exceeds the size of a message in between is shut down, and libzmq frees its buffers.

Works on Linux over TCP; elsewhere, and for `ipc://`, nothing is checked.
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
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import zmq

from testbed.errors import no_descriptor

CHECK_S = 0.05
"""Interval between checks; longer if a check takes long. On loopback at 5 GB/s, 250 MB may arrive in between."""
RECHECK_S = 0.01
"""Interval before the second check of a suspect connection, in which complete messages can be taken."""
CHECK_SHARE = 0.03
"""Largest share of the time spent in checks."""
CONFIRM_CHECKS = 2
"""Number of consecutive checks that a connection must fail before it is shut down."""
SPARE_BYTES = 2**17
"""Allowance for handshakes, framing and data inside libzmq."""
TRIM_CHECKS = 20
"""Number of checks between a shutdown and the request to the C library to return freed memory to the system."""
SHARE = 0.75
"""Share of the process's file descriptors that connections may take."""
GONE_S = 60.0
"""Silence of a peer's host after which TCP connections to it are closed."""
PROBES = 3
"""TCP keepalive probes in the second half of that time."""
STUCK_CHECKS = 3
"""Number of consecutive checks after which a closed connection that libzmq keeps is stuck."""
TCP_CLOSE = 7
"""State of a closed connection in Linux's `tcp_info`, its first byte."""
TCP_RECEIVED = 128
"""Offset of `tcpi_bytes_received` in Linux's `tcp_info`."""
TCP_INFO_BYTES = 136
DESCRIPTORS = "/proc/self/fd"
FAMILIES = (socket.AF_INET, socket.AF_INET6)
LOG = logging.getLogger(__name__)


@dataclass
class Connection:
    """One peer's TCP connection."""

    socket: int
    """Inode of its socket: descriptors and ports are reused."""
    family: int
    base_bytes: int = 0
    """Bytes received by the first check after its last complete message was taken."""
    active: bool = False
    """Whether a complete message was ever taken from it."""
    key: str = ""
    """Key of its sender, once a message was taken; empty without keys."""
    over: int = 0
    """Number of consecutive checks in which it exceeded its limit."""
    closed: int = 0
    """Number of consecutive checks in which it was closed."""


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
        self._null = os.open(os.devnull, os.O_RDONLY)
        self._spare = os.dup(self._null)
        """Descriptor of the duplicates: none may be free when one is needed."""

    def close(self) -> None:
        """Close the descriptors kept for checks."""
        for descriptor in (self._null, self._spare):
            os.close(descriptor)

    @property
    def watched(self) -> bool:
        """Whether this system reports the bytes received per connection."""
        return bool(self.ports) and sys.platform == "linux" and os.path.isdir(DESCRIPTORS)

    @property
    def clogged(self) -> bool:
        """Whether so many connections are stuck that the socket must be opened anew, which closes them."""
        return self.stuck > self._most // 2

    def taken(self, descriptor: int, excess: str = "", key: str = "") -> None:
        """Note that a complete message was taken; its sender, who owns `key`, is disconnected if it exceeds a bound,
        `excess`.
        """
        self._taken[descriptor] = key
        if excess:
            with self._duplicate(descriptor) as connected:
                if connected is not None:
                    self._disconnect(connected, excess)

    def check(self, drained: bool) -> bool:
        """Shut down connections over a limit; returns whether there are suspects, which need another check soon.

        Args:
            drained: whether all complete messages have been taken, so that all other received bytes belong to an
                unfinished message.
        """
        limit = self._message_bytes * (1 if drained else 1 + self._waiting) + SPARE_BYTES
        taken, self._taken = self._taken, {}
        held: Counter[str] = Counter()
        found: dict[int, Connection] = {}
        suspects = 0
        for descriptor, connected, known in self._open():
            found[descriptor] = known
            received, closed = _received(connected)
            known.closed = known.closed + 1 if closed else 0
            if descriptor in taken:
                known.base_bytes, known.active, known.key = received, True, taken[descriptor]
            over = received - known.base_bytes > limit and received - _unread(connected) - known.base_bytes > limit
            known.over = known.over + 1 if over else 0
            suspects += known.over == 1
            held[known.key] += not closed
            if known.over >= CONFIRM_CHECKS:
                self._disconnect(connected, f"an unfinished message of more than {limit} bytes")
            elif not known.active and len(found) > self._most:
                self._disconnect(connected, f"more than {self._most} connections")
            elif known.key and held[known.key] > self._most // 2 and not closed:
                self._disconnect(connected, f"more than {self._most // 2} connections with the same key")
        self._known = found
        self.stuck = sum(known.closed >= STUCK_CHECKS for known in found.values())
        if self._trim_in:
            self._trim_in -= 1
            if not self._trim_in:
                _trim()
        return suspects > 0

    def _disconnect(self, connected: socket.socket, why: str) -> None:
        self.cut, self._trim_in = self.cut + 1, TRIM_CHECKS
        if self.cut & (self.cut - 1) == 0:  # log the 1st, 2nd, 4th, 8th …, so that peers cannot fill the log
            LOG.warning("connection closed (%d so far): %s", self.cut, why)
        with contextlib.suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)

    def _open(self) -> Iterator[tuple[int, socket.socket, Connection]]:
        """All open connections. Each socket is a duplicate: if libzmq closes its own meanwhile, the duplicate still
        refers to the same connection.
        """
        for descriptor in _descriptors():
            known = self._known.get(descriptor)
            with self._duplicate(descriptor, None if known is None else known.family) as connected:
                if connected is None:
                    continue
                try:
                    inode = os.fstat(connected.fileno()).st_ino
                    if known is None or known.socket != inode:
                        if connected.family not in FAMILIES or connected.getsockname()[1] not in self.ports:
                            continue
                        if connected.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                            continue
                        known = Connection(inode, connected.family)
                    yield descriptor, connected, known
                except OSError:  # closed
                    continue

    @contextlib.contextmanager
    def _duplicate(self, descriptor: int, family: int | None = None) -> Iterator[socket.socket | None]:
        """A duplicate of a socket, one at a time; None if the descriptor is not a socket. `family` None: determined
        from the socket.
        """
        if descriptor in (self._null, self._spare):
            yield None
            return
        try:
            os.dup2(descriptor, self._spare, inheritable=False)
            if family is None:
                connected = socket.socket(fileno=self._spare)
            else:
                connected = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, self._spare)
        except OSError:
            yield None
            return
        try:
            yield connected
        finally:
            connected.detach()
            os.dup2(self._null, self._spare, inheritable=False)


def notice_gone_hosts(socket: zmq.Socket[bytes]) -> None:
    """Have the kernel close connections to hosts that have vanished; otherwise it keeps idle ones for ever."""
    for option, value in (
        (zmq.TCP_KEEPALIVE, 1), (zmq.TCP_KEEPALIVE_IDLE, round(GONE_S / 2)), (zmq.TCP_KEEPALIVE_CNT, PROBES),
        (zmq.TCP_KEEPALIVE_INTVL, round(GONE_S / 2 / PROBES)), (zmq.TCP_MAXRT, round(GONE_S * 1000)),
    ):  # fmt: skip
        socket.setsockopt(option, value)


def _descriptors() -> Iterable[int]:
    """The open descriptors of this process; where none is free to list them with, all that it may open."""
    try:
        return map(int, os.listdir(DESCRIPTORS))
    except OSError as exc:
        if not no_descriptor(exc):
            raise
        return range(_limit())


def _received(connected: socket.socket) -> tuple[int, bool]:
    """Bytes received on a connection, and whether it is closed."""
    info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    if len(info) < TCP_INFO_BYTES:  # before Linux 4.1
        return 0, False
    return struct.unpack_from("<Q", info, TCP_RECEIVED)[0], info[0] == TCP_CLOSE


def _unread(connected: socket.socket) -> int:
    """Bytes in the kernel's receive buffer."""
    unread = array.array("i", [0])
    fcntl.ioctl(connected, termios.FIONREAD, unread)
    return unread[0]


def _trim() -> None:
    """Ask glibc to return freed memory to the system; it may otherwise keep small pieces indefinitely."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**20 if soft == resource.RLIM_INFINITY else soft


def _room() -> int:
    return max(1, int(SHARE * _limit()))
