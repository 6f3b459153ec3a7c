"""Ports of a base station's link while its socket is opened anew."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator

import pytest
import zmq

from testbed.channel.limits.sockets import DESCRIPTORS
from testbed.channel.link import ZmqLink, new_identity
from testbed.channel.server_link import ZmqServerLink
from testbed.errors import LinkError
from tests.support.descriptors import no_descriptors_left

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the sockets of a process")
TIMES = 30


@contextlib.contextmanager
def thief(port: int) -> Iterator[list[socket.socket]]:
    """Another program that binds to a port as soon as it is free."""
    stolen, ended = list[socket.socket](), threading.Event()

    def wait() -> None:
        while not ended.is_set() and not stolen:
            taken = socket.socket()
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                taken.bind(("127.0.0.1", port))
                taken.listen()
                stolen.append(taken)
            except OSError:
                taken.close()

    waiting = threading.Thread(target=wait)
    waiting.start()
    try:
        yield stolen
    finally:
        ended.set()
        waiting.join()
        for taken in stolen:
            taken.close()


async def answered(bs: ZmqServerLink, link: ZmqLink) -> bool:
    """Whether a UE's messages arrive; it sends again every 0.5 s."""
    arrived = asyncio.ensure_future(bs.recv())
    for _ in range(40):
        await link.send([b"here"])
        done, _ = await asyncio.wait([arrived], timeout=0.5)
        if done:
            return arrived.result()[1] == [b"here"]
    return False


async def test_nobody_else_gets_the_port_of_a_socket_that_is_opened_anew() -> None:
    """It is free again once the link is closed, as are all descriptors."""
    first = len(os.listdir(DESCRIPTORS))
    bs = ZmqServerLink("tcp://127.0.0.1:*", "tcp://127.0.0.1:*")
    links = [ZmqLink(address, new_identity()) for address in bs.addresses]
    try:
        before = len(os.listdir(DESCRIPTORS))
        with thief(int(bs.addresses[0].rpartition(":")[2])) as stolen:
            for _ in range(TIMES):
                await bs._renew("test")
                await asyncio.sleep(0.01)
            assert not stolen
        for link in links:
            assert await answered(bs, link)
        assert len(os.listdir(DESCRIPTORS)) <= before + 8  # both connections, at both ends, and sockets being closed
    finally:
        for link in links:
            link.close()
        bs.close()
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", int(bs.addresses[0].rpartition(":")[2])))
        free.listen()
    assert len(os.listdir(DESCRIPTORS)) <= first


async def test_of_two_addresses_with_the_same_port_each_is_kept() -> None:
    """That of another socket of this process, too, which listened before."""
    with socket.socket() as other:
        other.bind(("127.0.0.3", 0))
        other.listen()
        port = other.getsockname()[1]
        bs = ZmqServerLink(f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.2:{port}")
        try:
            for _ in range(3):
                await bs._renew("test")
            for address in bs.addresses:
                link = ZmqLink(address, new_identity())
                try:
                    assert await answered(bs, link)
                finally:
                    link.close()
        finally:
            bs.close()


async def test_a_connection_that_the_other_socket_gets_stops_nothing() -> None:
    """While a socket is opened anew, the old one may still listen: libzmq's thread accepts for both."""
    bs = ZmqServerLink("tcp://127.0.0.1:*", "tcp://127.0.0.2:*")
    old = zmq.Socket(bs._context, zmq.ROUTER)
    link = ZmqLink(bs.addresses[1], new_identity())
    try:
        bs._listeners.bind(old, bs.addresses[0])
        host, _, port = bs.addresses[0].removeprefix("tcp://").rpartition(":")
        for _ in range(20):
            socket.create_connection((host, int(port))).close()
        assert await answered(bs, link)
    finally:
        for _ in range(2):  # whoever waits for a connection goes on
            socket.create_connection((host, int(port))).close()
        link.close()
        old.close(0)
        bs.close()


async def test_an_address_that_cannot_be_bound_again_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setattr("testbed.channel.server_link.RENEW_S", 0.2)
    path = tmp_path_factory.mktemp("s") / "bs"
    bs = ZmqServerLink(f"ipc://{path}")
    try:
        bs.addresses[0] = f"ipc://{path.parent / 'gone' / 'bs'}"
        with pytest.raises(LinkError, match=r"cannot bind ipc://.* again"):
            await bs._renew("test")
    finally:
        bs.close()


async def test_a_socket_is_opened_anew_where_only_the_old_one_frees_descriptors() -> None:
    bs = ZmqServerLink("tcp://127.0.0.1:*")
    link = ZmqLink(bs.addresses[0], new_identity())
    try:
        assert await answered(bs, link)
        with no_descriptors_left():
            renewing = asyncio.ensure_future(bs._renew("test"))
            for _ in range(20):
                await bs.send(b"anybody", [b"lost"])
                await asyncio.sleep(0.01)
            await renewing
        assert await answered(bs, link)
    finally:
        link.close()
        bs.close()
