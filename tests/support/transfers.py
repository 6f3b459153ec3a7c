"""Transfers of many bytes to a server, to measure links by."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence

from testbed.channel.emulate import endpoint

SIZE = 60_000
"""Bytes of a transfer: 0.48 s alone."""


@contextlib.contextmanager
def receiving() -> Iterator[str]:
    """Address of a server that answers a connection once it has received `SIZE` bytes."""
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
    """Times of transfers to these addresses that begin together."""
    found: dict[int, float] = {}
    begin = threading.Barrier(len(addresses))

    def send(number: int, address: str) -> None:
        with socket.create_connection(endpoint(address), timeout=30) as connection:
            begin.wait()
            start_s = time.monotonic()
            connection.sendall(bytes(SIZE))
            assert connection.recv(1) == b"x"
            found[number] = time.monotonic() - start_s

    threads = [threading.Thread(target=send, args=one) for one in enumerate(addresses)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == len(addresses)
    return [found[number] for number in range(len(addresses))]
