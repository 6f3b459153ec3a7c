"""Sockets of this process that belong to libzmq, seen through duplicates of their descriptors (Linux)."""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import os
import resource
import socket
import struct
import sys
import termios
from collections.abc import Iterable, Iterator

import zmq

from testbed.errors import no_descriptor

TCP_CLOSE = 7
"""State of a closed connection in Linux's `tcp_info`, its first byte."""
TCP_RECEIVED = 128
"""Offset of `tcpi_bytes_received` in Linux's `tcp_info`."""
TCP_INFO_BYTES = 136
GONE_S = 60.0
"""Silence of a peer's host after which TCP connections to it are closed."""
PROBES = 3
"""TCP keepalive probes in the second half of that time."""
READ_BYTES, MOST_READS = 2**16, 256
"""Bytes that are discarded at once, and how often: more than a receive buffer holds."""
DESCRIPTORS = "/proc/self/fd"
FAMILIES = (socket.AF_INET, socket.AF_INET6)


class Duplicates:
    """Duplicates of descriptors, one at a time: if libzmq closes its own meanwhile, a duplicate still refers to the
    same connection. They need no free descriptor.
    """

    def __init__(self) -> None:
        self._null = os.open(os.devnull, os.O_RDONLY)
        self._spare = os.dup(self._null)
        """Descriptor of the duplicates: none may be free when one is needed."""

    def close(self) -> None:
        """Close the descriptors that are kept for duplicates."""
        for descriptor in (self._null, self._spare):
            os.close(descriptor)

    @contextlib.contextmanager
    def of(self, descriptor: int, family: int | None = None) -> Iterator[socket.socket | None]:
        """A duplicate of a socket; None if the descriptor is no socket. `family` None: determined from the socket."""
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


def watchable() -> bool:
    """Whether this system shows the sockets of a process, and the bytes received on them."""
    return sys.platform == "linux" and os.path.isdir(DESCRIPTORS)


def descriptors() -> Iterable[int]:
    """The open descriptors of this process; where none is free to list them with, all that it may open."""
    try:
        return map(int, os.listdir(DESCRIPTORS))
    except OSError as exc:
        if not no_descriptor(exc):
            raise
        return range(limit())


def listens(opened: socket.socket) -> bool:
    """Whether it is a listening socket."""
    return bool(opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def received_by(connected: socket.socket) -> tuple[int, bool]:
    """Bytes received on a connection, and whether it is closed."""
    info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    if len(info) < TCP_INFO_BYTES:  # before Linux 4.1
        return 0, False
    return struct.unpack_from("<Q", info, TCP_RECEIVED)[0], info[0] == TCP_CLOSE


def unread_by(connected: socket.socket) -> int:
    """Bytes in the kernel's receive buffer."""
    unread = array.array("i", [0])
    fcntl.ioctl(connected, termios.FIONREAD, unread)
    return unread[0]


def discard(connected: socket.socket) -> None:
    """Shut a connection down without what was received on it but not read yet."""
    connected.shutdown(socket.SHUT_RDWR)
    for _ in range(MOST_READS):
        if not connected.recv(READ_BYTES, socket.MSG_TRUNC | socket.MSG_DONTWAIT):
            break


def trim() -> None:
    """Ask glibc to return freed memory to the system; it may otherwise keep small pieces indefinitely."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def limit() -> int:
    """Number of descriptors that this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**20 if soft == resource.RLIM_INFINITY else soft


def notice_gone_hosts(socket: zmq.Socket[bytes]) -> None:
    """Have the kernel close connections to hosts that have vanished; otherwise it keeps idle ones for ever."""
    for option, value in (
        (zmq.TCP_KEEPALIVE, 1), (zmq.TCP_KEEPALIVE_IDLE, round(GONE_S / 2)), (zmq.TCP_KEEPALIVE_CNT, PROBES),
        (zmq.TCP_KEEPALIVE_INTVL, round(GONE_S / 2 / PROBES)), (zmq.TCP_MAXRT, round(GONE_S * 1000)),
    ):  # fmt: skip
        socket.setsockopt(option, value)
