"""Bounds on new connections: how many each key and each address may open per second, and what enforces them.

An address that opens more is refused by the kernel for a moment: a socket filter (BPF) on the listening socket drops
its requests to connect, which its own kernel repeats after a second. That needs no privilege. Elsewhere than on Linux,
nothing is dropped.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import socket
import struct
import sys
from collections import OrderedDict
from collections.abc import Iterable

ADDRESS_AT_ONCE, ADDRESS_PER_S = 512, 100.0
"""Connections that one address may open at once, and further ones per second."""
KEY_AT_ONCE, KEY_PER_S = 64, 4.0
"""Likewise of one key."""
CLOSED_S = 1.0
"""Time for which an address that opened too many connections is refused, no longer than until TCP tries again."""
SHUNNED_S = 60.0
"""Time for which the sender of a message of too many frames is not served."""
MOST_CLOSED = 100
"""Largest number of addresses that are refused at the same time."""
MOST_ORIGINS = 4096
"""Keys or addresses of which arrivals are counted; the one that connected least recently is forgotten first."""
MAPPED = bytes(10) + b"\xff\xff"
"""Beginning of an IPv4 address that an IPv6 socket shows."""
SYN, SYN_OR_ACK, IPV6 = 0x02, 0x12, 0x60
LOAD_BYTE, LOAD_WORD, AND, EQUAL, JUMP, RETURN = 0x30, 0x20, 0x54, 0x15, 0x05, 0x06
"""Instructions of classic BPF."""
HEADER = 2**32 - 0x100000
"""Offset of the IP header in a packet, which itself begins with the TCP header."""
FLAGS, IPV4_SOURCE, IPV6_SOURCE = 13, HEADER + 12, HEADER + 8
WHOLE = 2**32 - 1
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
LOG = logging.getLogger(__name__)

Instruction = tuple[int, int, int, int]
"""Code, jumps if true and if false, operand."""


class Arrivals:
    """Token buckets, one for each key or address: `at_once` connections, and `per_s` more each second."""

    def __init__(self, at_once: float, per_s: float) -> None:
        self._at_once, self._per_s = at_once, per_s
        self._left: OrderedDict[bytes, tuple[float, float]] = OrderedDict()
        """Connections that an origin may open, and since when."""

    def take(self, origin: bytes, now_s: float) -> bool:
        """Count a connection; returns False if it is one too many."""
        left, since_s = self._left.pop(origin, (self._at_once, now_s))
        left = min(self._at_once, left + (now_s - since_s) * self._per_s)
        taken = left >= 1
        self._left[origin] = (left - taken, now_s)
        if len(self._left) > MOST_ORIGINS:
            self._left.popitem(last=False)
        return taken


class ClosedAddresses:
    """Addresses that are refused now.

    Attributes:
        count: number of refusals so far.
    """

    def __init__(self) -> None:
        self._until_s: dict[bytes, float] = {}
        self._installed: dict[int, frozenset[bytes]] = {}
        """The addresses in the filter of each listening socket, by its inode."""
        self.count = 0

    def add(self, origin: bytes, now_s: float, for_s: float = CLOSED_S) -> None:
        """Refuse an address for a time."""
        self._forget(now_s)
        if origin in self._until_s or len(self._until_s) >= MOST_CLOSED:
            return
        self._until_s[origin] = now_s + for_s
        self.count += 1
        if self.count & (self.count - 1) == 0:  # log the 1st, 2nd, 4th, 8th …, so that peers cannot fill the log
            LOG.warning("too many new connections from one address: refused for a moment (%d times so far)", self.count)

    def _forget(self, now_s: float) -> None:
        self._until_s = {origin: until_s for origin, until_s in self._until_s.items() if until_s > now_s}

    def apply(self, listener: socket.socket, inode: int, now_s: float) -> None:
        """Bring the filter of a listening socket up to date."""
        self._forget(now_s)
        wanted = frozenset(self._until_s)
        if sys.platform == "linux" and wanted != self._installed.get(inode, frozenset()):
            self._installed = {inode: wanted, **{k: v for k, v in self._installed.items() if k != inode and v}}
            with contextlib.suppress(OSError):  # a kernel without such filters: connections are cut after they came
                _install(listener, wanted)


class Shunned:
    """Keys and addresses that are not served for `SHUNNED_S`."""

    def __init__(self) -> None:
        self._until_s: dict[str | bytes, float] = {}
        self.last_s = -1.0
        """Time of the last addition."""

    def add(self, who: str | bytes, now_s: float) -> None:
        """Serve a key or an address no longer; empty: it is not known."""
        self._until_s = {one: until_s for one, until_s in self._until_s.items() if until_s > now_s}
        if who:
            self.last_s, self._until_s[who] = now_s, now_s + SHUNNED_S

    def has(self, who: str | bytes, now_s: float) -> bool:
        """Whether a key or an address is not served now."""
        return self._until_s.get(who, 0.0) > now_s


def origin_of(address: str) -> bytes:
    """What counts as one address: an IPv4 address [4 bytes], or the /64 network of an IPv6 address [8 bytes]; empty:
    no address of a network.
    """
    try:
        if ":" not in address:
            return socket.inet_pton(socket.AF_INET, address)
        packed = socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
    except OSError:
        return b""
    return packed[12:] if packed.startswith(MAPPED) else packed[:8]


def loopback(origin: bytes) -> bool:
    """Whether an origin is this machine."""
    return origin[:1] == b"\x7f" if len(origin) == 4 else not any(origin)


def _install(listener: socket.socket, origins: Iterable[bytes]) -> None:
    """Have the kernel drop requests to connect from these origins, and from no others."""
    program = _program(sorted(origins))
    if len(program) <= 1:
        listener.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
        return
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", len(program), ctypes.addressof(buffer)))


def _program(origins: Iterable[bytes]) -> list[Instruction]:
    """The filter: accepts everything but a SYN without ACK from one of the origins."""
    keep, drop = (RETURN, 0, 0, WHOLE), (RETURN, 0, 0, 0)
    v4, v6 = list[Instruction](), list[Instruction]()
    for origin in origins:
        words = struct.unpack(f">{len(origin) // 4}I", origin)
        if len(words) == 1:
            v4 += [(EQUAL, 0, 1, words[0]), drop]
        else:
            high, low = (LOAD_WORD, 0, 0, IPV6_SOURCE), (LOAD_WORD, 0, 0, IPV6_SOURCE + 4)
            v6 += [high, (EQUAL, 0, 3, words[0]), low, (EQUAL, 0, 1, words[1]), drop]
    if not v4 and not v6:
        return [keep]
    v4 = [(LOAD_WORD, 0, 0, IPV4_SOURCE), *v4, keep]
    return [
        (LOAD_BYTE, 0, 0, FLAGS), (AND, 0, 0, SYN_OR_ACK), (EQUAL, 1, 0, SYN), keep,
        (LOAD_BYTE, 0, 0, HEADER), (AND, 0, 0, 0xF0), (EQUAL, 0, 1, IPV6), (JUMP, 0, 0, len(v4)),
        *v4, *v6, keep,
    ]  # fmt: skip
