"""Listening sockets of a ZeroMQ socket that is opened anew: their ports are free at no time (Linux).

A port that is free for a moment can be taken by another user of the machine, to whom the UEs would then connect.
"""

from __future__ import annotations

import contextlib
import os
import socket

import zmq

from testbed.channel.limits.sockets import FAMILIES, descriptors, watchable


class Listeners:
    """Duplicates of the descriptors of listening sockets, by address."""

    def __init__(self) -> None:
        self._kept: dict[str, int] = {}

    def keep(self, address: str) -> None:
        """Keep the socket that listens at a `tcp://` address, once it is bound."""
        if address.startswith("tcp://") and watchable():
            port = int(address.rpartition(":")[2])
            known = {os.fstat(descriptor).st_ino for descriptor in self._kept.values()}
            for descriptor in descriptors():
                if _listens(descriptor, port) and os.fstat(descriptor).st_ino not in known:
                    self._kept[address] = os.dup(descriptor)
                    break

    def bind(self, opened: zmq.Socket[bytes], address: str) -> None:
        """Bind another ZeroMQ socket to an address: to the socket that is kept, if there is one.

        Raises:
            OSError: no descriptor is free.
            zmq.ZMQError: the address is taken.
        """
        kept = self._kept.get(address)
        if kept is None:
            opened.bind(address)
            return
        descriptor = os.dup(kept)
        opened.setsockopt(zmq.USE_FD, descriptor)
        try:
            opened.bind(address)
        except zmq.ZMQError:
            os.close(descriptor)
            raise
        finally:
            opened.setsockopt(zmq.USE_FD, -1)

    def close(self) -> None:
        """Give the ports up."""
        for descriptor in self._kept.values():
            os.close(descriptor)
        self._kept.clear()


def _listens(descriptor: int, port: int) -> bool:
    with contextlib.suppress(OSError):  # no socket
        duplicate = socket.socket(fileno=os.dup(descriptor))
        with duplicate:
            listens = duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            return bool(listens) and duplicate.family in FAMILIES and duplicate.getsockname()[1] == port
    return False
