"""Waiting for messages of a ZeroMQ socket on an event loop, without a future and a timer per message."""

from __future__ import annotations

import asyncio
from typing import Any

import zmq

POLLIN = int(zmq.POLLIN)


class Readiness:
    """Wakes the task that receives on a socket; there is one at a time.

    libzmq's descriptor tells once that something has happened, and any call on the socket takes that notice. So the
    receiver waits only after it has found the socket empty, and `taken` is called after every send.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket, self._descriptor = socket, int(socket.get(zmq.FD))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def waiting(self) -> bool:
        """Whether the receiver waits."""
        return self._waiter is not None

    async def wait(self, timeout_s: float | None = None) -> None:
        """Return when there may be a message, or after `timeout_s`."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._leave()
            loop.add_reader(self._descriptor, self.taken)
            self._loop = loop
        self._waiter = waiter = loop.create_future()
        timer = None if timeout_s is None else loop.call_later(timeout_s, _wake, waiter)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def taken(self) -> None:
        """Wake the receiver if there is a message: called when something has happened, or the notice of it is gone."""
        events: Any = self._socket.get(zmq.EVENTS)
        if self._waiter is not None and int(events) & POLLIN:
            _wake(self._waiter)

    def close(self) -> None:
        """Stop watching, before the socket is closed; who waits is cancelled."""
        self._leave()
        if self._waiter is not None:
            self._waiter.cancel()

    def _leave(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._descriptor)
        self._loop = None


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
