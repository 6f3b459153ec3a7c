"""Listening sockets of web servers, their access keys, and the rules of access.

Without a key, a server listens on loopback only.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import ipaddress
import os
import socket
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from testbed.errors import BadInput

UNREAD_MS = 15_000
"""Time after which Linux closes a connection whose client acknowledges or reads nothing of what is sent."""
PROBE_S, PROBES = 15, 3
"""Interval of probes on a connection without traffic, and the number of unanswered ones after which it is closed."""


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
        _detect_dead_peers(listener)
        try:
            listener.bind(address)
            listener.listen()
        except OSError as exc:
            hint = "; choose another port" if exc.errno == errno.EADDRINUSE else ""
            raise BadInput(f"cannot listen on {host}:{port}: {exc.strerror or exc}{hint}") from exc
        yield listener
    finally:
        listener.close()


def _detect_dead_peers(listener: socket.socket) -> None:
    """Have the kernel close connections whose peer is gone; accepted sockets inherit the options on Linux."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_USER_TIMEOUT", UNREAD_MS),
        ("TCP_KEEPIDLE", PROBE_S),
        ("TCP_KEEPINTVL", PROBE_S),
        ("TCP_KEEPCNT", PROBES),
    ):
        if hasattr(socket, name):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def key_in(path: str | None) -> str | None:
    """Read the access key from a file; None without a file.

    Raises:
        BadInput: the file cannot be read, contains no key, or can be read by other users of this machine.
    """
    if path is None:
        return None
    try:
        with Path(path).open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read().strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise BadInput(f"{path} cannot be read as a key: {exc}") from exc
    if not token or not token.isprintable() or not token.isascii():
        raise BadInput(f"{path} holds no key; write one line of ASCII into it")
    if stat.S_ISREG(mode) and mode & 0o077:
        raise BadInput(f"{path} has mode {mode & 0o777:04o}, and others could read the key: chmod 600 {path}")
    return token


def url_of(listener: socket.socket) -> str:
    """URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Refusal(NamedTuple):
    """Why a request is not served: HTTP status and message."""

    status: int
    message: str


class AccessRules:
    """Checks of a request's headers that every web server makes, before it reads a body.

    - With a token, requests for what is secret must carry it. It travels in a header, never in a cookie, so that other
      sites that a browser has open cannot borrow it.
    - Without one, only loopback is listened on. There a web site could have its own name resolved to 127.0.0.1 (DNS
      rebinding) and use what its visitor's machine serves: so a name in `Host` must be one of this machine's.
    - Requests that a browser sends for another site are refused, except following a link.
    """

    def __init__(self, token: str | None, host: str) -> None:
        """`host`: address or name that the server listens on, as given."""
        self._token = token
        self._names = {"localhost", host.lower()} - {""}

    def refusal(self, method: str, headers: Mapping[str, str], *, secret: bool) -> Refusal | None:
        """Why a request is refused; None: it is allowed. `headers` by lower-case names."""
        if self._token is None and not self._known(headers.get("host", "")):
            return Refusal(421, "no such host here: use localhost, or the address")
        if _foreign(method, headers):
            return Refusal(403, "not for other sites")
        given = headers.get("authorization", "").encode()
        if secret and self._token is not None and not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
            return Refusal(401, "wrong or missing token")
        return None

    def _known(self, host: str) -> bool:
        """Whether a `Host` names this machine: an address (a rebound name is none), or a name that it is known by."""
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if name.lower() in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _foreign(method: str, headers: Mapping[str, str]) -> bool:
    """Whether a browser says that another site sent the request, other than by a link."""
    if method in ("GET", "HEAD") and headers.get("sec-fetch-mode") == "navigate":
        return False
    origin = headers.get("origin")
    own = origin is None or origin.partition("://")[2] == headers.get("host")
    return not own or headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
