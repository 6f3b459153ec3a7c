"""Access control over real sockets and CURVE handshakes, also with a man in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import zmq

from testbed.channel.access import RELOAD_S, AllowList, is_loopback, require_keys
from testbed.channel.keys import ClientKeys, entries, load_client, load_server, new_client, new_server, revoke
from testbed.channel.limits.connections import CHECK_S
from testbed.channel.link import ZmqLink, new_identity
from testbed.channel.server_link import ZmqServerLink
from testbed.errors import BadInput, LinkError, LinkTimeout
from tests.support.descriptors import no_descriptors_left
from tests.support.refusals import refuse
from tests.support.relay import relay

WAIT_S = 20.0
SILENCE_S = 0.7
ANYWHERE = "tcp://127.0.0.1:*"


class Echo:
    """A BS that echoes every message and records it."""

    def __init__(self, directory: Path | None, frame_bytes: int = 2**20) -> None:
        keys = None if directory is None else load_server(directory)
        self.link = ZmqServerLink(ANYWHERE, keys=keys, frame_bytes=frame_bytes)
        self.address = self.link.addresses[0]
        self.heard: list[tuple[bytes, list[bytes]]] = []

    async def serve(self) -> None:
        while True:
            peer, frames = await self.link.recv()
            self.heard.append((peer, frames))
            await self.link.send(peer, frames)


@contextlib.asynccontextmanager
async def echo(directory: Path | None, frame_bytes: int = 2**20) -> AsyncIterator[Echo]:
    bs = Echo(directory, frame_bytes)
    serving = asyncio.create_task(bs.serve())
    try:
        yield bs
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        bs.link.close()


@contextlib.contextmanager
def linked(address: str, keys: ClientKeys | None, identity: bytes | None = None) -> Iterator[ZmqLink]:
    link = ZmqLink(address, identity or new_identity(), keys)
    try:
        yield link
    finally:
        link.close()


async def answered(link: ZmqLink, text: bytes, wait_s: float = WAIT_S) -> bool:
    """Whether a message is answered."""
    with contextlib.suppress(LinkError):
        await link.send([text])
        assert (await link.recv(wait_s)).frames == [text]
        return True
    return False


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    new_server(tmp_path / "keys")
    return tmp_path / "keys"


@pytest.fixture
def known(keys: Path) -> ClientKeys:
    return load_client(new_client(keys, "known"))


async def test_who_is_on_the_list_is_answered(keys: Path, known: ClientKeys) -> None:
    async with echo(keys) as bs:
        with linked(bs.address, known) as link:
            assert await answered(link, b"one") and await answered(link, b"two")


async def test_strangers_get_no_answer_and_reach_nobody(tmp_path: Path, keys: Path, known: ClientKeys) -> None:
    """No key, a key that is not in the list, another BS's server key, a UE of another BS."""
    other = tmp_path / "other"
    new_server(other)
    theirs = load_client(new_client(other, "known"))
    strangers = [
        None,
        theirs._replace(server=known.server),
        known._replace(server=theirs.server),
        theirs,
        known._replace(public=theirs.public),
    ]
    async with echo(keys) as bs:
        with contextlib.ExitStack() as held:
            links = [held.enter_context(linked(bs.address, stranger)) for stranger in strangers]
            assert await asyncio.gather(*(answered(link, b"let me in", SILENCE_S) for link in links)) == [False] * 5
            with linked(bs.address, known) as link:
                assert await answered(link, b"and me?")
        assert [frames for _, frames in bs.heard] == [[b"and me?"]]


async def test_a_bs_without_keys_is_no_answer_to_a_ue_with_keys(known: ClientKeys) -> None:
    async with echo(None) as bs:
        with linked(bs.address, known) as link:
            assert not await answered(link, b"my prompt", SILENCE_S)
        assert bs.heard == []


async def test_keys_are_put_on_and_taken_off_the_list_while_it_runs(keys: Path) -> None:
    async with echo(keys) as bs:
        with linked(bs.address, load_client(new_client(keys, "late"))) as link:
            assert await answered(link, b"just made")
            revoke(keys, "late")
            await asyncio.sleep(RELOAD_S)
            assert not await answered(link, b"still there?", SILENCE_S)  # the connection that stood
            assert bs.link.connections.cut == 1  # it could have gone on sending
        with linked(bs.address, load_client(keys / "ues" / "late")) as link:
            assert not await answered(link, b"let me in again", SILENCE_S)
        assert [frames for _, frames in bs.heard] == [[b"just made"]]


async def test_what_waits_for_a_revoked_ue_is_not_sent(keys: Path, known: ClientKeys) -> None:
    bs = ZmqServerLink(ANYWHERE, keys=load_server(keys))
    try:
        with linked(bs.addresses[0], known) as link:
            await link.send([b"question"])
            peer, _ = await asyncio.wait_for(bs.recv(), WAIT_S)
            assert bs.serves(peer)
            revoke(keys, "known")
            await asyncio.sleep(RELOAD_S)
            assert not bs.serves(peer)
            await bs.send(peer, [b"answer"])
            with pytest.raises(LinkTimeout):
                await link.recv(SILENCE_S)
    finally:
        bs.close()


async def test_one_ues_identity_is_of_no_use_to_another(keys: Path, known: ClientKeys) -> None:
    """Both are allowed; the second takes the first one's identity, but the BS tells them apart by key."""
    second = load_client(new_client(keys, "second"))
    async with echo(keys) as bs:
        with linked(bs.address, known, b"ue-same") as first:
            assert await answered(first, b"1")
            with linked(bs.address, second, b"ue-same") as thief:
                assert await answered(thief, b"2")
        (peer, _), (other, _) = bs.heard
        assert peer != other and bs.link.owner(peer) != bs.link.owner(other)
        assert bs.link.owner(peer) == known.public


async def test_nothing_of_a_message_is_seen_on_the_way(keys: Path, known: ClientKeys) -> None:
    text = b"the quick brown fox jumps over the lazy dog" * 5
    async with echo(keys) as bs, relay(bs.address) as (between, address):
        with linked(address, known) as link:
            assert await answered(link, text)
        assert len(between.heard[0]) > len(text)
        for seen in (between.heard[0], between.answers[0]):
            assert not any(bytes(text[i : i + 8]) in seen for i in range(len(text) - 8))


@pytest.mark.parametrize("at", [0, 72, 200, 300, 580, 600, 640, 820])
async def test_tampered_ciphertext_gets_nothing(keys: Path, known: ClientKeys, at: int) -> None:
    """One byte of the uplink is changed, in the greeting (64), the handshake (522) or the message (235)."""

    def touch(piece: bytes, before: int) -> bytes:
        if before <= at < before + len(piece):
            changed = bytearray(piece)
            changed[at - before] ^= 0x41
            return bytes(changed)
        return piece

    async with echo(keys) as bs, relay(bs.address, touch) as (between, address):
        with linked(address, known) as link:
            assert not await answered(link, b"x" * 200, SILENCE_S)
        assert max(map(len, between.heard)) > at or at == 0
        assert bs.heard == []


async def test_what_was_recorded_gets_nothing_when_it_is_sent_again(keys: Path, known: ClientKeys) -> None:
    """Replay of a whole connection, and of a message within its connection."""
    twice: list[bytes] = []

    def again(piece: bytes, before: int) -> bytes:
        if before > 400:  # past the handshake: a message
            twice.append(piece)
            return piece + piece
        return piece

    async with echo(keys) as bs:
        async with relay(bs.address) as (between, address):
            with linked(address, known) as link:
                assert await answered(link, b"pay once")
        reader, writer = await asyncio.open_connection("127.0.0.1", int(bs.address.rpartition(":")[2]))
        writer.write(bytes(between.heard[0]))
        await writer.drain()
        got = b""
        with contextlib.suppress(asyncio.TimeoutError, OSError):
            while piece := await asyncio.wait_for(reader.read(4096), SILENCE_S):
                got += piece
        writer.close()
        assert len(got) < len(between.answers[0])
        async with relay(bs.address, again) as (_, address):
            with linked(address, known) as link:
                await answered(link, b"and again", SILENCE_S)
                await asyncio.sleep(0.2)
        assert twice
        assert [frames for _, frames in bs.heard if frames != [b"and again"]] == [[b"pay once"]]
        assert sum(frames == [b"and again"] for _, frames in bs.heard) <= 1


async def test_a_frame_beyond_the_bound_is_not_taken(keys: Path, known: ClientKeys) -> None:
    async with echo(keys, frame_bytes=1000) as bs:
        with linked(bs.address, known) as link:
            assert await answered(link, bytes(1000))
            assert not await answered(link, bytes(1001), SILENCE_S)
        with linked(bs.address, known) as link:
            assert await answered(link, b"the others are served")


async def test_a_handshake_that_goes_no_further_is_cut_off(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.channel.server_link.HANDSHAKE_S", 0.2)
    async with echo(keys) as bs:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(bs.address.rpartition(":")[2]))
        assert await asyncio.wait_for(reader.read(), WAIT_S) != b""  # the greeting, and then the end
        writer.close()
        await writer.wait_closed()


async def test_one_key_opens_a_few_connections_at_once_and_others_with_time(
    keys: Path, known: ClientKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An allowed UE had the base station's socket renewed every 13 s by taking its own identity again and again."""
    monkeypatch.setattr("testbed.channel.access.KEY_AT_ONCE", 3)
    monkeypatch.setattr("testbed.channel.access.KEY_PER_S", 1.0)
    second = load_client(new_client(keys, "second"))
    async with echo(keys) as bs:
        with contextlib.ExitStack() as held:
            links = [held.enter_context(linked(bs.address, known)) for _ in range(6)]
            asked = [asyncio.create_task(answered(link, b"%d" % number)) for number, link in enumerate(links)]
            await asyncio.sleep(SILENCE_S)
            assert sum(task.done() for task in asked) == 3
            with linked(bs.address, second) as other:
                assert await answered(other, b"another key")
            assert sum(task.done() for task in asked) <= 4
            assert all(await asyncio.gather(*asked))  # refused ones came again by themselves


async def test_a_key_that_sends_very_many_frames_is_not_served_for_a_while(
    keys: Path, known: ClientKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("testbed.channel.limits.arrivals.SHUNNED_S", 3.0)
    second = load_client(new_client(keys, "second"))
    async with echo(keys) as bs:
        with (
            linked(bs.address, second) as other,
            linked(bs.address, known) as liar,
            linked(bs.address, known) as beside,
        ):
            for link in (other, liar, beside):
                assert await answered(link, b"before")
            liar._socket.send_multipart([b""] * 5000)
            await asyncio.sleep(3 * CHECK_S)
            assert not await answered(beside, b"the same key", SILENCE_S)
            assert await answered(other, b"another key")
            with linked(bs.address, known) as again:
                assert not await answered(again, b"a new connection", SILENCE_S)
                assert (await again.recv(WAIT_S)).frames == [b"a new connection"]


async def test_handshakes_of_an_address_are_counted_whoever_sends_them(
    keys: Path, known: ClientKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("testbed.channel.limits.connections.ADDRESS_AT_ONCE", 10)
    monkeypatch.setattr("testbed.channel.limits.connections.ADDRESS_PER_S", 0.0)
    async with echo(keys) as bs:
        with linked(bs.address, known) as link:
            assert await answered(link, b"before")
            with contextlib.ExitStack() as held:
                for _ in range(12):
                    public, secret = zmq.curve_keypair()
                    stranger = held.enter_context(linked(bs.address, ClientKeys(public, secret, known.server)))
                    assert not await answered(stranger, b"let me in", 0.1)
            assert bs.link.connections._closed.count >= 1
            assert await answered(link, b"after")


# ---------------------------------------------------------------- the list


def test_a_list_that_cannot_be_read_lets_nobody_in(
    keys: Path, known: ClientKeys, caplog: pytest.LogCaptureFixture
) -> None:
    assert known.public.decode() in AllowList(keys)
    assert "" not in AllowList(keys) and "None" not in AllowList(keys)
    (keys / "clients").rename(keys / "away")
    assert known.public.decode() not in AllowList(keys)
    assert "all clients are refused" in caplog.text


def test_a_key_that_is_replaced_with_the_date_of_the_old_one_is_seen(
    keys: Path, known: ClientKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `rsync --inplace -t` may leave it: same size, inode and modification time."""
    monkeypatch.setattr("testbed.channel.access.RELOAD_S", 0.0)
    allowed, file = AllowList(keys), keys / "clients" / "known.key"
    old, status = known.public.decode(), file.stat()
    assert old in allowed
    new = zmq.curve_keypair()[0].decode()
    file.write_text(file.read_text().replace(old, new))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert old not in allowed and new in allowed


@pytest.mark.timeout(60)
@pytest.mark.parametrize("target", ["pipe", "/dev/zero"])
def test_a_key_file_without_an_end_is_not_read(target: str, keys: Path, known: ClientKeys) -> None:
    """Reading it stopped the base station."""
    if target == "pipe":
        os.mkfifo(keys / "clients" / "endless.key")
    else:
        (keys / "clients" / "endless.key").symlink_to(target)
    assert known.public.decode() in AllowList(keys)


def test_a_revoked_key_does_not_come_back_under_another_name(keys: Path, known: ClientKeys) -> None:
    revoke(keys, "known")
    (keys / "clients" / "other.key").write_bytes((keys / "revoked" / "known.key").read_bytes())
    assert known.public.decode() not in AllowList(keys)


async def test_a_list_that_cannot_be_read_closes_no_connection(keys: Path, known: ClientKeys) -> None:
    """All UEs would wait for seconds until they connect anew."""
    async with echo(keys) as bs:
        with linked(bs.address, known) as link:
            assert await answered(link, b"before")
            damaged = keys / "revoked" / "damaged.key"
            damaged.write_text("curve")
            await asyncio.sleep(RELOAD_S)
            assert not await answered(link, b"while", SILENCE_S)
            damaged.unlink()
            await asyncio.sleep(RELOAD_S)
            assert await answered(link, b"after")
        assert bs.link.connections.cut == 0


def test_a_revoked_key_that_cannot_be_read_lets_nobody_in(
    keys: Path, known: ClientKeys, caplog: pytest.LogCaptureFixture
) -> None:
    """It might be allowed under another name."""
    damaged = keys / "revoked" / "damaged.key"
    damaged.write_text("curve")
    assert known.public.decode() not in AllowList(keys)
    assert "all clients are refused" in caplog.text and "damaged.key" in caplog.text
    refuse(lambda: entries(keys), BadInput, "damaged.key cannot be read as a key")
    damaged.unlink()
    assert known.public.decode() in AllowList(keys)


def test_a_key_that_is_revoked_during_a_look_at_the_list_concerns_no_other(
    keys: Path, known: ClientKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is in `clients/`, and then not: all clients were refused until the next look."""
    monkeypatch.setattr("testbed.channel.access.RELOAD_S", 0.0)
    leaving = load_client(new_client(keys, "leaving")).public.decode()
    allowed, scandir = AllowList(keys), os.scandir

    class Looked(list[Any]):
        def __enter__(self) -> Looked:
            return self

        def __exit__(self, *_: object) -> None: ...

    def moved(place: Path) -> Looked:
        found = Looked(scandir(place))
        if place.name == "clients" and (place / "leaving.key").exists():
            (place / "leaving.key").rename(keys / "revoked" / "leaving.key")
        return found

    monkeypatch.setattr("testbed.channel.access.os.scandir", moved)
    assert known.public.decode() in allowed and leaving not in allowed


def test_without_a_free_descriptor_the_last_list_stays_less_the_revoked(
    keys: Path, known: ClientKeys, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger can use up the descriptors: the clients must not be refused for it, nor a revoked one be served."""
    monkeypatch.setattr("testbed.channel.access.RELOAD_S", 0.0)
    leaving, late = (load_client(new_client(keys, name)).public.decode() for name in ("leaving", "late"))
    (keys / "clients" / "late.key").rename(keys / "late.key")
    allowed = AllowList(keys)
    assert known.public.decode() in allowed and leaving in allowed and late not in allowed
    with no_descriptors_left():
        (keys / "late.key").rename(keys / "clients" / "late.key")
        assert known.public.decode() in allowed and leaving in allowed and late not in allowed
        (keys / "clients" / "leaving.key").rename(keys / "revoked" / "leaving.key")
        assert known.public.decode() in allowed and leaving not in allowed
    assert caplog.text.count("no client is added") == 1
    assert known.public.decode() in allowed and leaving not in allowed and late in allowed


def test_a_list_that_was_read_in_part_is_read_again(
    keys: Path, known: ClientKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("testbed.channel.access.RELOAD_S", 0.0)
    allowed, later = AllowList(keys), known.public.decode()
    with monkeypatch.context() as context:
        context.setattr("zmq.auth.load_certificate", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
        assert later not in allowed
    assert later in allowed


# ---------------------------------------------------------------- where keys are needed


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("tcp://127.0.0.1:5555", True),
        ("tcp://127.8.9.1:*", True),
        ("tcp://localhost:5555", True),
        ("tcp://[::1]:5555", True),
        ("tcp://lo:5555", True),
        ("ipc:///tmp/bs", True),
        ("tcp://0.0.0.0:5555", False),
        ("tcp://*:5555", False),
        ("tcp://[::]:5555", False),
        ("tcp://192.0.2.7:5555", False),
        ("tcp://[2001:db8::1]:5555", False),
        ("tcp://eth0:5555", False),
        ("tcp://127.0.0.1.example.invalid:5555", False),
    ],
)
def test_what_others_reach_needs_keys(address: str, local: bool) -> None:
    assert is_loopback(address) == local
    require_keys([address], "keys", insecure=False)
    require_keys([address], None, insecure=True)
    if local:
        require_keys([address], None, insecure=False)
    else:
        refuse(
            lambda: require_keys(["ipc:///x", address], None, insecure=False), BadInput, address, "--keys", "--insecure"
        )
    refuse(lambda: require_keys([address], "keys", insecure=True), BadInput, "not both")
