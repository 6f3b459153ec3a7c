"""Listening sockets of a ZeroMQ socket that is opened anew: their ports are free at no time (Linux).

A port that is free for a moment can be taken by another user of the machine, to whom the UEs would then connect.
"""

from __future__ import annotations

import os

import zmq

from testbed.channel.limits.sockets import FAMILIES, Duplicates, descriptors, listens, watchable


class Listeners:
    """Duplicates of the descriptors of listening sockets, by address."""

    def __init__(self) -> None:
        self._kept: dict[str, int] = {}

    def keep(self, address: str) -> None:
        """Keep the socket that listens at a `tcp://` address, once it is bound."""
        if not address.startswith("tcp://") or not watchable():
            return
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        wanted, duplicates = (host.strip("[]"), int(port)), Duplicates()
        known = {os.fstat(descriptor).st_ino for descriptor in self._kept.values()}
        for descriptor in descriptors():
            with duplicates.of(descriptor) as opened:
                if opened is None or opened.family not in FAMILIES or not listens(opened):
                    continue
                if opened.getsockname()[:2] == wanted and os.fstat(opened.fileno()).st_ino not in known:
                    self._kept[address] = os.dup(opened.fileno())
                    # While two ZeroMQ sockets listen, both are told of a connection that only one of them gets.
                    os.set_blocking(self._kept[address], False)
                    break
        duplicates.close()

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
