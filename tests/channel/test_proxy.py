"""The proxy on real sockets: timing, and that no byte is lost, changed or reordered."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import selectors
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from testbed.channel.link_model import Direction, constant
from testbed.channel.pipe import End, Pipe
from testbed.channel.proxy import AT_ONCE, PreciseSelector, Proxy, precise_loop
from testbed.channel.spec import ChannelSpec
from testbed.errors import BadInput
from testbed.process.heap import loaded_heap_frozen

FREE = ChannelSpec(kind="proxy")
SLOW = ChannelSpec(kind="proxy", uplink_mbps=80, downlink_mbps=40, rtt_ms=4, jitter_ms=1)
WAIT_S = 30
TRIES = 3
"""Attempts: a busy machine may be late at times, but never early."""


def precisely(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on the proxy's event loop, as the relay runs."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        loop = precise_loop()
        try:
            with loaded_heap_frozen():
                loop.run_until_complete(asyncio.wait_for(test(*args, **kwargs), 2 * WAIT_S))
                loop.run_until_complete(asyncio.sleep(0.02))
        finally:
            loop.close()

    return run


@contextlib.asynccontextmanager
async def relayed(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], object], spec: ChannelSpec
) -> AsyncIterator[tuple[Proxy, int]]:
    """A server behind a proxy; yields the proxy and its port."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)  # type: ignore[arg-type]
    origin_s = asyncio.get_running_loop().time()
    proxy = Proxy(server.sockets[0].getsockname()[:2], lambda index: spec.path(index, origin_s))
    try:
        yield proxy, await proxy.start("127.0.0.1", 0)
    finally:
        await proxy.close()
        server.close()
        await asyncio.sleep(0.02)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(2**16):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
    writer.close()


async def round_trips(port: int, count: int, size: int = 64) -> list[float]:
    """Times of successive echoes in seconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    clock = asyncio.get_running_loop().time
    times = []
    for _ in range(count):
        start_s = clock()
        writer.write(bytes(size))
        await reader.readexactly(size)
        times.append(clock() - start_s)
    writer.close()
    await writer.wait_closed()
    return times


@pytest.mark.parametrize(
    "spec", [FREE, ChannelSpec(kind="proxy", uplink_mbps=80, downlink_mbps=40, rtt_ms=4, jitter_ms=1)]
)
@precisely
async def test_bytes_arrive_as_they_were_sent_and_so_does_the_end(spec: ChannelSpec) -> None:
    sent = os.urandom(2_000_003)
    cuts = sorted(random.Random(0).sample(range(len(sent)), 200))
    async with relayed(echo, spec) as (proxy, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def send() -> None:
            for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True):
                writer.write(sent[a:b])
                await writer.drain()
            writer.write_eof()

        sending = asyncio.create_task(send())
        assert await asyncio.wait_for(reader.read(-1), WAIT_S) == sent
        await sending
        writer.close()
        assert proxy.moved_bytes() == (len(sent), len(sent))


@pytest.mark.parametrize("rtt_ms", [1.0, 10.0, 50.0])
@precisely
async def test_a_round_trip_takes_what_was_asked(rtt_ms: float) -> None:
    """The shortest time, since a busy machine only adds delay."""
    async with relayed(echo, FREE) as (_, port):
        bare_s = min(await round_trips(port, 20))
    async with relayed(echo, ChannelSpec(kind="proxy", rtt_ms=rtt_ms)) as (_, port):
        found_s = min(await round_trips(port, 20))
    assert found_s - bare_s == pytest.approx(rtt_ms / 1e3, abs=1e-3)


@precisely
async def test_thousands_of_small_messages_and_large_ones_take_their_time_at_the_rate() -> None:
    """Never less; at times more, on a busy machine. A small message takes 64 µs of the link, more than of the CPU."""
    for mbps, count, size in ((8, 4000, 64), (40, 1, 2_000_000)):
        async with relayed(echo, ChannelSpec(kind="proxy", uplink_mbps=mbps)) as (_, port):
            clock = asyncio.get_running_loop().time
            expected_s, times = 8 * count * size / (mbps * 1e6), []
            while len(times) < TRIES and (not times or min(times) > 1.1 * expected_s + 0.02):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                start_s = clock()
                for _ in range(count):
                    writer.write(bytes(size))
                await asyncio.wait_for(reader.readexactly(count * size), WAIT_S)
                times.append(clock() - start_s)
                writer.close()
        assert 0.99 * expected_s - 0.002 <= min(times) <= 1.1 * expected_s + 0.02, times


@precisely
async def test_every_connection_is_a_link_of_its_own() -> None:
    async with relayed(echo, ChannelSpec(kind="proxy", uplink_mbps=8)) as (proxy, port):
        took: list[float] = []
        while len(took) < TRIES and (not took or min(took) >= 0.6):
            start_s = asyncio.get_running_loop().time()
            times = await asyncio.gather(*(round_trips(port, 1, 100_000) for _ in range(10)))
            took.append(asyncio.get_running_loop().time() - start_s)
            assert all(t[0] >= 0.0999 for t in times)
        assert min(took) < 0.6  # ten times 0.1 s, side by side
        assert proxy.connections == 10 * len(took)


@precisely
async def test_a_sender_feels_a_slow_link_and_a_slow_reader() -> None:
    """A sender to a slow link sees backpressure; the proxy does not buffer everything."""
    taken = asyncio.Event()

    async def never_reads(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await taken.wait()
        writer.close()

    for spec in (ChannelSpec(kind="proxy", uplink_mbps=1), FREE):
        taken.clear()
        async with relayed(never_reads, spec) as (_, port):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(bytes(100_000_000))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(writer.drain(), 1.0)
            taken.set()
            writer.transport.abort()


@precisely
async def test_a_target_that_is_not_there_closes_the_connection() -> None:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    target = server.sockets[0].getsockname()[:2]
    server.close()
    await server.wait_closed()
    proxy = Proxy(target, lambda _: (Direction(constant()), Direction(constant())))
    reader, writer = await asyncio.open_connection("127.0.0.1", await proxy.start("127.0.0.1", 0))
    assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
    assert proxy.refused == 1
    writer.close()
    await proxy.close()


@precisely
async def test_either_end_that_goes_takes_the_other_with_it() -> None:
    served = asyncio.Event()

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.transport.abort()

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        served.set()
        writer.close()

    async with relayed(hang_up, ChannelSpec(kind="proxy", rtt_ms=2)) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x")
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        writer.close()
    async with relayed(watch, ChannelSpec(kind="proxy", rtt_ms=2)) as (_, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()
        await asyncio.wait_for(served.wait(), WAIT_S)


@precisely
async def test_an_address_in_use_is_refused() -> None:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    proxy = Proxy((host, port), lambda _: (Direction(constant()), Direction(constant())))
    with pytest.raises(BadInput, match="cannot listen on"):
        await proxy.start(host, port)
    server.close()


@precisely
async def test_of_links_that_have_ended_only_their_bytes_are_kept() -> None:
    async with relayed(echo, FREE) as (proxy, port):
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(bytes(1000))
            await reader.readexactly(1000)
            writer.close()
            await writer.wait_closed()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(bytes(1000))
        await reader.readexactly(1000)
        while len(proxy._pairs) > 1:
            await asyncio.sleep(0.01)
        assert (proxy.connections, proxy.moved_bytes()) == (6, (6000, 6000))
        assert proxy.reset() == 1
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        writer.close()
        while proxy._pairs:
            await asyncio.sleep(0.01)
        assert (proxy.connections, proxy.moved_bytes()) == (6, (6000, 6000))


@precisely
async def test_what_comes_before_there_is_a_target_is_not_piled_up() -> None:
    """A target that reads slowly: the sender waits, and then everything arrives."""
    got, hold = bytearray(), asyncio.Event()

    async def collect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**16):
            got.extend(data)
        writer.close()

    class Late(Proxy):
        async def _connect(self, front: End) -> None:
            await hold.wait()
            await super()._connect(front)

    sent = random.Random(1).randbytes(20_000_000)
    server = await asyncio.start_server(collect, "127.0.0.1", 0)
    proxy = Late(server.sockets[0].getsockname()[:2], lambda _: (Direction(constant()), Direction(constant())))
    _, writer = await asyncio.open_connection("127.0.0.1", await proxy.start("127.0.0.1", 0))
    writer.write(sent)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(writer.drain(), 0.5)
    hold.set()
    await asyncio.wait_for(writer.drain(), WAIT_S)
    writer.close()
    while len(got) < len(sent):
        await asyncio.sleep(0.01)
    assert got == sent
    await proxy.close()
    server.close()


@precisely
async def test_a_connection_that_cannot_be_made_is_closed_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)

    def broken(index: int) -> tuple[Direction, Direction]:
        raise RuntimeError("broken")

    proxy = Proxy(server.sockets[0].getsockname()[:2], broken)
    reader, writer = await asyncio.open_connection("127.0.0.1", await proxy.start("127.0.0.1", 0))
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 5) == b""
    assert "a connection of a UE failed" in caplog.text
    writer.close()
    await proxy.close()
    server.close()


@precisely
async def test_a_ue_that_is_handed_over_reaches_the_new_target_and_none_between_the_two() -> None:
    async def named(name: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(name)
        await reader.read()
        writer.close()

    servers = [await asyncio.start_server(functools.partial(named, name), "127.0.0.1", 0) for name in (b"a", b"b")]
    first, second = (server.sockets[0].getsockname()[:2] for server in servers)
    proxy = Proxy(first, lambda _: (Direction(constant()), Direction(constant())))
    port = await proxy.start("127.0.0.1", 0)
    for target, answer in ((first, b"a"), (None, b""), (second, b"b")):
        proxy.hand_over(target)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            assert await reader.read(1) == answer
        proxy.hand_over(None)
        with contextlib.suppress(ConnectionError):
            assert await reader.read(1) == b""
        writer.close()
    await proxy.close()
    for server in servers:
        server.close()


class AtOnce:
    """A carrier of small pieces, which arrive in one turn of the loop."""

    free = False
    hold_bytes = 2**20

    def __init__(self) -> None:
        self.arrivals: list[Callable[[], None]] = []

    def piece_bytes(self, now_s: float) -> int:
        return 100

    def carry(self, size_bytes: float, deliver: Callable[[], None]) -> None:
        self.arrivals.append(deliver)


@precisely
async def test_pieces_for_a_target_that_has_reset_its_connection_are_dropped_without_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """asyncio warned of every piece after the fifth, without saying of which connection."""
    loop, carrier = asyncio.get_running_loop(), AtOnce()
    ends, peers = [], []
    for _ in range(2):
        ours, peer = socket.socketpair()
        peers.append(peer)
        ends.append((await loop.create_connection(End, sock=ours))[1])
    source, sink = ends
    there, back = Pipe(carrier, source, sink), Pipe(carrier, sink, source)
    source.wire(there, back)
    sink.wire(back, there)
    peers[0].send(bytes(5_000))
    while len(carrier.arrivals) < 50:
        await asyncio.sleep(0)
    peers[1].close()
    for arrived in carrier.arrivals:
        arrived()
    await asyncio.sleep(0.02)
    assert source.gone and sink.gone
    assert not [record.message for record in caplog.records if "socket.send()" in record.message]
    peers[0].close()


@precisely
async def test_a_connection_that_is_reset_while_it_is_set_up_leaves_nothing() -> None:
    """Each left the connection to the base station open, until no descriptor was free."""
    before = len(os.listdir("/proc/self/fd"))
    async with relayed(echo, SLOW) as (proxy, port):
        for turn in range(60):
            stranger = socket.socket()
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stranger.setblocking(False)
            await asyncio.get_running_loop().sock_connect(stranger, ("127.0.0.1", port))
            for _ in range(turn % 3):
                await asyncio.sleep(0)
            stranger.close()
        await asyncio.sleep(0.3)
        assert await round_trips(port, 1)
        await asyncio.sleep(0.1)
        assert not proxy._pairs and proxy.connections
    await asyncio.sleep(0.1)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_each_of_many_ready_sockets_has_its_turn() -> None:
    selector, pairs = PreciseSelector(), [socket.socketpair() for _ in range(3 * AT_ONCE)]
    for one, other in pairs:
        selector.register(one, selectors.EVENT_READ)
        other.send(b"x")
    turns = [selector.select(0) for _ in range(3)]
    assert all(len(turn) == AT_ONCE for turn in turns)
    assert len({key.fd for turn in turns for key, _ in turn}) == len(pairs)
    selector.close()
    for pair in pairs:
        for one in pair:
            one.close()
