"""Access control of a BS: the list of allowed client keys, CURVE authentication, and when keys are required."""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import zmq
import zmq.asyncio
from zmq.auth import Authenticator
from zmq.utils import z85

from testbed.channel.keys import CLIENTS, REVOKED, ServerKeys, entries
from testbed.channel.limits.arrivals import KEY_AT_ONCE, KEY_PER_S, Arrivals
from testbed.errors import BadInput, no_descriptor
from testbed.tasks import Background

ATTEMPTS = 3
"""Attempts to read the list: a file that is moved meanwhile is missing for one of them."""
RELOAD_S = 0.5
"""Longest delay until a change of the key directory takes effect."""
DOMAIN = b"testbed"
BUSY = b"300"
"""Answer of ZAP after which libzmq closes the connection without an error, so that its peer connects again."""
LOG = logging.getLogger(__name__)


class AllowList:
    """Public keys that are allowed now: those in `clients/` except those in `revoked/`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read_s = -RELOAD_S
        self._seen: object = None
        self._files: dict[str, Path] = {}
        """Files of the public keys that are allowed, by key."""
        self._short = False
        """Whether the last attempt to read the list found no free file descriptor."""

    def __contains__(self, key: object) -> bool:
        now_s = time.monotonic()
        if now_s - self._read_s >= RELOAD_S:
            self._read_s = now_s
            self._refresh()
        return key in self._files

    @property
    def readable(self) -> bool:
        """Whether the list could be read, so that a key that it lacks is not allowed."""
        return self._seen is not None

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a key is allowed; called by pyzmq's authenticator."""
        return key.decode("ascii", "replace") in self

    def _refresh(self, attempts: int = ATTEMPTS) -> None:
        """Read the list again if its files changed. One that cannot be read allows no key, except while no file
        descriptor is free: then the keys of the last list whose files are still in `clients/` remain allowed.
        """
        try:
            self._read()
            self._short = False
        except (OSError, BadInput) as exc:
            if attempts > 1 and not no_descriptor(exc):
                self._refresh(attempts - 1)
            else:
                self._unread(exc)

    def _read(self) -> None:
        """Read the list if its files changed.

        Raises:
            OSError, BadInput: it cannot be read, or one of its files was moved meanwhile, as when a key is revoked.
        """
        found_files = [e for place in (CLIENTS, REVOKED) for e in os.scandir(self._directory / place)]
        seen = {e.path: (e.stat().st_ctime_ns, e.stat().st_size, e.inode()) for e in found_files}
        if seen != self._seen:
            found = entries(self._directory)
            gone = {e.public_key for e in found if e.revoked}
            allowed = (e for e in found if e.public_key not in gone)
            self._files = {e.public_key: self._directory / CLIENTS / f"{e.name}.key" for e in allowed}
            self._seen = seen

    def _unread(self, exc: Exception) -> None:
        """Allow no key, or those of the last list while no descriptor is free."""
        self._seen, was_short, self._short = None, self._short, no_descriptor(exc)
        if not self._short:
            LOG.warning("the list of keys cannot be read, so all clients are refused: %s", exc)
            self._files = {}
            return
        self._files = {key: file for key, file in self._files.items() if os.path.isfile(file)}
        if not was_short:
            LOG.warning("the list of keys cannot be read, so no client is added to it: %s", exc)


class Gate:
    """CURVE authentication of a BS's sockets: unknown keys fail the handshake.

    Must be created in a running event loop and before any socket of the context is bound: without it, libzmq accepts
    everyone who knows the BS's public key.

    Args:
        arrived: counts a handshake from an address, with a key; returns False if it is refused.
    """

    def __init__(
        self,
        context: zmq.asyncio.Context,
        keys: ServerKeys,
        background: Background,
        arrived: Callable[[str, str], bool] = lambda *_: True,
    ) -> None:
        self._keys, self.allowed, self._arrived = keys, AllowList(keys.directory), arrived
        self._arrivals = Arrivals(KEY_AT_ONCE, KEY_PER_S)
        self._authenticator = Authenticator(context)
        self._authenticator.configure_curve_callback(DOMAIN.decode(), self.allowed)
        self._authenticator.start()
        self._asked = zmq.asyncio.Socket.shadow(self._authenticator.zap_socket)
        self._task = background.start("authentication", self._answer)

    async def _answer(self) -> None:
        """Answer the ZAP request of each handshake. pyzmq's own task misses some of them, because it polls a socket
        whose events are edge-triggered.
        """
        while True:
            message = await self._asked.recv_multipart()
            if self._beyond(message):
                version, request = message[:2]
                await self._asked.send_multipart([version, request, BUSY, b"too many new connections", b"", b""])
            else:
                await self._authenticator.handle_zap_message(message)

    def _beyond(self, message: Sequence[bytes]) -> bool:
        """Whether the address or the key of a ZAP request has opened too many connections within a short time."""
        if len(message) != 7:
            return False
        _, _, _, address, _, _, credential = message
        key = z85.encode(credential)
        if not self._arrived(address.decode("ascii", "replace"), key.decode()):
            return True
        return self.allowed.callback("", key) and not self._arrivals.take(key, time.monotonic())

    def protect(self, socket: zmq.Socket[bytes]) -> None:
        """Make a socket accept CURVE only."""
        for option, value in (
            (zmq.CURVE_SERVER, 1), (zmq.CURVE_SECRETKEY, self._keys.secret), (zmq.ZAP_DOMAIN, DOMAIN),
        ):  # fmt: skip
            socket.setsockopt(option, value)

    def close(self) -> None:
        """Stop answering; no client can connect any more."""
        self._task.cancel()
        self._asked.close()
        self._authenticator.stop()


def check_address(address: str) -> str:
    """Return a valid ZeroMQ address unchanged.

    Raises:
        BadInput: not tcp://HOST:PORT or ipc://PATH.
    """
    match = re.fullmatch(r"tcp://([^\s:/]+|\[[0-9a-fA-F:]+\]):(\d+|\*)|ipc://(\S+)", address)
    if not match or (match[2] and match[2] != "*" and not 0 < int(match[2]) < 65536):
        raise BadInput(f"bad address {address!r}; use tcp://HOST:PORT, such as tcp://127.0.0.1:5555, or ipc://PATH")
    return address


def is_loopback(address: str) -> bool:
    """Whether an address (see `check_address`) can be reached from this machine only."""
    match = re.fullmatch(r"tcp://(.+):(\d+|\*)", address)
    if match is None:
        return True
    host = match[1].strip("[]")
    try:
        found = {str(info[4][0]).partition("%")[0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        return host == "lo"
    return all(ipaddress.ip_address(ip).is_loopback for ip in found)


def require_keys(addresses: Iterable[str], keys: object, insecure: bool) -> None:
    """Refuse unencrypted links to other machines unless `insecure` is set.

    Raises:
        BadInput: an address that other machines can reach without keys, or both keys and `insecure`.
    """
    if keys is not None and insecure:
        raise BadInput("give --keys or --insecure, not both")
    if keys is not None or insecure:
        return
    for address in addresses:
        if not is_loopback(address):
            raise BadInput(
                f"{address} can be reached from other machines: give --keys DIR (create keys: testbed keys new), or "
                "--insecure to run without encryption and authentication"
            )
