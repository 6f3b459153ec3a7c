"""Where a web server listens, and the key that its clients must give: loopback alone unless they give one."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterator
from pathlib import Path

from testbed.errors import BadInput


@contextlib.contextmanager
def listening(host: str, port: int, *, guarded: bool, flag: str = "--token-file") -> Iterator[socket.socket]:
    """A listening socket.

    Args:
        host: address or name; empty: all of this machine's.
        port: 0: any that is free.
        guarded: whether clients must give a key.
        flag: of the command line, that names the key's file.

    Raises:
        BadInput: no such host, a port that is taken, or an address beyond loopback without a key.
    """
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as exc:
        raise BadInput(f"{host}: {exc.strerror or exc}") from exc
    if not guarded and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise BadInput(f"{host} can be reached from elsewhere: give {flag} FILE with a key that clients must give")
    listener = socket.socket(family, kind, number)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen()
        except OSError as exc:
            raise BadInput(f"cannot listen on {host}:{port}: {exc.strerror or exc}") from exc
        yield listener
    finally:
        listener.close()


def key_in(path: str | None) -> str | None:
    """The key in a file; None where no file is given.

    Raises:
        BadInput: it cannot be read, or holds none.
    """
    if path is None:
        return None
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise BadInput(f"{path} cannot be read as a key: {exc}") from exc
    if not token or not token.isprintable() or not token.isascii():
        raise BadInput(f"{path} holds no key; write one line of ASCII into it")
    return token


def url_of(listener: socket.socket) -> str:
    """What clients on this machine call it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
