"""Limit on the size of unfinished messages to a ZeroMQ socket that connects to one peer.

See `limits.connections`. Which of the process's connections is that of the socket, libzmq's monitor tells.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket as sockets
import sys
import time

import zmq
from zmq.utils.monitor import parse_monitor_message

from testbed.channel.limits.counts import RECHECK_S, Connection
from testbed.channel.limits.sockets import FAMILIES, received_by

CHECK_S = 0.1
"""Interval between checks: twice that of a BS, which has many peers."""
NUMBERS = itertools.count()
"""Of monitors: libzmq may still hold the address of one that was closed."""
EVENTS = int(zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED)


class OutgoingConnection:
    """The connection of a socket to its peer; another one each time that libzmq connects anew.

    Args:
        socket: it is not connected yet.
        message_bytes: size of the largest message.
    """

    def __init__(self, socket: zmq.Socket[bytes], message_bytes: int) -> None:
        self._socket, self._message_bytes = socket, message_bytes
        self._descriptor = -1
        self._known: Connection | None = None
        """None: there is no connection, or it was not checked yet."""
        self._taken = False
        self._check_s = 0.0
        """Time of the next check."""
        address = f"inproc://connection-{next(NUMBERS)}"
        socket.monitor(address, EVENTS)
        self._monitor: zmq.Socket[bytes] = socket.context.socket(zmq.PAIR)
        self._monitor.set(zmq.RCVHWM, 0)  # otherwise libzmq's thread waits until its notices are read
        self._monitor.connect(address)

    def taken(self) -> None:
        """Note that a complete message was taken."""
        self._taken = True

    @property
    def due_s(self) -> float:
        """Time until the next check."""
        return max(0.0, self._check_s - time.monotonic())

    def excess(self) -> str:
        """Which bound an unfinished message exceeds; empty: none is known to. To be called once all complete messages
        were taken; `due_s` tells when again.
        """
        if self.due_s or sys.platform != "linux":
            return ""
        self._follow()
        found = ""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):  # it is closed, or there is no descriptor for a duplicate
                found = self._checked()
        suspect = self._known is not None and self._known.over
        self._check_s = time.monotonic() + (RECHECK_S if suspect else CHECK_S)
        return found

    def _follow(self) -> None:
        """Learn from the monitor which connection is the latest."""
        with contextlib.suppress(zmq.Again):
            while True:
                notice = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
                self._descriptor = notice["value"] if notice["event"] == zmq.EVENT_CONNECTED else -1
                self._known = None

    def _checked(self) -> str:
        with sockets.socket(fileno=os.dup(self._descriptor)) as connected:
            inode = os.fstat(connected.fileno()).st_ino
            if connected.family not in FAMILIES or (self._known is not None and self._known.socket != inode):
                self._descriptor = -1  # ipc://, or closed: the monitor tells the next one
                return ""
            known = self._known = self._known or Connection(inode, connected.family, b"", time.monotonic())
            received, _ = received_by(connected)
            if self._taken:
                known.base_bytes, self._taken = received, False
            return known.unfinished(connected, received, self._message_bytes)

    def close(self) -> None:
        """Stop following, before the socket is closed; a second call does nothing."""
        if not self._monitor.closed:
            self._socket.disable_monitor()
            self._monitor.close(0)
