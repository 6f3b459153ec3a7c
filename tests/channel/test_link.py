"""The ZeroMQ link over real sockets: addresses, both directions, byte counts, timeouts, reconnecting peers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from testbed.channel.access import check_address
from testbed.channel.frames import PART_BYTES, parts
from testbed.channel.link import ANSWER_BYTES, ZmqLink, new_identity
from testbed.channel.server_link import ZmqServerLink
from testbed.errors import BadInput, LinkError, LinkTimeout

ANYWHERE = "tcp://127.0.0.1:*"
WAIT_S = 10.0


@contextlib.contextmanager
def server(*addresses: str) -> Iterator[ZmqServerLink]:
    link = ZmqServerLink(*addresses)
    try:
        yield link
    finally:
        link.close()


@contextlib.contextmanager
def ue(address: str, identity: bytes | None = None) -> Iterator[ZmqLink]:
    link = ZmqLink(address, identity or new_identity())
    try:
        yield link
    finally:
        link.close()


# ---------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    "address",
    [
        "tcp://127.0.0.1:5555", "tcp://localhost:1", "tcp://0.0.0.0:65535", "tcp://*:5555", "tcp://edge-1.lan:80",
        "tcp://[::1]:5555", "tcp://[fe80::1]:*", "tcp://127.0.0.1:*", "ipc:///run/bs.sock", "ipc://@abstract",
    ],
)  # fmt: skip
def test_addresses_that_can_be_used(address: str) -> None:
    assert check_address(address) == address


@pytest.mark.parametrize(
    "address",
    [
        "", "127.0.0.1:5555", "tcp://127.0.0.1", "tcp://127.0.0.1:", "tcp://:5555", "tcp://127.0.0.1:0",
        "tcp://127.0.0.1:65536", "tcp://127.0.0.1:-1", "tcp://127.0.0.1:http", "tcp://::1:5555", "tcp://[::g]:5555",
        "udp://127.0.0.1:5555", "http://127.0.0.1:5555", "ipc://", "ipc:// x", "tcp://a b:5555", "tcp://a/b:5555",
        "tcp://127.0.0.1:5555 ", " tcp://127.0.0.1:5555", "tcp://127.0.0.1:5555\n", "tcp://a:1,tcp://b:2",
    ],
)  # fmt: skip
def test_addresses_that_cannot(address: str) -> None:
    with pytest.raises(BadInput, match=r"use tcp://HOST:PORT, such as tcp://127\.0\.0\.1:5555, or ipc://PATH"):
        check_address(address)
    with pytest.raises(BadInput, match="bad address"):
        ZmqLink(address, new_identity())
    with pytest.raises(BadInput, match="bad address") as caught:
        ZmqServerLink(ANYWHERE, address)
    assert caught.value.__cause__ is None


def test_an_address_that_is_taken_or_not_ours_is_refused() -> None:
    with server(ANYWHERE) as first:
        with pytest.raises(BadInput, match=f"cannot bind {first.addresses[0]}: Address already in use"):
            ZmqServerLink(first.addresses[0])
        with pytest.raises(BadInput, match="cannot bind ipc:///no/such/folder/bs"):
            ZmqServerLink("ipc:///no/such/folder/bs")


def test_connecting_to_any_port_is_refused() -> None:
    with pytest.raises(BadInput, match="cannot connect"):
        ZmqLink(ANYWHERE, new_identity())


def test_identities_are_fresh_and_fit_for_zeromq() -> None:
    identities = {new_identity() for _ in range(100)}
    assert len(identities) == 100
    assert all(identity[0] != 0 and len(identity) <= 255 for identity in identities)


# ---------------------------------------------------------------- messages


@pytest.fixture(params=["tcp", "ipc"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return ANYWHERE if request.param == "tcp" else f"ipc://{tmp_path}/bs"


async def test_frames_arrive_as_they_were_sent_and_their_bytes_are_counted(address: str) -> None:
    with server(address) as bs, ue(bs.addresses[0], b"ue-one") as one:
        big = bytes(range(256)) * 4096
        assert await one.send([b"header", memoryview(big), b""]) == 6 + 2**20
        peer, frames = await asyncio.wait_for(bs.recv(), WAIT_S)
        assert (peer, frames) == (b"ue-one", [b"header", big, b""])
        await bs.send(peer, [b"", memoryview(b"answer")])
        assert (await one.recv(WAIT_S)).frames == [b"", b"answer"]


@pytest.mark.parametrize("size", [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES, 2 * PART_BYTES + 1])
@pytest.mark.parametrize("last", [True, False])
async def test_large_frames_travel_in_parts(size: int, last: bool) -> None:
    body = os.urandom(size)
    frames = [b"header", body] if last else [body, memoryview(b"array")]
    assert all(len(part) <= PART_BYTES for part in parts(frames))
    with server(ANYWHERE) as bs, ue(bs.addresses[0], b"ue-one") as one:
        assert await one.send(frames) == sum(map(len, frames))
        assert (await asyncio.wait_for(bs.recv(), WAIT_S))[1] == frames


async def test_other_tasks_run_although_messages_never_cease(monkeypatch: pytest.MonkeyPatch) -> None:
    with server(ANYWHERE) as bs, ue(bs.addresses[0]) as one:
        await one.send([b"again"])
        while (first := bs._take()) is None:
            await asyncio.sleep(0.001)
        monkeypatch.setattr(bs, "_take", lambda: first)
        monkeypatch.setattr("testbed.channel.server_link.following", lambda *_: ([b"again"], ""))
        beats, until_s = 0, time.monotonic() + 0.3

        async def beat() -> None:
            nonlocal beats
            while True:
                await asyncio.sleep(0)
                beats += 1

        beating = asyncio.create_task(beat())
        while time.monotonic() < until_s:
            await bs.recv()
        beating.cancel()
        assert beats > 1


async def fill(link: ZmqLink) -> None:
    """Send until the link takes no more messages, a while later either."""
    taken = 1
    while taken:
        taken = 0
        with contextlib.suppress(LinkError):
            while True:
                await link.send([bytes(2**16)])
                taken += 1
        await asyncio.sleep(0.2)


async def test_a_full_queue_hides_no_message() -> None:
    """A send that fails takes libzmq's notice of a message away, too."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as bs:
        bs.linger = 0
        with ue(f"tcp://127.0.0.1:{bs.bind_to_random_port('tcp://127.0.0.1')}") as one:
            await one.send([b"hello"])
            peer, _ = await asyncio.to_thread(bs.recv_multipart)
            await fill(one)
            receiving = asyncio.create_task(one.recv(WAIT_S))
            await asyncio.sleep(0.1)  # it waits
            bs.send_multipart([peer, b"answer"])
            time.sleep(0.2)  # it has come, and the event loop has not seen it
            with pytest.raises(LinkError):
                await one.send([b"too much"])
            assert (await asyncio.wait_for(receiving, WAIT_S / 2)).frames == [b"answer"]  # not at its own end


async def test_peers_are_told_apart_and_order_is_kept(address: str) -> None:
    with server(address) as bs, ue(bs.addresses[0], b"ue-a") as a, ue(bs.addresses[0], b"ue-b") as b:
        for i in range(20):
            await a.send([b"a%d" % i])
            await b.send([b"b%d" % i])
        got: dict[bytes, list[bytes]] = {b"ue-a": [], b"ue-b": []}
        for _ in range(40):
            peer, frames = await asyncio.wait_for(bs.recv(), WAIT_S)
            got[peer] += frames
            await bs.send(peer, [b"to " + frames[0]])
        assert got == {b"ue-a": [b"a%d" % i for i in range(20)], b"ue-b": [b"b%d" % i for i in range(20)]}
        assert [(await a.recv(WAIT_S)).frames for _ in range(20)] == [[b"to a%d" % i] for i in range(20)]
        assert [(await b.recv(WAIT_S)).frames for _ in range(20)] == [[b"to b%d" % i] for i in range(20)]


async def test_one_base_station_on_two_addresses(tmp_path: Path) -> None:
    with server(ANYWHERE, f"ipc://{tmp_path}/bs") as bs:
        assert [a.split(":")[0] for a in bs.addresses] == ["tcp", "ipc"]
        assert not bs.addresses[0].endswith("*")
        for place in bs.addresses:
            with ue(place) as link:
                await link.send([place.encode()])
                assert (await asyncio.wait_for(bs.recv(), WAIT_S))[1] == [place.encode()]


async def test_silence_is_a_timeout_that_says_who_and_how_long() -> None:
    with server(ANYWHERE) as bs, ue(bs.addresses[0]) as link:
        start_s = time.perf_counter()
        with pytest.raises(LinkTimeout, match=rf"{bs.addresses[0]} did not answer within 0.1 s"):
            await link.recv(0.1)
        assert 0.09 <= time.perf_counter() - start_s < 5
        # and what comes after a timeout is not lost
        await link.send([b"still there?"])
        peer, _ = await asyncio.wait_for(bs.recv(), WAIT_S)
        await bs.send(peer, [b"yes"])
        assert (await link.recv(WAIT_S)).frames == [b"yes"]


async def test_a_ue_may_be_there_before_its_base_station(tmp_path: Path) -> None:
    place = f"ipc://{tmp_path}/late"
    with ue(place) as link:
        await link.send([b"early"])
        with server(place) as bs:
            assert (await asyncio.wait_for(bs.recv(), WAIT_S))[1] == [b"early"]


async def test_nobody_there_for_long_is_a_link_error_and_not_a_hang() -> None:
    async def flood() -> None:
        with ue("tcp://127.0.0.1:9") as link:
            for _ in range(3000):
                await link.send([b"x"])

    with pytest.raises(LinkError, match="takes no more messages"):
        await asyncio.wait_for(flood(), WAIT_S)


async def test_messages_to_a_peer_that_is_gone_are_dropped_in_silence() -> None:
    with server(ANYWHERE) as bs:
        with ue(bs.addresses[0]) as link:
            await link.send([b"hello"])
            peer, _ = await asyncio.wait_for(bs.recv(), WAIT_S)
        await asyncio.wait_for(bs.send(peer, [b"gone?"]), WAIT_S)
        await asyncio.wait_for(bs.send(b"never seen", [b"who?"]), WAIT_S)
        with ue(bs.addresses[0]) as link:
            await link.send([b"next"])
            assert (await asyncio.wait_for(bs.recv(), WAIT_S))[1] == [b"next"]


async def test_a_ue_that_comes_back_under_its_identity_gets_what_is_sent_to_it() -> None:
    with server(ANYWHERE) as bs, ue(bs.addresses[0], b"ue-one") as before:
        await before.send([b"1"])
        await asyncio.wait_for(bs.recv(), WAIT_S)
        with ue(bs.addresses[0], b"ue-one") as after:
            await after.send([b"2"])
            peer, _ = await asyncio.wait_for(bs.recv(), WAIT_S)
            await bs.send(peer, [b"for the new one"])
            assert (await after.recv(WAIT_S)).frames == [b"for the new one"]


async def test_peers_without_a_name_are_not_served() -> None:
    """libzmq names them itself, also connections whose identity another one took: nobody would close their sessions."""
    with server(ANYWHERE) as bs, zmq.Context() as context, context.socket(zmq.DEALER) as nameless:
        nameless.setsockopt(zmq.LINGER, 0)
        nameless.connect(bs.addresses[0])
        nameless.send_multipart([b"nameless"])
        await asyncio.sleep(0.2)
        with ue(bs.addresses[0]) as named:
            await named.send([b"named"])
            assert (await asyncio.wait_for(bs.recv(), WAIT_S))[1] == [b"named"]


async def test_a_ue_whose_identity_was_taken_connects_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection stays open at both ends, but its messages no longer arrive."""
    monkeypatch.setattr("testbed.channel.link.SILENT_S", 0.3)
    identity = new_identity()
    with server(ANYWHERE) as bs, ue(bs.addresses[0], identity) as owner:
        await owner.send([b"first"])
        peer, frames = await asyncio.wait_for(bs.recv(), WAIT_S)
        await bs.send(peer, [b"answer"])
        assert (await owner.recv(WAIT_S)).frames == [b"answer"] and frames == [b"first"]
        with ue(bs.addresses[0], identity) as thief:
            await thief.send([b"mine"])
            assert (await asyncio.wait_for(bs.recv(), WAIT_S))[1] == [b"mine"]
            for _ in range(100):  # messages are sent again until they are answered
                await owner.send([b"second"])
                with contextlib.suppress(asyncio.TimeoutError):
                    peer, frames = await asyncio.wait_for(bs.recv(), 0.1)
                    break
            assert frames == [b"second"] and peer == identity
            await bs.send(peer, [b"again"])
            assert (await owner.recv(WAIT_S)).frames == [b"again"]


async def test_a_ue_that_is_answered_keeps_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.channel.link.SILENT_S", 0.05)
    with server(ANYWHERE) as bs, ue(bs.addresses[0]) as link:
        connected: list[str] = []
        monkeypatch.setattr(link._socket, "connect", connected.append)
        for _ in range(10):
            await link.send([bytes(100)])
            peer, _ = await asyncio.wait_for(bs.recv(), WAIT_S)
            await bs.send(peer, [b"yes"])
            await link.recv(WAIT_S)
            await asyncio.sleep(0.06)
        assert connected == []
        await link.send([bytes(2**16)])  # takes 5 s at the slowest rate
        await asyncio.sleep(0.1)
        await link.send([b"again"])
        assert connected == []


async def test_a_ue_takes_no_frame_beyond_the_largest_answer() -> None:
    with server(ANYWHERE) as bs, ue(bs.addresses[0]) as link:
        await link.send([b"hello"])
        peer, _ = await bs.recv()
        await bs.send(peer, [bytes(ANSWER_BYTES)])
        assert (await link.recv(WAIT_S)).size_bytes == ANSWER_BYTES
        await bs.send(peer, [bytes(ANSWER_BYTES + 1)])
        with pytest.raises(LinkTimeout):
            await link.recv(0.5)
