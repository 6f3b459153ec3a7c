"""A UE that decodes by the target alone: how long it waits for a BS that answers but does not go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from testbed.channel.link import Received
from testbed.clock import WallClock, within
from testbed.errors import LinkTimeout
from testbed.protocols.codec import decode_uplink, encode
from testbed.protocols.messages import VERSION, Busy, Hello, Open, Opened, Resync, Verdict, Welcome
from testbed.ue.client import Client
from testbed.ue.target_only import decode_remotely

TIMEOUT_S, WAIT_S, TOKENS = 1.0, 15.0, 5
Answer = Callable[[Open, int], Iterable[Any]]
WELCOME = Welcome(
    version=VERSION, model="m", hidden_size=1, vocab_size=1, end_ids=(), protocols=(), max_window=1, max_positions=1
)


class Link:
    """A link to a BS that answers the n-th request as given, a message every 20 ms."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.requests = answer, 0
        self.mail: asyncio.Queue[Any] = asyncio.Queue()
        self.sending: set[asyncio.Task[None]] = set()

    async def send(self, frames: Any) -> int:
        message = decode_uplink([bytes(frame) for frame in frames]).message
        if isinstance(message, Hello):
            self.mail.put_nowait(WELCOME)
        elif isinstance(message, Open):
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


def token(request: Open, number: int) -> Verdict:
    return Verdict(
        session=request.session, round=number, accepted=0, token=7, candidates=0, queried=0, gap=1.0, batch_size=1,
        queue_s=0.0, verify_s=0.0, judge_s=0.0, bs_s=0.0,
    )  # fmt: skip


async def decode(answer: Answer) -> Any:
    link = Link(answer)
    client = Client(link, WallClock(), 1, TIMEOUT_S)
    try:
        await client.connect("", 1)
        return await within(WAIT_S, decode_remotely(client, [1, 2], TOKENS, ()))
    finally:
        await client.close()


def refuses(request: Open, number: int) -> Iterable[Any]:
    yield Busy(session=request.session, reason="full", retry_s=0.1)


def refuses_at_once(request: Open, number: int) -> Iterable[Any]:
    yield Busy(session=request.session, reason="full", retry_s=0.0)


def confirms(request: Open, number: int) -> Iterable[Any]:
    for _ in range(1000):
        yield Opened(session=request.session, length=2)


def forgets(request: Open, number: int) -> Iterable[Any]:
    yield Opened(session=request.session, length=2)
    yield Resync(session=request.session)


def begins_again(request: Open, number: int) -> Iterable[Any]:
    yield from (token(request, position) for position in range(3))
    yield Resync(session=request.session)


def repeats(request: Open, number: int) -> Iterable[Any]:
    yield from (token(request, 0) for _ in range(1000))


@pytest.mark.parametrize("answer", [refuses, refuses_at_once, confirms, forgets, begins_again, repeats])
async def test_a_bs_that_answers_but_does_not_go_on_is_waited_for_no_longer_than_a_silent_one(answer: Answer) -> None:
    before_s = asyncio.get_running_loop().time()
    with pytest.raises(LinkTimeout, match="full" if answer in (refuses, refuses_at_once) else "within 1 s"):
        await decode(answer)
    assert asyncio.get_running_loop().time() - before_s < 4 * TIMEOUT_S


async def test_each_progress_gives_the_bs_the_whole_time_again() -> None:
    """Refused, interrupted and slow, but all of it goes on."""

    def answer(request: Open, number: int) -> Iterable[Any]:
        if number < 6:
            yield Busy(session=request.session, reason="full", retry_s=0.1)
            return
        for position in range(number - 5):
            for _ in range(12):  # a quarter of a second
                yield Opened(session=request.session, length=2)
            yield token(request, position)
        yield Resync(session=request.session)

    assert (await decode(answer)).token_ids == [7] * TOKENS
