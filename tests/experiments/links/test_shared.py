"""UEs behind the relay of a shared radio take each other's slots."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from testbed.channel.emulate import endpoint
from testbed.channel.radio.config import ConstantSource, RadioConfig
from testbed.errors import BadInput
from testbed.experiments.links.shared import shared_radio

RADIO = RadioConfig(bandwidth_hz=1e6, source=ConstantSource(bits_per_s_per_hz=1.0))
SIZE = 60_000
"""Bytes of a transfer: 0.48 s alone."""


@pytest.fixture
def server() -> Iterator[str]:
    """Answers a connection once it has received `SIZE` bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve(connection: socket.socket) -> None:
            with connection:
                left = SIZE
                while left and (data := connection.recv(2**16)):
                    left -= len(data)
                connection.sendall(b"x")

        def accept() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"


def transfers_s(addresses: Sequence[str]) -> list[float]:
    """Times of transfers that begin together."""
    found: list[float] = []
    begin = threading.Barrier(len(addresses))

    def send(address: str) -> None:
        with socket.create_connection(endpoint(address), timeout=30) as connection:
            begin.wait()
            start_s = time.monotonic()
            connection.sendall(bytes(SIZE))
            assert connection.recv(1) == b"x"
            found.append(time.monotonic() - start_s)

    threads = [threading.Thread(target=send, args=(address,)) for address in addresses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == len(addresses)
    return found


def test_two_ues_cannot_have_more_than_the_radio(server: str) -> None:
    """Lower bounds: a busy machine can only make transfers longer."""
    with shared_radio(RADIO, 3, server) as shared:
        assert len(set(shared.listens)) == 3 and shared.origin_s <= time.monotonic()
        (alone_s,) = transfers_s(shared.listens[:1])
        assert alone_s > 0.47
        assert max(transfers_s(shared.listens[1:])) > 0.94
        assert max(transfers_s([shared.listens[0]] * 2)) > 0.94  # connections of one UE share, too


def test_what_cannot_be_relayed_is_refused_at_once() -> None:
    with pytest.raises(BadInput, match="bad address"), shared_radio(RADIO, 1, "nowhere"):
        pass
    radio = RadioConfig(source=ConstantSource(bits_per_s_per_hz=(1.0, 2.0)))
    with pytest.raises(BadInput, match="2 efficiencies"), shared_radio(radio, 1, "tcp://127.0.0.1:5"):
        pass
