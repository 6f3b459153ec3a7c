"""TCP proxy in user space that emulates a link per connection: rate, delay, jitter, packet errors, outages.

Each accepted connection is one UE's link with an uplink (towards the BS) and a downlink, modelled by
`link_model.Direction` or by a port of a radio cell. A direction without limit and delay forwards data immediately. The
proxy needs no root; it cannot drop packets as `tc` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import select
import selectors
import socket
import time
from collections.abc import Callable

from testbed.channel.link_model import Carrier
from testbed.channel.pipe import End, Ends, Pipe
from testbed.errors import BadInput
from testbed.tasks import cancel

LOG = logging.getLogger(__name__)

AWAKE_S = 0.0004
"""The event loop polls instead of sleeping for the last `AWAKE_S` before a timer."""
AT_ONCE = 64
"""Sockets that are served in one turn of the event loop, some 0.1 ms each."""
KERNEL_BYTES = 2**17
"""Receive buffer of each socket. The kernel's default is megabytes, which is seconds of a slow link."""

MakePath = Callable[[int], tuple[Carrier, Carrier]]
"""Returns uplink and downlink of the n-th connection."""


class PreciseSelector(selectors.EpollSelector):
    """Selector with timers accurate to tens of microseconds, which a burst of connections does not hold up.

    epoll has a resolution of 1 ms, and a sleeping processor wakes some tenths of a millisecond late. So select(2)
    sleeps on the epoll descriptor until shortly before the timer, and the rest of the time is spent polling. Where
    many sockets are ready, each turn of the loop takes the next `AT_ONCE` of them.
    """

    _first = 0
    """Place of the first socket of a turn, if more than `AT_ONCE` are ready."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return self._some(super().select(timeout))
        end_s = time.monotonic() + timeout
        if timeout > AWAKE_S:
            select.select([self.fileno()], [], [], timeout - AWAKE_S)
        while not (ready := super().select(0)) and time.monotonic() < end_s:
            pass
        return self._some(ready)

    def _some(self, ready: list[tuple[selectors.SelectorKey, int]]) -> list[tuple[selectors.SelectorKey, int]]:
        if len(ready) <= AT_ONCE:
            return ready
        self._first = (self._first + AT_ONCE) % len(ready)
        return (ready[self._first :] + ready[: self._first])[:AT_ONCE]


def precise_loop() -> asyncio.AbstractEventLoop:
    """Event loop whose timers are late by tens of microseconds instead of up to a millisecond."""
    return asyncio.SelectorEventLoop(PreciseSelector())


class Proxy:
    """Relays TCP connections to a target, each over its own emulated link.

    Args:
        target: host and port of the BS; None: the UE is in no cell, and connections are closed.
        make_path: returns the link of the n-th connection, n from 0.
    """

    def __init__(self, target: tuple[str, int] | None, make_path: MakePath) -> None:
        self._target, self._make_path = target, make_path
        self._server: asyncio.Server | None = None
        self._pairs: set[tuple[Pipe, Pipe]] = set()
        self._moved_bytes = [0, 0]
        """Bytes of closed links, uplink and downlink."""
        self.connections = 0
        """Number of links created so far."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.refused = 0
        """Connections dropped because the target did not accept them."""

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port (a free one if `port` is 0).

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
        """Abort all connections; returns how many. Both sides may reconnect."""
        pairs = list(self._pairs)
        for up, down in pairs:
            up.cut(abort=True)
            down.cut(abort=True)
        return len(pairs)

    def hand_over(self, target: tuple[str, int] | None) -> None:
        """Connect to another target from now on, as `target` at first; connections to the old one are aborted."""
        self._target = target
        self.reset()

    def moved_bytes(self) -> tuple[int, int]:
        """Bytes received so far over all links, uplink and downlink."""
        up, down = self._moved_bytes
        return up + sum(u.moved_bytes for u, _ in self._pairs), down + sum(d.moved_bytes for _, d in self._pairs)

    def _ended(self, pair: tuple[Pipe, Pipe]) -> None:
        """Drop a link whose ends are both closed; only its byte counts are kept."""
        self._pairs.remove(pair)
        for way, pipe in enumerate(pair):
            self._moved_bytes[way] += pipe.moved_bytes

    def join(self, front: End) -> None:
        """Connect a new UE connection to the target."""
        task = asyncio.get_running_loop().create_task(self._connect(front))
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._joined, front))

    def _joined(self, front: End, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            LOG.error("a connection of a UE failed", exc_info=error)
            front.transport.abort()

    async def _connect(self, front: End) -> None:
        if (target := self._target) is None:
            front.transport.abort()
            return
        try:
            _, back = await asyncio.get_running_loop().create_connection(End, *target)
        except OSError:
            self.refused += 1
            front.transport.close()
            return
        if target != self._target:  # handed over meanwhile
            back.transport.abort()
            front.transport.abort()
            return
        try:
            self._link(front, back)
        except Exception:
            back.transport.abort()
            raise

    def _link(self, front: End, back: End) -> None:
        """Connect both ends by a new link."""
        up_path, down_path = self._make_path(self.connections)
        self.connections += 1
        up, down = Pipe(up_path, front, back), Pipe(down_path, back, front)
        self._pairs.add((up, down))
        front.ends = back.ends = Ends(2 - front.gone, functools.partial(self._ended, (up, down)))
        for end, path in ((front, up_path), (back, down_path)):
            if not path.free:
                with contextlib.suppress(OSError):  # reset meanwhile
                    end.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BYTES)
        front.wire(up, down)
        back.wire(down, up)
        if front.transport.is_closing():
            back.transport.close()


class _Front(End):
    """The UE's end of a link; it requests the connection to the target when the UE connects."""

    def __init__(self, proxy: Proxy) -> None:
        super().__init__()
        self._proxy = proxy

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._proxy.join(self)
