"""Minimal ZMTP 3.0 peers (mechanism NULL), for messages that libzmq's sockets do not send."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

MORE, LONG, COMMAND = 1, 2, 4
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31)


def ready(identity: bytes, metadata: bytes = b"", kind: bytes = b"DEALER") -> bytes:
    """The READY command of a socket, with further metadata."""
    body = b"\x05READY"
    for name, value in ((b"Socket-Type", kind), (b"Identity", identity)):
        body += bytes([len(name)]) + name + struct.pack(">I", len(value)) + value
    return frame(body + metadata, flags=COMMAND)


def frame(body: bytes, *, more: bool = False, flags: int = 0) -> bytes:
    """One frame of a message, or a command."""
    flags |= MORE * more
    if len(body) < 256:
        return bytes([flags, len(body)]) + body
    return bytes([flags | LONG]) + struct.pack(">Q", len(body)) + body


def dial(address: str, source: str = "") -> socket.socket:
    """A blocking TCP connection to tcp://HOST:PORT, from an address of this machine if one is given."""
    host, port = address.removeprefix("tcp://").rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=20, source_address=(source, 0) if source else None)


def connect(address: str, identity: bytes, metadata: bytes = b"", source: str = "") -> socket.socket:
    """A blocking connection, after the handshake. Raises ConnectionError if it is refused."""
    connected = dial(address, source)
    try:
        connected.sendall(GREETING + ready(identity, metadata))
        got = b""
        while len(got) < 64 + 2 or len(got) < 66 + got[65]:
            piece = connected.recv(4096)
            if not piece:
                raise ConnectionError("the handshake was refused")
            got += piece
    except ConnectionError:
        connected.close()
        raise
    return connected


@contextlib.contextmanager
def listening(serve: Callable[[socket.socket, int], None]) -> Iterator[str]:
    """The address of a ROUTER. `serve` gets each connection after the handshake, and its number, in a thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    accepted: list[socket.socket] = []

    def shake(connected: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):
            connected.sendall(GREETING + ready(b"", kind=b"ROUTER"))
            connected.recv(64, socket.MSG_WAITALL)
            serve(connected, number)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted.append(listener.accept()[0])
                threading.Thread(target=shake, args=(accepted[-1], len(accepted) - 1), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        for one in (listener, *accepted):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
