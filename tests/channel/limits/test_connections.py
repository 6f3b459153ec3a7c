"""Limits of connections: memory taken by hostile ZeroMQ peers, and what honest peers may send."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from testbed.channel.frames import MAX_IDENTITY_BYTES, MOST_FRAMES, OTHER_BYTES, PART_BYTES, parts
from testbed.channel.limits.arrivals import CLOSED_S
from testbed.channel.limits.connections import UNHEARD_BYTES, Connections
from testbed.channel.limits.counts import CHECK_S, CONFIRM_CHECKS, SPARE_BYTES
from testbed.channel.limits.sockets import GONE_S
from testbed.channel.link import ZmqLink, new_identity
from testbed.channel.server_link import INBOX, MOST_SKIPPED, ZmqServerLink
from testbed.errors import LinkTimeout
from tests.support.descriptors import no_descriptors_left
from tests.support.zmtp import GREETING, connect, dial, frame, ready

FRAME_BYTES = 2**16
WAIT_S = 30.0

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what connections have received")


@contextlib.asynccontextmanager
async def echo() -> AsyncIterator[tuple[ZmqServerLink, list[list[bytes]]]]:
    """A BS that answers every message with its size."""
    bs, heard = ZmqServerLink("tcp://127.0.0.1:*", frame_bytes=FRAME_BYTES), []

    async def serve() -> None:
        while True:
            peer, frames = await bs.recv()
            heard.append(frames)
            await bs.send(peer, [b"%d" % sum(map(len, frames))])

    serving = asyncio.create_task(serve())
    try:
        yield bs, heard
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        bs.close()


async def answered(link: ZmqLink, body: bytes = b"and me?") -> bool:
    await link.send([body])
    return (await link.recv(WAIT_S)).frames == [b"%d" % len(body)]


async def asked(link: ZmqLink) -> bool:
    """Whether a message is answered that is sent again every 2 s, as UEs do."""
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        await link.send([b"and me?"])
        with contextlib.suppress(LinkTimeout):
            return (await link.recv(2.0)).frames == [b"7"]
    return False


@contextlib.contextmanager
def ue(bs: ZmqServerLink) -> Iterator[ZmqLink]:
    link = ZmqLink(bs.addresses[0], new_identity())
    try:
        yield link
    finally:
        link.close()


def pour(connected: socket.socket, piece: bytes, sent: list[int]) -> None:
    """Send the same data repeatedly until the connection ends."""
    with contextlib.suppress(OSError):
        for _ in range(100_000):
            connected.sendall(piece)
            sent[0] += len(piece)
            time.sleep(0.002)


async def gone(thread: threading.Thread) -> bool:
    """Whether the sender was disconnected."""
    await asyncio.get_running_loop().run_in_executor(None, thread.join, WAIT_S)
    return not thread.is_alive()


def test_a_connection_from_the_same_port_is_another_one() -> None:
    """It has the descriptor and addresses of the one before, but nothing was received on it yet."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections = Connections(frozenset({listener.getsockname()[1]}), FRAME_BYTES, INBOX)

    def receive(there: socket.socket, here: socket.socket, count: int) -> None:
        for _ in range(count):
            here.sendall(bytes(FRAME_BYTES))
            assert len(there.recv(FRAME_BYTES, socket.MSG_WAITALL)) == FRAME_BYTES

    def connection(port: int) -> tuple[socket.socket, socket.socket]:
        here = socket.socket()
        here.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        here.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        here.bind(("127.0.0.1", port))
        here.connect(listener.getsockname())
        return here, listener.accept()[0]

    with contextlib.closing(connections), listener:
        here, there = connection(0)
        peer, descriptor = there.getpeername(), there.fileno()
        receive(there, here, 100)
        connections.taken(descriptor)
        connections.check(drained=True)
        here.close()
        there.close()
        here, there = connection(peer[1])
        with here, there:
            assert (there.getpeername(), there.fileno()) == (peer, descriptor)
            receive(there, here, 2 + SPARE_BYTES // FRAME_BYTES)
            for _ in range(CONFIRM_CHECKS):
                connections.check(drained=True)
            assert connections.cut == 1


@pytest.mark.parametrize("body", [bytes(PART_BYTES - 1), bytes(200)])
async def test_a_message_without_an_end_is_cut_off_and_the_others_are_served(body: bytes) -> None:
    async with echo() as (bs, heard):
        with ue(bs) as honest, contextlib.closing(connect(bs.addresses[0], b"endless")) as liar:
            assert await answered(honest)
            liar.sendall(frame(b"sound", more=False))
            sent, piece = [0], frame(body, more=True) * (60_000 // len(body))
            pouring = threading.Thread(target=pour, args=(liar, piece, sent), daemon=True)
            pouring.start()
            while pouring.is_alive():
                assert await answered(honest)
                await asyncio.sleep(0.02)
            assert await gone(pouring)
            assert sent[0] > FRAME_BYTES + OTHER_BYTES
            assert await answered(honest)
        assert bs.connections.cut == 1
        assert [b"sound"] in heard and all(len(frames) == 1 for frames in heard)


POST = b"POST / HTTP/1.1\r\nHost: 127.0.0.1:5555\r\nContent-Type: text/plain\r\nContent-Length: 3000\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [b"\x01\x00\x02\x00A", b"\xff" + bytes(7) + b"\x01\x7f\x01\x05\x00\x00\x00\x01A", POST + b"x" * 3000],
    ids=["ZMTP 1.0", "ZMTP 2.0", "HTTP"],
)
async def test_peers_of_older_protocols_are_not_served_and_end_nothing(sent: bytes) -> None:
    """libzmq does not know which connection their messages come from."""
    async with echo() as (bs, heard):
        with ue(bs) as honest, socket.create_connection(("127.0.0.1", next(iter(bs.connections.ports)))) as old:
            assert await answered(honest)
            for _ in range(5):
                old.sendall(sent)
                await asyncio.sleep(0.05)
                assert await answered(honest)
        assert heard == [[b"and me?"]] * 6


async def test_the_kernel_closes_connections_to_hosts_that_are_gone() -> None:
    async with echo() as (bs, _):
        with ue(bs) as honest:
            assert await answered(honest)
            accepted = 0
            for _, one, _ in bs.connections._open(0.0):
                accepted += 1
                assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == GONE_S / 2
                probes = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
                assert probes * one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == GONE_S / 2
                assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1000 * GONE_S
            assert accepted == 1


async def test_large_messages_that_wait_are_no_message_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A BS is busy while a UE sends as much as it may: no disconnection, no loss."""
    monkeypatch.setattr("testbed.channel.limits.connections.CHECK_S", 0.02)
    bs = ZmqServerLink("tcp://127.0.0.1:*", frame_bytes=FRAME_BYTES)
    try:
        with ue(bs) as link:
            body = [b"h", bytes(FRAME_BYTES), bytes(FRAME_BYTES - 4096)]
            for _ in range(3 * INBOX):
                await link.send(body)
            for number in range(3 * INBOX):
                _, frames = await asyncio.wait_for(bs.recv(), WAIT_S)
                assert frames == body
                await asyncio.sleep(0.1 if number % INBOX == 0 else 0)
            await asyncio.sleep(0.1)
            assert bs.connections.cut == 0
    finally:
        bs.close()


async def test_a_slow_message_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of the largest size that arrive slowly, over many checks, on one connection."""
    monkeypatch.setattr("testbed.channel.limits.connections.CHECK_S", 0.01)
    async with echo() as (bs, heard):
        with contextlib.closing(connect(bs.addresses[0], b"slow")) as slow:
            *others, last = parts([bytes(FRAME_BYTES)] * 2)
            message = b"".join(frame(bytes(part), more=True) for part in others) + frame(bytes(last))
            for _ in range(3):
                for at in range(0, len(message), 10_000):
                    slow.sendall(message[at : at + 10_000])
                    await asyncio.sleep(0.01)
            while len(heard) < 3:
                await asyncio.sleep(0.01)
        assert bs.connections.cut == 0


async def test_a_message_of_many_frames_is_read_no_further_and_its_sender_shut_out() -> None:
    async with echo() as (bs, heard):
        with contextlib.closing(connect(bs.addresses[0], b"many")) as liar, ue(bs) as honest:
            liar.sendall(frame(b"", more=True) * 20_000 + frame(b"", more=False))
            assert await asyncio.get_running_loop().run_in_executor(None, drained, liar)
            assert await answered(honest)
        assert heard == [[b"and me?"]] and bs.connections.cut == 1


async def test_a_sender_on_loopback_without_a_key_is_no_reason_to_cut_others() -> None:
    """Who has sent too many frames is not known there, and others have perhaps just connected."""
    async with echo() as (bs, _):
        with ue(bs) as first:
            assert await answered(first)  # connections are watched from then on
            with ue(bs) as honest:
                while len(bs.connections._known) < 2:
                    await asyncio.sleep(CHECK_S)
                bs.connections.shun(-1, "")
                await asyncio.sleep(4 * CHECK_S)
                assert bs.connections.cut == 0
                assert await answered(honest)


def metadata(size: int) -> bytes:
    """As many properties as possible."""
    return b"".join(b"\x02" + struct.pack(">H", number) + bytes(4) for number in range(size // 7))


@contextlib.asynccontextmanager
async def heartbeat() -> AsyncIterator[list[float]]:
    """Seconds of CPU time between turns of the event loop."""
    gaps: list[float] = []

    async def beat() -> None:
        while True:
            before_s = time.thread_time()
            await asyncio.sleep(1e-3)
            gaps.append(time.thread_time() - before_s)

    beating = asyncio.create_task(beat())
    try:
        yield gaps
    finally:
        beating.cancel()


@pytest.mark.parametrize("frames", [MOST_SKIPPED // 4, 2 * MOST_SKIPPED], ids=["skipped", "socket renewed"])
async def test_a_message_of_very_many_empty_frames_stalls_nobody(frames: int, caplog: pytest.LogCaptureFixture) -> None:
    """Draining four million of them took the event loop 6 s."""
    async with echo() as (bs, heard), heartbeat() as gaps:
        with ue(bs) as honest, contextlib.closing(connect(bs.addresses[0], b"liar")) as liar:
            assert await answered(honest)
            sending = asyncio.to_thread(liar.sendall, frame(b"", more=True) * frames + frame(b"end"))
            await asyncio.gather(sending, return_exceptions=True)
            while not bs.connections.cut:
                assert await asked(honest)
            for _ in range(10):
                assert await asked(honest)
        assert all(len(message) == 1 for message in heard)
        assert ("all connections are closed" in caplog.text) == (frames > MOST_SKIPPED)
        assert max(gaps) < 0.1


async def test_connections_that_do_not_end_are_closed_with_all_others_and_ues_come_back() -> None:
    """libzmq keeps the descriptor of a connection whose identity was taken while messages of it were unread."""
    async with echo() as (bs, _):
        with ue(bs) as honest:
            assert await answered(honest)
            before, liars = descriptors(), []
            for _ in range(18):
                liars.append(connect(bs.addresses[0], b"same"))
                liars[-1].sendall(frame(b"unread") * 200)
            await asyncio.sleep(0.2)
            for liar in liars:
                liar.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                liar.close()
            await asyncio.sleep(0.2)
            assert descriptors() > before + 10
            bs.connections._most = 20
            bs.connections._known.clear()  # it has not seen them open
            until_s = time.monotonic() + WAIT_S
            while descriptors() > before and time.monotonic() < until_s:
                await honest.send([b"and me?"])  # lost, perhaps
                with contextlib.suppress(LinkTimeout):
                    await honest.recv(0.5)
                await asyncio.sleep(0.1)
            assert descriptors() <= before
            assert await answered(honest)


def descriptors() -> int:
    """Number of open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


async def test_a_handshake_beyond_a_part_is_cut_off() -> None:
    """libzmq reads metadata one by one for anybody, in the thread that serves all connections."""
    async with echo() as (bs, _):
        with contextlib.closing(connect(bs.addresses[0], b"sound", metadata(PART_BYTES - 100))):
            pass
        with pytest.raises(ConnectionError):
            connect(bs.addresses[0], b"liar", metadata(PART_BYTES + 100))
        with ue(bs) as honest:
            assert await answered(honest)


OTHER = "127.0.0.2"
"""Another host's address, on loopback."""


async def test_large_handshakes_at_once_from_one_address_are_cut_off_before_they_are_complete() -> None:
    """700 of them stopped libzmq's thread for .7 s, and honest UEs waited."""
    async with echo() as (bs, _):
        with ue(bs) as honest, contextlib.ExitStack() as held:
            assert await answered(honest)
            handshake = GREETING + ready(b"crowd", metadata(16_000))
            crowd = [held.enter_context(contextlib.closing(dial(bs.addresses[0], OTHER))) for _ in range(300)]
            for one in crowd:
                with contextlib.suppress(ConnectionError):
                    one.sendall(handshake[:-1])
            cut = 300 - UNHEARD_BYTES // len(handshake)
            while bs.connections.cut < cut:
                await asyncio.sleep(CHECK_S)
            assert bs.connections.cut <= cut + 20
            assert await answered(honest)
            with ue(bs) as late, contextlib.closing(connect(bs.addresses[0], b"small", source=OTHER)) as small:
                small.sendall(frame(b"heard before the next check"))
                assert await answered(late)


async def test_first_messages_that_are_large_and_slow_are_no_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many UEs behind one address send what they hold after an outage."""
    monkeypatch.setattr("testbed.channel.limits.counts.HANDSHAKE_S", 0.5)
    async with echo() as (bs, heard):
        with contextlib.ExitStack() as held:
            crowd = [held.enter_context(contextlib.closing(connect(bs.addresses[0], b"c%d" % i))) for i in range(100)]
            await asyncio.sleep(0.6)
            message = frame(bytes(PART_BYTES), more=True) * 2 + frame(b"end")
            for one in crowd:
                one.sendall(message[:-1])
            await asyncio.sleep(4 * CHECK_S)
            for one in crowd:
                one.sendall(message[-1:])
            while len(heard) < 100:
                await asyncio.sleep(0.01)
        assert bs.connections.cut == 0


async def test_an_address_that_opens_too_many_connections_is_refused_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("testbed.channel.limits.connections.ADDRESS_AT_ONCE", 20)
    monkeypatch.setattr("testbed.channel.limits.connections.ADDRESS_PER_S", 10.0)
    async with echo() as (bs, _):
        with ue(bs) as honest, contextlib.ExitStack() as held:
            assert await answered(honest)
            crowd = [held.enter_context(contextlib.closing(dial(bs.addresses[0], OTHER))) for _ in range(50)]
            while bs.connections.cut < 29:
                await asyncio.sleep(CHECK_S / 4)
            with socket.socket() as refused:
                refused.settimeout(0.4)
                refused.bind((OTHER, 0))
                with pytest.raises(TimeoutError):
                    refused.connect(crowd[0].getpeername())
            with ue(bs) as late:
                assert await answered(late)
            begun_s = time.monotonic()
            again = await asyncio.to_thread(connect, bs.addresses[0], b"again", source=OTHER)
            again.close()
            assert time.monotonic() - begun_s < 4 * CLOSED_S
        assert bs.connections.cut <= 31


@pytest.mark.parametrize(
    ("sizes", "excess"),
    [
        ([FRAME_BYTES + 1], f"a frame of more than {FRAME_BYTES} bytes"),
        ([FRAME_BYTES] * 18, f"a message of more than {FRAME_BYTES + OTHER_BYTES} bytes"),
        ([PART_BYTES] * (MOST_FRAMES + 1), f"a message of more than {MOST_FRAMES} frames"),
    ],
)
async def test_parts_do_not_exceed_the_bounds_of_a_message(
    sizes: list[int], excess: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with echo() as (bs, heard):
        with ue(bs) as liar, ue(bs) as honest:
            await liar.send([bytes(size) for size in sizes])
            while not bs.connections.cut:
                await asyncio.sleep(0.01)
            assert excess in caplog.text
            assert await answered(honest)
        assert heard == [[b"and me?"]]


async def test_a_peer_with_a_long_identity_is_not_served_but_disconnected() -> None:
    """It would be copied with every message, and kept with every session. Sockets of libzmq take 255 bytes at most."""
    async with echo() as (bs, heard):
        longest = b"L" * MAX_IDENTITY_BYTES
        with contextlib.closing(connect(bs.addresses[0], longest)) as sound, ue(bs) as honest:
            sound.sendall(frame(b"sound"))
            with contextlib.closing(connect(bs.addresses[0], longest + b"L")) as liar:
                liar.sendall(frame(b"liar") * 10)
                assert await asyncio.get_running_loop().run_in_executor(None, drained, liar)
            assert await answered(honest)
        assert sorted(heard) == [[b"and me?"], [b"sound"]] and bs.connections.cut >= 1


def drained(connected: socket.socket) -> bool:
    """Whether the other end closes the connection."""
    with contextlib.suppress(OSError):
        while connected.recv(4096):
            pass
    return True


async def test_connections_beyond_the_bound_are_dropped_but_for_those_that_were_heard() -> None:
    async with echo() as (bs, _):
        bs.connections.close()
        bs.connections = Connections(bs.connections.ports, 2**20, INBOX, most=3)
        with ue(bs) as first, contextlib.ExitStack() as held:
            assert await answered(first)
            crowd = [held.enter_context(contextlib.closing(connect(bs.addresses[0], b"c%d" % i))) for i in range(8)]
            while bs.connections.cut < 6:
                await asyncio.sleep(CHECK_S / 4)
            await asyncio.sleep(2 * CHECK_S)
            assert bs.connections.cut == 6
            assert await answered(first)
            for one in crowd:
                one.close()
            await asyncio.sleep(3 * CHECK_S)
            with ue(bs) as late:
                assert await answered(late)


def test_one_key_holds_at_most_half_of_the_connections() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    connections = Connections(frozenset({address[1]}), 2**20, INBOX, most=8)
    with listener, contextlib.ExitStack() as held:

        def opened(key: str) -> socket.socket:
            here = held.enter_context(socket.create_connection(address))
            here.settimeout(0.1)
            connections.taken(held.enter_context(listener.accept()[0]).fileno(), key=key)
            return here

        crowd, other = [opened("crowd") for _ in range(6)], opened("other")
        connections.check(drained=True)
        assert connections.cut == 2 and sum(map(ended, crowd)) == 2 and not ended(other)
    connections.close()


def ended(connected: socket.socket) -> bool:
    """Whether the peer has shut the connection down."""
    try:
        return connected.recv(1) == b""
    except TimeoutError:
        return False


def test_a_descriptor_that_is_none_of_ours_is_left_alone() -> None:
    connections = Connections(frozenset({1}), 1, 1, most=1)
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as here, listener.accept()[0] as there:
        there.sendall(bytes(SPARE_BYTES))
        for descriptor in (0, 10**6, listener.fileno()):
            connections.taken(descriptor)
        for _ in range(5):
            connections.check(drained=True)
        assert connections.cut == 0
        here.sendall(b"still there")
        assert there.recv(100) == b"still there"
    assert not Connections(frozenset(), 1, 1).watched


async def test_connections_are_checked_while_no_descriptor_is_free() -> None:
    async with echo() as (bs, _):
        with ue(bs) as honest, contextlib.closing(connect(bs.addresses[0], b"endless")) as liar:
            assert await answered(honest)
            liar.sendall(frame(b"sound", more=False))
            sent, piece = [0], frame(bytes(PART_BYTES), more=True) * 4
            with no_descriptors_left():
                pouring = threading.Thread(target=pour, args=(liar, piece, sent), daemon=True)
                pouring.start()
                deadline_s = time.monotonic() + 10
                while pouring.is_alive() and time.monotonic() < deadline_s:
                    await asyncio.sleep(0.05)
                assert not pouring.is_alive()
            assert bs.connections.cut == 1 and bs.background.failures == {"connection limits": 0}
            assert await answered(honest)


async def test_checks_that_fail_are_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.tasks.RESTART_S", 0.01)
    checks = iter([OSError("first"), ValueError("second")])

    def check(self: Connections, drained: bool) -> bool:
        if (error := next(checks, None)) is not None:
            raise error
        return False

    monkeypatch.setattr(Connections, "check", check)
    async with echo() as (bs, _):
        with ue(bs) as honest:
            assert await answered(honest)
        while bs.background.failures["connection limits"] < 2:
            await asyncio.sleep(0.01)
        assert bs.background.failing == ["connection limits"]
