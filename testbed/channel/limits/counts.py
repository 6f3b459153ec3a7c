"""What is known of each connection, and of all of them together."""

from __future__ import annotations

import socket as sockets
from collections import Counter
from dataclasses import dataclass, field

from testbed.channel.frames import PART_BYTES
from testbed.channel.limits.sockets import unread_by

CHECK_S = 0.05
"""Interval between checks. On loopback at 5 GB/s, 250 MB may arrive in between."""
RECHECK_S = 0.01
"""Interval before the second check of a suspect connection, in which complete messages can be taken."""
CONFIRM_CHECKS = 2
"""Number of consecutive checks that a connection must fail before it is shut down."""
SPARE_BYTES = 2**17
"""Allowance for handshakes, framing and data inside libzmq."""
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

    def unfinished(self, connected: sockets.socket, received: int, most_bytes: int) -> str:
        """Which bound its unfinished message exceeds, after `CONFIRM_CHECKS` such checks; empty: none.

        Args:
            connected: its socket.
            received: bytes received on it.
            most_bytes: most that may have been received since its last complete message was taken.
        """
        since, most = received - self.base_bytes, most_bytes + SPARE_BYTES
        self.over = self.over + 1 if since > most and since - unread_by(connected) > most else 0
        return f"an unfinished message of more than {most} bytes" if self.over >= CONFIRM_CHECKS else ""


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
