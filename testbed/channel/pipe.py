"""A relayed TCP connection: its two sockets (`End`) and, between them, one byte queue per direction (`Pipe`)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from testbed.channel.link_model import Carrier

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
    """One direction of a relayed connection: holds data until its carrier delivers them."""

    def __init__(self, carrier: Carrier, source: End, sink: End) -> None:
        self._carrier, self._source, self._sink = carrier, source, sink
        self._queue: deque[memoryview | None] = deque()
        """Pieces on their way, and ends of file among them."""
        self._lost = False
        """Whether the end of file in the queue is that of a closed connection."""
        self._held_bytes = 0
        self._limit_bytes = carrier.hold_bytes
        self._full = self._slow = self._cut = False
        self.ended = False
        """Whether the source's end of file was passed on to the sink."""
        self.moved_bytes = 0

    def push(self, data: bytes | None, lost: bool = False) -> None:
        """Queue received data. None: the source sent an end of file, or its connection is closed (`lost`)."""
        if self._cut:
            return
        if data is None:
            self._lost = self._lost or lost
            self._queue.append(None)
            self._end_if_due()
            return
        self.moved_bytes += len(data)
        if self._carrier.free:
            self._write(data)
            return
        view, step = memoryview(data), self._carrier.piece_bytes(asyncio.get_running_loop().time())
        self._held_bytes += len(view)
        self._full = self._held_bytes > self._limit_bytes
        for at in range(0, len(view), step):
            piece = view[at : at + step]
            self._queue.append(piece)
            self._carrier.carry(len(piece), self._arrived)
        self.gate()

    def _arrived(self) -> None:
        """Write the oldest piece; pieces arrive in the order in which they were sent."""
        if self._cut:
            return
        piece = self._queue.popleft()
        assert piece is not None
        self._held_bytes -= len(piece)
        self._write(piece)
        if self._full and self._held_bytes < self._limit_bytes / 2:
            self._full = False
            self.gate()
        self._end_if_due()

    def _write(self, data: bytes | memoryview) -> None:
        if not self._sink.transport.is_closing():  # asyncio drops what comes then, and warns
            self._sink.transport.write(data)

    def _end_if_due(self) -> None:
        """Pass on ends of file that no data precede."""
        while self._queue and self._queue[0] is None:
            self._queue.popleft()
            if self._lost:
                self._sink.transport.close()
            else:
                self._end()

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
