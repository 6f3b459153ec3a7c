"""Listening sockets of web servers and their access keys: without a key, a server listens on loopback only."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterator
from pathlib import Path

from testbed.errors import BadInput


@contextlib.contextmanager
def listening(host: str, port: int, *, guarded: bool, flag: str = "--token-file") -> Iterator[socket.socket]:
    """Yield a listening socket.

    Args:
        host: address or name; empty for all addresses of this machine.
        port: 0 for any free port.
        guarded: whether clients must present a key.
        flag: command-line option that takes the key file, for the error message.

    Raises:
        BadInput: unknown host, port in use, or an address other than loopback without a key.
    """
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as exc:
        raise BadInput(f"{host}: {exc.strerror or exc}") from exc
    if not guarded and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise BadInput(f"{host} is reachable from other machines: give {flag} FILE with an access key")
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
    """Read the access key from a file; None without a file.

    Raises:
        BadInput: the file cannot be read or contains no key.
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
    """URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
