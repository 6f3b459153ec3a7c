"""The connection of a UE process that moves between base stations, as the process of the radio tells it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from multiprocessing.connection import Connection

from testbed.channel.link import ZmqLink, new_identity
from testbed.clock import Clock
from testbed.errors import TestbedError
from testbed.experiments.cell.several.tally import RoamingTally
from testbed.experiments.cell.several.ue import RoamingClient
from testbed.protocols.codec import AnyArray
from testbed.protocols.messages import Message, Open, Welcome
from testbed.tasks import cancel
from testbed.ue.client import Client

RELEASE_S = 5.0
"""Time in which a base station that was left takes note of it."""


class MovingClient(RoamingClient):
    """A `RoamingClient` on sockets: in each cell it has a new connection and a new identity.

    Args:
        address: of the UE's relay, behind which its base station changes.
        stations: addresses of the base stations of all cells, without radio. The UE's process stands in for the
            network there: it greets the one that was left under the old identity, which ends the UE's sessions.
        line: tells where the UE is, see `RelayedUe`.
    """

    def __init__(
        self,
        address: str,
        stations: Sequence[str],
        line: Connection,
        tally: RoamingTally,
        clock: Clock,
        timeout_s: float,
    ) -> None:
        super().__init__(clock, timeout_s)
        self._address, self._stations, self._line, self._tally = address, stations, line, tally
        self._notices: asyncio.Queue[tuple[int, bool] | None] = asyncio.Queue()
        self._greeting: tuple[str, int] | None = None
        self._old: ZmqLink | None = None
        self._again, self._releases = set[int](), set[asyncio.Task[None]]()
        """Sessions that the base station has to compute again, and notes to those that were left."""

    async def begin(self) -> None:
        """Wait for the first cell."""
        asyncio.get_running_loop().add_reader(self._line.fileno(), self._hear)
        while self._old is None:
            await self._go(await self._notices.get())

    async def follow(self) -> None:
        """Go where the radio tells until cancelled."""
        while True:
            await self._go(await self._notices.get())

    async def connect(self, tokenizer: str, vocab_size: int) -> Welcome:
        """See `Client.connect`."""
        self._greeting = tokenizer, vocab_size
        return await super().connect(tokenizer, vocab_size)

    async def send(self, message: Message, arrays: dict[str, AnyArray] | None = None) -> int:
        """See `RoamingClient.send`; counts the tokens of sessions that are opened again elsewhere."""
        if isinstance(message, Open) and message.session in self._again and self._tally.station is not None:
            self._again.discard(message.session)
            self._tally.prefilled(self._tally.station, len((arrays or {}).get("ids", ())))
        return await super().send(message, arrays)

    async def close(self) -> None:
        """See `Client.close`."""
        asyncio.get_running_loop().remove_reader(self._line.fileno())
        await cancel(*self._releases)
        await super().close()

    def _hear(self) -> None:
        try:
            while self._line.poll():
                self._notices.put_nowait(self._line.recv())
        except (EOFError, OSError):  # the radio has ended
            asyncio.get_running_loop().remove_reader(self._line.fileno())

    async def _go(self, notice: tuple[int, bool] | None) -> None:
        if notice is None:
            self._leave_cell()
            return
        cell, handover = notice
        link, old, reader = ZmqLink(self._address, new_identity()), self._old, self._reader
        self._tally.arrived(cell, handover)
        self.join(link)
        self._old = link
        if old is not None:
            if reader is not None:
                await cancel(reader)  # before its socket is closed
            old.close()

    def _leave_cell(self) -> None:
        cell, old = self._tally.station, self._old
        self._tally.left(decoding=bool(self.sessions))
        self._again = set(self.sessions)
        self.leave()
        if cell is not None and old is not None and self._greeting is not None:
            task = asyncio.create_task(self._release(self._stations[cell], old.identity, *self._greeting))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    async def _release(self, station: str, identity: bytes, tokenizer: str, vocab_size: int) -> None:
        client = Client(ZmqLink(station, identity), self.clock, 0, RELEASE_S)
        try:
            with contextlib.suppress(TestbedError):
                await client.connect(tokenizer, vocab_size)
        finally:
            await client.close()
