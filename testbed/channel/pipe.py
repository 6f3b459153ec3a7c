"""A relayed TCP connection: its two sockets (`End`) and, between them, one byte queue per direction (`Pipe`)."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from testbed.channel.link_model import Direction

PIECE_S = 0.002
"""Duration of a piece: received data is split into pieces that take about this long to serve."""
LEAST_PIECE_BYTES = 1500
SLACK_S, SLACK_BYTES = 0.05, 2**18
"""Buffer beyond the bandwidth–delay product, after which a direction stops reading, so that the sender sees
backpressure as from a router with a full queue."""
FREE_HOLD_BYTES = 2**26
"""Buffer of a direction with a delay but no rate limit."""
HIGH_WATER_BYTES = 2**20
"""Write buffer of a socket, after which its pipe stops reading."""


@dataclass
class Ends:
    """Counts the open ends of a link and calls `none_left` when both are closed."""

    left: int
    none_left: Callable[[], None]

    def lost(self) -> None:
        """One end was closed."""
        self.left -= 1
        if not self.left:
            self.none_left()


class End(asyncio.Protocol):
    """One socket of a relayed connection; it passes received data to the pipe towards the other end."""

    transport: asyncio.Transport
    gone = False
    """Whether the connection is closed."""

    def __init__(self) -> None:
        self.pipe: Pipe | None = None
        """Receives the data that this end reads."""
        self.feeder: Pipe | None = None
        """Writes to this end."""
        self.ends: Ends | None = None
        self._early: list[bytes | None] = []
        """Data received before the other end was connected."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(HIGH_WATER_BYTES)

    def wire(self, pipe: Pipe, feeder: Pipe) -> None:
        """Attach the pipe that takes received data (`pipe`) and the one that writes to this end (`feeder`)."""
        self.pipe, self.feeder = pipe, feeder
        early, self._early = self._early, []
        for data in early:
            pipe.push(data)
        pipe.gate()

    def data_received(self, data: bytes) -> None:
        self._take(data)

    def eof_received(self) -> bool:
        self._take(None)
        return True

    def _take(self, data: bytes | None) -> None:
        if self.pipe is None:
            self._early.append(data)
            if data is not None:
                self.transport.pause_reading()  # until the pipe is attached
        else:
            self.pipe.push(data)

    def pause_writing(self) -> None:
        if self.feeder is not None:
            self.feeder.hold(True)

    def resume_writing(self) -> None:
        if self.feeder is not None:
            self.feeder.hold(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        if self.ends is not None:
            self.ends.lost()
        if self.feeder is not None:
            self.feeder.cut()
        if self.pipe is not None:
            self.pipe.push(None, lost=True)


class Pipe:
    """One direction of a relayed connection: holds data until the link model says that it has arrived."""

    def __init__(self, direction: Direction, source: End, sink: End) -> None:
        self._direction, self._source, self._sink = direction, source, sink
        self._queue: deque[tuple[float, memoryview | None, bool]] = deque()
        self._held_bytes = 0
        self._limit_bytes = _limit_bytes(direction)
        self._timer: asyncio.TimerHandle | None = None
        self._full = self._slow = self._cut = False
        self.ended = False
        """Whether the source's end of file was passed on to the sink."""
        self.moved_bytes = 0

    def push(self, data: bytes | None, lost: bool = False) -> None:
        """Queue received data. None: the source sent an end of file, or its connection is closed (`lost`)."""
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
        self.gate()
        if self._timer is None:
            self._timer = loop.call_at(self._queue[0][0], self._deliver)

    def _end(self) -> None:
        """Pass the source's end of file on; close both ends if the sink has sent one too."""
        if self._sink.transport.can_write_eof():
            with contextlib.suppress(OSError):  # reset meanwhile
                self._sink.transport.write_eof()
        self.ended = True
        if self._sink.pipe is not None and self._sink.pipe.ended:
            self._sink.transport.close()
            self._source.transport.close()

    def hold(self, slow: bool) -> None:
        """Pause while the sink's write buffer is full (`slow`), else resume."""
        self._slow = slow
        self.gate()

    def cut(self, abort: bool = False) -> None:
        """Drop all queued data because the sink is closed, and close the source (`abort`: without flushing)."""
        self._cut = True
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()
        if abort:
            self._source.transport.abort()
        else:
            self._source.transport.close()

    def gate(self) -> None:
        """Pause or resume reading from the source, depending on the buffers."""
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
            else:
                self._end()
        if self._queue:
            self._timer = loop.call_at(self._queue[0][0], self._deliver)
        if self._full and self._held_bytes < self._limit_bytes / 2:
            self._full = False
            self.gate()


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
    flight_s = max(schedule.delay_s) + direction.jitter_s
    if any(schedule.per):
        flight_s += direction.recovery.rlc_s
    return SLACK_BYTES + fastest * 1e6 / 8 * (flight_s + SLACK_S)
