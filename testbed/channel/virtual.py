"""The virtual link: `Link` and `ServerLink` inside one process, with the delays of a link model.

Both ends count the bytes that a message has on the link. A sizer may give another size than that of the frames, so that
a small pair of models can stand for a large one.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence

from testbed.channel.frames import Frames
from testbed.channel.link import Received
from testbed.channel.link_model import OneWay
from testbed.clock import within
from testbed.errors import LinkError, LinkTimeout

Sizer = Callable[[Frames], int]
"""Size of a message on the link in bytes."""


def frame_bytes(frames: Frames) -> int:
    """Total size of the frames."""
    return sum(map(len, frames))


class _Pipe:
    """Delivers messages when they arrive, in the order in which they were sent."""

    def __init__(self, direction: OneWay, sizer: Sizer, deliver: Callable[[list[bytes], int], None]) -> None:
        self._direction, self._sizer, self._deliver = direction, sizer, deliver
        self._carried: deque[tuple[list[bytes], int]] = deque()
        """An event loop does not keep the order of timers that are due at the same time."""

    def send(self, frames: Frames) -> int:
        size_bytes = self._sizer(frames)
        self._carried.append(([bytes(f) for f in frames], size_bytes))
        self._direction.carry(size_bytes, lambda: self._deliver(*self._carried.popleft()))
        return size_bytes


class VirtualServerLink:
    """The BS's end; `attach` creates a UE's."""

    def __init__(self) -> None:
        self._mail: asyncio.Queue[tuple[bytes, list[bytes]]] = asyncio.Queue()
        self._down: dict[bytes, _Pipe] = {}

    def attach(
        self,
        peer: bytes,
        up: OneWay,
        down: OneWay,
        sizers: tuple[Sizer, Sizer] = (frame_bytes, frame_bytes),
        patient: bool = False,
        deliver: Callable[[list[bytes], int], None] | None = None,
    ) -> VirtualLink:
        """Create a UE's link to this BS.

        Args:
            sizers: bytes of a message up and down.
            deliver: takes what arrives at the UE. Default: the link.
            patient: wait for messages without a timeout, which costs many tasks and timers in large runs.

        Raises:
            LinkError: the identity is in use.
        """
        if peer in self._down:
            raise LinkError(f"the identity {peer!r} is in use")
        uplink = _Pipe(up, sizers[0], lambda frames, _: self._receive(peer, frames))
        link = VirtualLink(uplink, patient)
        self._down[peer] = _Pipe(down, sizers[1], deliver or link.deliver)
        return link

    def _receive(self, peer: bytes, frames: list[bytes]) -> None:
        """Take a message, unless its peer has left since it was sent."""
        if peer in self._down:
            self._mail.put_nowait((peer, frames))

    def detach(self, peer: bytes, last: Sequence[Frames] = ()) -> None:
        """Forget a peer that has left.

        Args:
            last: messages that arrive now in its name.
        """
        self._down.pop(peer, None)
        for frames in last:
            self._mail.put_nowait((peer, [bytes(frame) for frame in frames]))

    async def send(self, peer: bytes, frames: Frames) -> None:
        """Send one message to a peer; messages to unknown peers are dropped."""
        pipe = self._down.get(peer)
        if pipe is not None:
            pipe.send(frames)

    async def recv(self) -> tuple[bytes, list[bytes]]:
        """Wait for one message."""
        return await self._mail.get()

    def serves(self, peer: bytes) -> bool:
        """See `ServerLink.serves`."""
        return True

    def close(self) -> None:
        """Forget all peers."""
        self._down.clear()


class VirtualLink:
    """A UE's end."""

    def __init__(self, up: _Pipe, patient: bool) -> None:
        self._up, self._patient = up, patient
        self._mail: asyncio.Queue[Received] = asyncio.Queue()

    def deliver(self, frames: list[bytes], size_bytes: int) -> None:
        """Put a message into the mailbox."""
        self._mail.put_nowait(Received(frames, size_bytes))

    async def send(self, frames: Frames) -> int:
        """Send one message; returns its size on the link in bytes."""
        return self._up.send(frames)

    async def recv(self, timeout_s: float = math.inf) -> Received:
        """Wait for one message."""
        if self._patient or timeout_s == math.inf:
            return await self._mail.get()
        try:
            return await within(timeout_s, self._mail.get())
        except asyncio.TimeoutError as exc:
            raise LinkTimeout(f"the BS did not answer within {timeout_s:g} s") from exc

    def close(self) -> None:
        """Nothing to free."""
