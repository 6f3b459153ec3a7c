"""A TCP relay in user space that makes a link of every connection: rate, delay, jitter, packet errors, outages.

Each accepted connection is one UE's link, with an uplink (towards the BS) and a downlink of its own. What a direction
neither limits nor delays is handed on as it comes. Needs no root; real packet loss is `tc`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import select
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import cast

from testbed.channel.path import Direction
from testbed.errors import BadInput

AWAKE_S = 0.0004
"""The loop looks, and does not sleep, for so long before a timer."""
PIECE_S = 0.002
"""A chunk is handed on in pieces that take about this long to serve."""
LEAST_PIECE_BYTES = 1500
SLACK_S, SLACK_BYTES = 0.05, 2**18
"""What a direction holds beyond what is in flight (rate times delay), before it stops reading: the sender must feel
the link, as it would a router's full queue."""
KERNEL_BYTES = 2**17
"""What the kernel may hold before the relay reads it; on its own it would take megabytes, seconds of a slow link."""
FREE_HOLD_BYTES = 2**26
"""The same where there is a delay, but no rate."""
HIGH_WATER_BYTES = 2**20
"""Of a socket that does not take what is written to it."""

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


class _End(asyncio.Protocol):
    """One end of a relayed connection: takes bytes in and hands them to the pipe that leads to the other end."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.pipe: _Pipe | None = None
        """Where what comes in goes."""
        self.feeder: _Pipe | None = None
        """What writes to this end."""
        self._early: list[bytes | None] = []
        """What came before the other end was there."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(HIGH_WATER_BYTES)

    def wire(self, pipe: _Pipe, feeder: _Pipe) -> None:
        """Lead what comes in to `pipe`; be written to by `feeder`."""
        self.pipe, self.feeder = pipe, feeder
        for data in self._early:
            pipe.push(data)

    def data_received(self, data: bytes) -> None:
        self._take(data)

    def eof_received(self) -> bool:
        self._take(None)
        return True

    def _take(self, data: bytes | None) -> None:
        if self.pipe is None:
            self._early.append(data)
        else:
            self.pipe.push(data)

    def pause_writing(self) -> None:
        if self.feeder is not None:
            self.feeder.hold(True)

    def resume_writing(self) -> None:
        if self.feeder is not None:
            self.feeder.hold(False)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.feeder is not None:
            self.feeder.cut()
        if self.pipe is not None:
            self.pipe.push(None, lost=True)


class _Pipe:
    """One direction of one connection, between two ends."""

    def __init__(self, direction: Direction, source: _End, sink: _End) -> None:
        self._direction, self._source, self._sink = direction, source, sink
        self._queue: deque[tuple[float, memoryview | None, bool]] = deque()
        self._held_bytes = 0
        self._limit_bytes = _limit_bytes(direction)
        self._timer: asyncio.TimerHandle | None = None
        self._full = self._slow = self._cut = False
        self.moved_bytes = 0

    def push(self, data: bytes | None, lost: bool = False) -> None:
        """Take a chunk in; None: the source ends (`lost`: it is gone)."""
        if self._cut:
            return
        if data is None:
            last_s = self._queue[-1][0] if self._queue else 0.0
            self._queue.append((last_s, None, lost))
            self._deliver()
            return
        self.moved_bytes += len(data)
        if self._direction.free:
            self._sink.transport.write(data)
            return
        loop = asyncio.get_running_loop()
        now_s, view = loop.time(), memoryview(data)
        step = _piece_bytes(self._direction, now_s)
        for at in range(0, len(view), step):
            piece = view[at : at + step]
            self._queue.append((self._direction.admit(now_s, len(piece)), piece, False))
        self._held_bytes += len(view)
        self._full = self._held_bytes > self._limit_bytes
        self._gate()
        if self._timer is None:
            self._timer = loop.call_at(self._queue[0][0], self._deliver)

    def hold(self, slow: bool) -> None:
        """The sink takes no more for now (or does again)."""
        self._slow = slow
        self._gate()

    def cut(self, abort: bool = False) -> None:
        """The sink is gone: nothing can be delivered any more (`abort`: nor may the source finish)."""
        self._cut = True
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()
        if abort:
            self._source.transport.abort()
        else:
            self._source.transport.close()

    def _gate(self) -> None:
        stop, reading = self._full or self._slow, self._source.transport.is_reading()
        with contextlib.suppress(RuntimeError):  # closing
            if stop and reading:
                self._source.transport.pause_reading()
            elif not stop and not reading:
                self._source.transport.resume_reading()

    def _deliver(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._queue and self._queue[0][0] <= now_s:
            _, piece, lost = self._queue.popleft()
            if piece is not None:
                self._held_bytes -= len(piece)
                self._sink.transport.write(piece)
            elif lost:
                self._sink.transport.close()
            elif self._sink.transport.can_write_eof():
                self._sink.transport.write_eof()
        if self._queue:
            self._timer = loop.call_at(self._queue[0][0], self._deliver)
        if self._full and self._held_bytes < self._limit_bytes / 2:
            self._full = False
            self._gate()


def _piece_bytes(direction: Direction, now_s: float) -> int:
    index, _ = direction.schedule.piece(max(0.0, now_s - direction.origin_s))
    rate_mbps = direction.schedule.rate_mbps[index]
    if math.isinf(rate_mbps):
        return SLACK_BYTES
    return max(LEAST_PIECE_BYTES, int(rate_mbps * 1e6 / 8 * PIECE_S))


def _limit_bytes(direction: Direction) -> float:
    schedule = direction.schedule
    fastest = max(rate for rate in schedule.rate_mbps)
    if math.isinf(fastest):
        return FREE_HOLD_BYTES
    flight_s = max(schedule.delay_s) + 3 * direction.jitter_s
    return SLACK_BYTES + fastest * 1e6 / 8 * (flight_s + SLACK_S)


class Proxy:
    """Relays connections to a target, each over a link of its own.

    Args:
        target: host and port of the BS.
        make_path: the n-th connection's link, n from 0.
    """

    def __init__(self, target: tuple[str, int], make_path: MakePath) -> None:
        self._target, self._make_path = target, make_path
        self._server: asyncio.Server | None = None
        self._pairs: list[tuple[_Pipe, _Pipe]] = []
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
        for task in list(self._tasks):
            task.cancel()
        for up, down in self._pairs:
            up.cut(abort=True)
            down.cut(abort=True)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # connections end in the loop's next turn

    @property
    def connections(self) -> int:
        """Links made so far."""
        return len(self._pairs)

    def moved_bytes(self) -> tuple[int, int]:
        """Bytes taken in so far, up and down, over all links."""
        return sum(up.moved_bytes for up, _ in self._pairs), sum(down.moved_bytes for _, down in self._pairs)

    def join(self, front: _End) -> None:
        """Connect a new UE's end to the target."""
        task = asyncio.get_running_loop().create_task(self._connect(front))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, front: _End) -> None:
        try:
            _, back = await asyncio.get_running_loop().create_connection(_End, *self._target)
        except OSError:
            self.refused += 1
            front.transport.close()
            return
        up_path, down_path = self._make_path(len(self._pairs))
        up, down = _Pipe(up_path, front, back), _Pipe(down_path, back, front)
        self._pairs.append((up, down))
        for end, path in ((front, up_path), (back, down_path)):
            if not path.free:
                end.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BYTES)
        front.wire(up, down)
        back.wire(down, up)
        if front.transport.is_closing():
            back.transport.close()


class _Front(_End):
    """The UE's end: asks for its other end as soon as it is there."""

    def __init__(self, proxy: Proxy) -> None:
        super().__init__()
        self._proxy = proxy

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._proxy.join(self)
