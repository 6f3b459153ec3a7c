"""A UE that moves between base stations: its radio ports, its connection, and its sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from testbed.channel.frames import Frames
from testbed.channel.link import Link, Received
from testbed.channel.radio.mac import RadioCell
from testbed.channel.radio.ports import RadioPort
from testbed.clock import Clock
from testbed.protocols.codec import AnyArray, Packet
from testbed.protocols.messages import Draft, Message, Resync
from testbed.ue.client import Client


class RoamingPort:
    """One direction of a UE, in whatever cell it is; what is sent while it is in none is lost."""

    def __init__(self, ue: int, up: bool, weight: float) -> None:
        self._ue, self._up, self._weight = ue, up, weight
        self._cell: RadioCell | None = None
        self._port: RadioPort | None = None
        self._slots, self._used = 0, 0.0

    @property
    def weight(self) -> float:
        """See `RadioPort`."""
        return self._weight

    @weight.setter
    def weight(self, weight: float) -> None:
        self._weight = weight
        if self._port is not None:
            self._port.weight = weight

    @property
    def slots(self) -> int:
        """Slots in which it has sent, in all cells."""
        return self._slots + (0 if self._port is None else self._port.slots)

    @property
    def backlogged(self) -> int:
        """Slots in which it had data to send, in its present cell."""
        return 0 if self._port is None else self._port.backlogged

    @property
    def used(self) -> float:
        """Sum of its shares of the bandwidth."""
        return self._used + (0.0 if self._port is None else self._port.used)

    def attach(self, cell: RadioCell) -> None:
        """Enter a cell."""
        self._cell, self._port = cell, cell.port(self._ue, self._up, self._weight)

    def restore(self, slots: int, used: float) -> None:
        """Count on from what was counted in another process."""
        self._slots, self._used = slots, used

    def detach(self) -> None:
        """Leave the cell: what has not arrived is lost."""
        if self._cell is None or self._port is None:
            return
        self._cell.detach(self._port)
        self._slots, self._used = self.slots, self.used
        self._cell = self._port = None

    def carry(self, size_bytes: float, deliver: Callable[[], None], due_s: float = 0.0) -> None:
        """See `RadioPort.carry`."""
        if self._port is not None:
            self._port.carry(size_bytes, deliver, due_s)


class NoLink:
    """Implements `Link`: that of a UE in no cell."""

    async def send(self, frames: Frames) -> int:
        """Lose a message."""
        return sum(map(len, frames))

    async def recv(self, timeout_s: float = 0.0) -> Received:
        """Wait for ever."""
        never: asyncio.Future[Received] = asyncio.get_running_loop().create_future()
        return await never

    def close(self) -> None:
        """Nothing to free."""


class RoamingClient(Client):
    """A `Client` whose base station changes; sessions are opened again with their committed prefix."""

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        super().__init__(NoLink(), clock, 0, timeout_s)
        self._unknown = set[int]()
        """Sessions that the base station does not know, as far as their readers were not told."""

    @property
    def sessions(self) -> list[int]:
        """Numbers of the sessions in progress."""
        return list(self._mail)

    async def send(self, message: Message, arrays: dict[str, AnyArray] | None = None) -> int:
        """See `Client.send`. A window of a session that the base station does not know is answered here, with the
        `Resync` that would come back.
        """
        session = getattr(message, "session", -1)
        if session in self._unknown:
            self._unknown.discard(session)
            if isinstance(message, Draft):
                self._mail[session].put(Packet(Resync(session=session), {}, 0))
                return 0
        return await super().send(message, arrays)

    def leave(self) -> None:
        """Lose all messages until `join`."""
        self._link = NoLink()

    def join(self, link: Link) -> None:
        """Go on over the link to another base station."""
        self._link = link
        if self._reader is not None:
            self._reader.cancel()
            self._reader = asyncio.create_task(self._read())
            self._reader.add_done_callback(self._lost)
            self._unknown = {number for number in self.sessions if not self._mail[number].awaited}
            self._moved_on("another base station serves")


RoamingPorts = Mapping[bool, RoamingPort]
"""Ports of a UE by direction; True: uplink."""
