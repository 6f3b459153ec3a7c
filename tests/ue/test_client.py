"""A UE's connection."""

from __future__ import annotations

import asyncio
from typing import Any

from testbed.clock import WallClock, within
from testbed.protocols.codec import encode
from testbed.protocols.messages import Pong
from testbed.ue.client import Client


class OneWord:
    """A link on which one message comes when it is told to."""

    def __init__(self) -> None:
        self.word: asyncio.Future[list[bytes | memoryview]] = asyncio.get_running_loop().create_future()
        self.closed = False

    async def send(self, frames: Any) -> int:
        return sum(map(len, frames))

    async def recv(self, timeout_s: float) -> Any:
        return await within(
            timeout_s, self.word if not self.word.done() else asyncio.get_running_loop().create_future()
        )

    def close(self) -> None:
        self.closed = True


async def test_closing_as_a_message_arrives_closes() -> None:
    link = OneWord()
    client = Client(link, WallClock(), first_session=0, timeout_s=30.0)
    asking = asyncio.create_task(client.connect("", 1))
    await asyncio.sleep(0.01)
    asking.cancel()
    link.word.set_result(encode(Pong(token=0)))
    _, still_closing = await asyncio.wait({asyncio.create_task(client.close())}, timeout=5)
    assert link.closed
    assert not still_closing
