"""Waiting for messages of a ZeroMQ socket: none is missed, whatever else happens on the socket."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest
import zmq

from testbed.channel.readiness import Readiness

Pair = tuple[zmq.Socket[bytes], zmq.Socket[bytes]]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with zmq.Context() as context, context.socket(zmq.PAIR) as left, context.socket(zmq.PAIR) as right:
        for socket in (left, right):
            socket.linger, socket.sndhwm, socket.rcvhwm = 0, 10_000, 10_000
        right.connect(f"tcp://127.0.0.1:{left.bind_to_random_port('tcp://127.0.0.1')}")
        yield left, right


async def take(socket: zmq.Socket[bytes], ready: Readiness) -> bytes:
    while not socket.get(zmq.EVENTS) & zmq.POLLIN:
        await asyncio.wait_for(ready.wait(), 5)
    return socket.recv(zmq.NOBLOCK)


def test_sends_between_receptions_take_no_notice_away(pair: Pair) -> None:
    """Both ends send bursts at random times; libzmq's descriptor would stay silent after some of the sends."""

    async def end(socket: zmq.Socket[bytes], seed: int, count: int) -> list[bytes]:
        rng, ready = random.Random(seed), Readiness(socket)

        async def send() -> None:
            for number in range(count):
                socket.send(str(number).encode())
                ready.taken()
                if rng.random() < 0.5:
                    await asyncio.sleep(rng.choice([0, 0, 0.0001, 0.0005]))

        sending = asyncio.create_task(send())
        found = [await take(socket, ready) for _ in range(count)]
        await sending
        ready.close()
        return found

    async def both() -> list[list[bytes]]:
        return await asyncio.gather(*(end(socket, seed, 3000) for seed, socket in enumerate(pair)))

    assert asyncio.run(both()) == [[str(number).encode() for number in range(3000)]] * 2


def test_a_wait_ends_in_time_and_leaves_nothing_behind(pair: Pair) -> None:
    left, right = pair

    async def waits() -> None:
        ready = Readiness(left)
        await ready.wait(0.01)
        assert not ready.waiting
        task = asyncio.create_task(ready.wait())
        await asyncio.sleep(0.01)
        assert ready.waiting
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not ready.waiting
        right.send(b"later")
        assert await take(left, ready) == b"later"
        ready.close()

    asyncio.run(waits())


def test_each_loop_has_its_own_reader(pair: Pair) -> None:
    left, right = pair
    ready = Readiness(left)
    for text in (b"first", b"second"):
        right.send(text)
        assert asyncio.run(take(left, ready)) == text
    ready.close()


def test_closing_cancels_the_receiver(pair: Pair) -> None:
    async def closed() -> None:
        ready = Readiness(pair[0])
        task = asyncio.create_task(ready.wait())
        await asyncio.sleep(0)
        ready.close()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(closed())
