"""Who may talk: the list of keys that a running BS goes by, and when a link may do without keys."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import re
import socket
import time
from collections.abc import Iterable
from pathlib import Path

import zmq
import zmq.asyncio
from zmq.auth import Authenticator

from testbed.channel.keys import CLIENTS, REVOKED, ServerKeys, entries
from testbed.errors import BadInput

RELOAD_S = 0.5
"""Longest time for which a change of the list goes unnoticed."""
DOMAIN = b"testbed"
LOG = logging.getLogger(__name__)


class AllowList:
    """Public keys that are let in at this moment: those of `clients/`, without those of `revoked/`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read_s = -RELOAD_S
        self._seen: object = None
        self._keys: frozenset[str] = frozenset()

    def __contains__(self, key: object) -> bool:
        now_s = time.monotonic()
        if now_s - self._read_s >= RELOAD_S:
            self._read_s = now_s
            self._refresh()
        return key in self._keys

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a key is on the list, as pyzmq's authenticator asks."""
        return key.decode("ascii", "replace") in self

    def _refresh(self) -> None:
        """Read the list where its files changed; a list that cannot be read lets nobody in."""
        try:
            found_files = [e for place in (CLIENTS, REVOKED) for e in os.scandir(self._directory / place)]
            seen = {e.path: (e.stat().st_mtime_ns, e.stat().st_size, e.inode()) for e in found_files}
            if seen != self._seen:
                found = entries(self._directory)
                gone = {e.public_key for e in found if e.revoked}
                self._keys, self._seen = frozenset({e.public_key for e in found} - gone), seen
        except OSError as exc:
            LOG.warning("the list of keys cannot be read, nobody is let in: %s", exc)
            self._keys, self._seen = frozenset(), None


class Gate:
    """A BS's sockets behind CURVE: strangers do not get through the handshake, and who is revoked is cut off.

    To be made in a running event loop, before any socket of the context is bound: without it libzmq lets in everybody
    who knows the BS's public key.
    """

    def __init__(self, context: zmq.asyncio.Context, keys: ServerKeys) -> None:
        self._keys, self.allowed = keys, AllowList(keys.directory)
        self._authenticator = Authenticator(context)
        self._authenticator.configure_curve_callback(DOMAIN.decode(), self.allowed)
        self._authenticator.start()
        self._asked = zmq.asyncio.Socket.shadow(self._authenticator.zap_socket)
        self._task = asyncio.get_running_loop().create_task(self._answer())

    async def _answer(self) -> None:
        """Answer libzmq's question of every handshake. pyzmq's own task for it misses some: it polls a socket whose
        signals come once.
        """
        while True:
            await self._authenticator.handle_zap_message(await self._asked.recv_multipart())

    def protect(self, socket: zmq.asyncio.Socket) -> None:
        """Have a socket speak CURVE and nothing else."""
        for option, value in (
            (zmq.CURVE_SERVER, 1), (zmq.CURVE_SECRETKEY, self._keys.secret), (zmq.ZAP_DOMAIN, DOMAIN),
        ):  # fmt: skip
            socket.setsockopt(option, value)

    def close(self) -> None:
        """Let nobody in any more."""
        self._task.cancel()
        self._asked.close()
        self._authenticator.stop()


def is_loopback(address: str) -> bool:
    """Whether an address (`link.check_address`) can be reached from this machine alone."""
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
    """Refuse a link in clear beyond this machine, unless that is wanted.

    Raises:
        BadInput: an address that others reach, and no keys.
    """
    if keys is not None and insecure:
        raise BadInput("give --keys or --insecure, not both")
    if keys is not None or insecure:
        return
    for address in addresses:
        if not is_loopback(address):
            raise BadInput(
                f"{address} is beyond this machine: give --keys DIR (testbed keys new makes them), or --insecure to "
                "let anybody read and send"
            )
