"""Man in the middle: relays TCP between a UE and its BS, and records and changes the data."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

HANDSHAKE_BYTES = 128
"""More than the handshake of a BS without keys."""
Touch = Callable[[bytes, int], bytes]
"""Maps a piece of the uplink and the number of bytes before it to the data to forward."""


class Relay:
    """Relays one BS's port.

    Attributes:
        heard: recorded uplinks of all connections.
        answers: recorded downlinks.
        down: while set, no data is forwarded and connections end.
        flood: data sent to UEs without end after a message to them; empty: none.
    """

    def __init__(self, port: int, touch: Touch) -> None:
        self._port, self._touch = port, touch
        self.heard: list[bytearray] = []
        self.answers: list[bytearray] = []
        self.down, self.flood = False, b""
        self.under_way: set[asyncio.Task[None]] = set()

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Begin to relay one connection; its writer is closed when it ends, also if it never began to."""
        task = asyncio.create_task(self._relay(reader, writer))
        self.under_way.add(task)
        task.add_done_callback(lambda _: writer.close())
        task.add_done_callback(self.under_way.discard)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the BS, which is closed if this is cancelled meanwhile."""
        connecting = asyncio.create_task(asyncio.open_connection("127.0.0.1", self._port))
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                (await connecting)[1].close()
            raise

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard, answers = bytearray(), bytearray()
        self.heard.append(heard)
        self.answers.append(answers)
        with contextlib.suppress(OSError):
            up_reader, up_writer = await self._connect()
            ways = [
                self._pump(reader, up_writer, heard, self._touch),
                self._pump(up_reader, writer, answers, lambda piece, _: piece, floods=True),
            ]
            tasks = [asyncio.create_task(way) for way in ways]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for end in (up_writer, writer):
                    end.close()
                await asyncio.gather(up_writer.wait_closed(), writer.wait_closed(), return_exceptions=True)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        heard: bytearray,
        touch: Touch,
        floods: bool = False,
    ) -> None:
        with contextlib.suppress(OSError):
            while (piece := await reader.read(65536)) and not self.down:
                before = len(heard)
                heard += piece
                writer.write(touch(piece, before))
                await writer.drain()
                while floods and self.flood and before > HANDSHAKE_BYTES:
                    writer.write(self.flood)
                    await writer.drain()


@contextlib.asynccontextmanager
async def relay(address: str, touch: Touch = lambda piece, before: piece) -> AsyncIterator[tuple[Relay, str]]:
    """A relay in front of a BS, and the address for the UE."""
    between = Relay(int(address.rpartition(":")[2]), touch)
    server = await asyncio.start_server(between.serve, "127.0.0.1", 0)
    try:
        yield between, f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.sleep(0.01)  # connections that were just taken become tasks
        for task in (tasks := list(between.under_way)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
