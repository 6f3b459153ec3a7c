"""What is known of each connection, and of all of them together."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from testbed.channel.frames import PART_BYTES

HANDSHAKE_S, HANDSHAKE_BYTES = 5.0, PART_BYTES + 2**11
"""Longest time of a handshake, and bytes of the largest one."""


@dataclass
class Connection:
    """One peer's TCP connection."""

    socket: int
    """Inode of its socket: descriptors and ports are reused."""
    family: int
    origin: bytes
    """See `origin_of`."""
    first_s: float
    """Time of the first check that saw it."""
    base_bytes: int = 0
    """Bytes received by the first check after its last complete message was taken."""
    active: bool = False
    """Whether a complete message was ever taken from it."""
    key: str = ""
    """Key of its sender, once a message was taken; empty without keys."""
    over: int = 0
    """Number of consecutive checks in which it exceeded its limit."""
    closed: int = 0
    """Number of consecutive checks in which it was closed."""


@dataclass
class ConnectionCounts:
    """The connections that a check has seen so far."""

    now_s: float
    number: int = 0
    """Connections, those that libzmq keeps although they are closed included."""
    held: Counter[str] = field(default_factory=Counter)
    """Connections of each key."""
    handshake_bytes: Counter[bytes] = field(default_factory=Counter)
    """Bytes of handshakes that may be unfinished, from each address."""

    def add(self, known: Connection, received: int) -> None:
        """Add an open connection."""
        self.held[known.key] += 1
        if self.handshaking(known):
            self.handshake_bytes[known.origin] += min(received, HANDSHAKE_BYTES)

    def handshaking(self, known: Connection) -> bool:
        """Whether a connection's handshake may be unfinished."""
        return not known.active and bool(known.origin) and self.now_s - known.first_s < HANDSHAKE_S
