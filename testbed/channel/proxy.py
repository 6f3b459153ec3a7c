"""A TCP relay in user space that makes a link of every connection: rate, delay, jitter, packet errors, outages.

Each accepted connection is one UE's link, with an uplink (towards the BS) and a downlink of its own. What a direction
neither limits nor delays is handed on as it comes. Needs no root; real packet loss is `tc`'s.
"""

from __future__ import annotations

import asyncio
import functools
import select
import selectors
import socket
import time
from collections.abc import Callable

from testbed.channel.path import Direction
from testbed.channel.pipe import End, Ends, Pipe
from testbed.errors import BadInput
from testbed.tasks import cancel

AWAKE_S = 0.0004
"""The loop looks, and does not sleep, for so long before a timer."""
KERNEL_BYTES = 2**17
"""What the kernel may hold before the relay reads it; on its own it would take megabytes, seconds of a slow link."""

MakePath = Callable[[int], tuple[Direction, Direction]]
"""Uplink and downlink of the n-th connection."""


class PreciseSelector(selectors.EpollSelector):
    """Wakes on time. epoll knows whole milliseconds only, and a sleeping processor wakes some tenths of a millisecond
    late: so select(2) sleeps on the epoll descriptor until shortly before, and the rest is spent looking.
    """

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        end_s = time.monotonic() + timeout
        if timeout > AWAKE_S:
            select.select([self.fileno()], [], [], timeout - AWAKE_S)
        while not (ready := super().select(0)) and time.monotonic() < end_s:
            pass
        return ready


def precise_loop() -> asyncio.AbstractEventLoop:
    """An event loop for the proxy: its timers are late by tens of microseconds, not by up to a millisecond."""
    return asyncio.SelectorEventLoop(PreciseSelector())


class Proxy:
    """Relays connections to a target, each over a link of its own.

    Args:
        target: host and port of the BS.
        make_path: the n-th connection's link, n from 0.
    """

    def __init__(self, target: tuple[str, int], make_path: MakePath) -> None:
        self._target, self._make_path = target, make_path
        self._server: asyncio.Server | None = None
        self._pairs: set[tuple[Pipe, Pipe]] = set()
        self._moved_bytes = [0, 0]
        """Over links that have ended."""
        self.connections = 0
        """Links made so far."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.refused = 0
        """Connections that were dropped because the target was not there."""

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port (a free one where 0 was asked).

        Raises:
            BadInput: the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: _Front(self), host, port)
        except OSError as exc:
            raise BadInput(f"cannot listen on {host}:{port}: {exc.strerror or exc}") from exc
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and drop all connections."""
        if self._server is not None:
            self._server.close()
        self.reset()
        await cancel(*self._tasks)
        await asyncio.sleep(0)  # connections end in the loop's next turn

    def reset(self) -> int:
        """Drop all connections as they stand; returns how many. Their ends may connect anew."""
        pairs = list(self._pairs)
        for up, down in pairs:
            up.cut(abort=True)
            down.cut(abort=True)
        return len(pairs)

    def moved_bytes(self) -> tuple[int, int]:
        """Bytes taken in so far, up and down, over all links."""
        up, down = self._moved_bytes
        return up + sum(u.moved_bytes for u, _ in self._pairs), down + sum(d.moved_bytes for _, d in self._pairs)

    def _ended(self, pair: tuple[Pipe, Pipe]) -> None:
        """Both ends of a link are gone: nothing but its bytes is kept."""
        self._pairs.remove(pair)
        for way, pipe in enumerate(pair):
            self._moved_bytes[way] += pipe.moved_bytes

    def join(self, front: End) -> None:
        """Connect a new UE's end to the target."""
        task = asyncio.get_running_loop().create_task(self._connect(front))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, front: End) -> None:
        try:
            _, back = await asyncio.get_running_loop().create_connection(End, *self._target)
        except OSError:
            self.refused += 1
            front.transport.close()
            return
        up_path, down_path = self._make_path(self.connections)
        self.connections += 1
        up, down = Pipe(up_path, front, back), Pipe(down_path, back, front)
        self._pairs.add((up, down))
        front.ends = back.ends = Ends(2 - front.gone, functools.partial(self._ended, (up, down)))
        for end, path in ((front, up_path), (back, down_path)):
            if not path.free:
                end.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BYTES)
        front.wire(up, down)
        back.wire(down, up)
        if front.transport.is_closing():
            back.transport.close()


class _Front(End):
    """The UE's end: asks for its other end as soon as it is there."""

    def __init__(self, proxy: Proxy) -> None:
        super().__init__()
        self._proxy = proxy

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._proxy.join(self)
