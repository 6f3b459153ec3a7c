"""What a lying BS may send: the memory of a UE is bounded, and its connection works again afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.channel.frames import MOST_FRAMES, OTHER_BYTES
from testbed.channel.link import ANSWER_BYTES, FIRST_PAUSE_S, ZmqLink, new_identity
from testbed.clock import WallClock
from testbed.errors import LinkError
from testbed.protocols.codec import encode
from testbed.protocols.messages import VERSION, Hello, Welcome
from testbed.ue.client import Client
from tests.support.zmtp import frame, listening

MOST_BYTES = ANSWER_BYTES + OTHER_BYTES
WAIT_S = 20.0
END = frame(b"and here is an end")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what connections have received")


@contextlib.contextmanager
def ue(address: str) -> Iterator[ZmqLink]:
    link = ZmqLink(address, new_identity())
    try:
        yield link
    finally:
        link.close()


class Pouring:
    """The first connections get the same frames over and over, later ones a whole message."""

    def __init__(self, piece: bytes, *, first: bytes = b"", connections: int = 1) -> None:
        self.piece, self.first, self.connections = piece, first, connections
        self.sent = 0

    def __call__(self, connected: socket.socket, number: int) -> None:
        """Serve one connection."""
        if number >= self.connections:
            connected.sendall(END)
            return
        connected.sendall(self.first)
        while True:
            connected.sendall(self.piece)
            self.sent += len(self.piece)
            time.sleep(0.001)  # at most 64 MB/s


@pytest.mark.parametrize("body", [b"", bytes(200), bytes(2**16)])
@pytest.mark.parametrize("first", [b"", END])
async def test_a_message_without_an_end_is_cut_off(body: bytes, first: bytes, caplog: pytest.LogCaptureFixture) -> None:
    one = frame(body, more=True)
    pouring = Pouring(one * max(1, 2**16 // len(one)), first=first, connections=5)
    with listening(pouring) as address, ue(address) as link:
        for _ in range(pouring.connections):
            if first:
                await link.recv(WAIT_S)
            with pytest.raises(LinkError, match="sent an unfinished message of more than"):
                await link.recv(WAIT_S)
        assert (await link.recv(WAIT_S)).frames == [END[2:]]
        assert MOST_BYTES < pouring.sent / pouring.connections < 5 * MOST_BYTES
        closed = [line for line in caplog.messages if "connection closed" in line]
        assert [line.count(address) for line in closed] == [1, 1, 1]  # the first, second and fourth


def memory_mb() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def test_the_memory_of_a_message_that_was_cut_off_is_returned_to_the_system() -> None:
    with listening(Pouring(frame(b"", more=True) * 2**15)) as address, ue(address) as link:
        before_mb = memory_mb()
        with pytest.raises(LinkError, match="sent an unfinished message of more than"):
            await link.recv(WAIT_S)
        assert memory_mb() > before_mb + 100
        assert (await link.recv(WAIT_S)).frames == [END[2:]]
        until_s = time.monotonic() + WAIT_S
        while memory_mb() > before_mb + 50 and time.monotonic() < until_s:
            await asyncio.sleep(0.1)
        assert memory_mb() <= before_mb + 50


@pytest.mark.parametrize("frames", [MOST_FRAMES + 1, 300_000])
async def test_of_a_message_of_many_frames_the_rest_is_not_read(frames: int) -> None:
    def serve(connected: socket.socket, number: int) -> None:
        connected.sendall(END if number else frame(b"", more=True) * (frames - 1) + END)

    with listening(serve) as address, ue(address) as link:
        begun_s = time.thread_time()
        with pytest.raises(LinkError, match=f"a message of more than {MOST_FRAMES} frames"):
            await link.recv(WAIT_S)
        assert time.thread_time() - begun_s < 0.1
        assert (await link.recv(WAIT_S)).frames == [END[2:]]


async def test_a_peer_that_goes_on_breaking_a_bound_is_connected_to_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each connection costs a socket: a station on standby kept its UE busy with 175 of them a second. Messages within
    the bounds change nothing; time without such a message does.
    """
    connections, many = list[float](), frame(b"", more=True) * MOST_FRAMES + END
    monkeypatch.setattr("testbed.channel.link.WITHIN_S", 1.5)

    def serve(connected: socket.socket, number: int) -> None:
        connections.append(time.monotonic())
        connected.sendall(END + many if number == 2 else many)

    with listening(serve) as address, ue(address) as link:
        for number in range(6):
            if number == 2:
                await link.send([b"lost: it is not connected yet"])
                assert (await link.recv(WAIT_S)).frames == [END[2:]]
            if number == 4:
                await asyncio.sleep(1.5)
            with pytest.raises(LinkError, match=f"a message of more than {MOST_FRAMES} frames"):
                await link.recv(WAIT_S)
            assert link._pause_s == FIRST_PAUSE_S * 2 ** (number % 4)
    between = [later - earlier for earlier, later in itertools.pairwise(connections)]
    assert all(seconds >= FIRST_PAUSE_S * 2 ** (n % 4) for n, seconds in enumerate(between))


async def test_a_message_that_ends_before_it_was_cut_off_is_refused_for_its_size() -> None:
    def serve(connected: socket.socket, number: int) -> None:
        connected.sendall(END if number else frame(bytes(2**20), more=True) * (MOST_BYTES // 2**20) + END)

    with listening(serve) as address, ue(address) as link:
        with pytest.raises(LinkError, match=f"a message of more than {MOST_BYTES} bytes"):
            await link.recv(WAIT_S)
        assert (await link.recv(WAIT_S)).frames == [END[2:]]


async def test_the_largest_messages_may_come_slowly_or_wait_for_their_reader() -> None:
    message = frame(bytes(ANSWER_BYTES), more=True) + frame(bytes(OTHER_BYTES))

    def serve(connected: socket.socket, number: int) -> None:
        for _ in range(2):
            for at in range(0, len(message), 2**17):
                connected.sendall(message[at : at + 2**17])
                time.sleep(0.01)
        for _ in range(10):
            connected.sendall(message)
        time.sleep(WAIT_S)

    with listening(serve) as address, ue(address) as link:
        for number in range(12):
            assert len((await link.recv(WAIT_S)).frames) == 2
            await asyncio.sleep(0.3 if number in (1, 2) else 0.0)
        with pytest.raises(LinkError, match="did not answer"):
            await link.recv(0.3)


async def test_another_connection_to_the_same_peer_is_followed() -> None:
    """As after a silence, or when the peer starts anew."""

    def serve(connected: socket.socket, number: int) -> None:
        connected.sendall(END)
        if number < 3:
            connected.shutdown(socket.SHUT_RDWR)
        else:
            Pouring(frame(bytes(2**16), more=True))(connected, 0)

    with listening(serve) as address, ue(address) as link:
        for _ in range(4):
            assert (await link.recv(WAIT_S)).frames == [END[2:]]
        with pytest.raises(LinkError, match="sent an unfinished message"):
            await link.recv(WAIT_S)


async def test_links_leave_no_descriptors_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with listening(Pouring(frame(bytes(2**16), more=True), connections=100)) as address:
        for _ in range(2):
            with ue(address) as link:
                for _ in range(2):
                    with pytest.raises(LinkError, match="sent an unfinished message"):
                        await link.recv(WAIT_S)
    until_s = time.monotonic() + WAIT_S
    while len(os.listdir("/proc/self/fd")) > before and time.monotonic() < until_s:
        await asyncio.sleep(0.05)
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_requests_end_when_their_only_station_breaks_a_bound_and_later_ones_are_served() -> None:
    welcome = Welcome(
        version=VERSION, model="m", hidden_size=1, vocab_size=1, end_ids=(), protocols=(), max_window=1,
        max_positions=1,
    )  # fmt: skip

    def serve(connected: socket.socket, number: int) -> None:
        header, *arrays = [bytes(part) for part in encode(welcome)]
        assert not arrays
        if number:
            connected.sendall(frame(header))
            time.sleep(WAIT_S)
        else:
            Pouring(frame(bytes(2**16), more=True))(connected, 0)

    with listening(serve) as address:
        client = Client(ZmqLink(address, new_identity()), WallClock(), 1, WAIT_S)
        with pytest.raises(LinkError, match="sent an unfinished message"):
            await client.connect("", 1)
        assert (await client.ask(Hello(version=VERSION, tokenizer="", vocab_size=1))).message == welcome
        await client.close()
