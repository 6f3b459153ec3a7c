"""A link to a base station that answers as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from testbed.channel.link import Received
from testbed.clock import within
from testbed.protocols.codec import decode_uplink, encode
from testbed.protocols.messages import VERSION, Hello, Open, Welcome

Answer = Callable[[Any, int], Iterable[Any]]
"""The messages that answer a request, and its number."""
WELCOME = Welcome(
    version=VERSION, model="m", hidden_size=1, vocab_size=16, end_ids=(), protocols=("greedy",), max_window=1,
    max_positions=1,
)  # fmt: skip


class Link:
    """Answers the n-th request (an `Open`, or messages of `kinds`) as given, a message every 20 ms."""

    def __init__(self, answer: Answer, kinds: tuple[type, ...] = (Open,), welcome: Welcome = WELCOME) -> None:
        self.answer, self.requests, self.kinds, self.welcome = answer, 0, kinds, welcome
        self.mail: asyncio.Queue[Any] = asyncio.Queue()
        self.sending: set[asyncio.Task[None]] = set()

    async def send(self, frames: Any) -> int:
        message = decode_uplink([bytes(frame) for frame in frames]).message
        if isinstance(message, Hello):
            self.mail.put_nowait(self.welcome)
        elif isinstance(message, self.kinds):
            self.requests += 1
            task = asyncio.create_task(self.deliver(self.answer(message, self.requests - 1)))
            self.sending.add(task)
            task.add_done_callback(self.sending.discard)
        return 0

    async def deliver(self, messages: Iterable[Any]) -> None:
        for message in messages:
            await asyncio.sleep(0.02)
            self.mail.put_nowait(message)

    async def recv(self, timeout_s: float) -> Received:
        message = await within(timeout_s, self.mail.get())
        return Received([bytes(frame) for frame in encode(message)], 1)

    def close(self) -> None:
        for task in self.sending:
            task.cancel()
