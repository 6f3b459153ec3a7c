"""Packed notes of rounds and passes: fixed-length records in preallocated memory.

Notes are written thousands of times per second and rarely read: packing takes a fraction of the time of creating
objects, and a viewer is sent bytes.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from testbed.bs.observer import PassNote, RecentActivity, RoundNote

ROUND = struct.Struct("<4qQ8d7q2d")
"""`RoundNote` without its tokens and marks, and the round's time at the BS in seconds."""
PASS = struct.Struct("<q3d5q")
"""`PassNote`."""
NUMBERS = len(RoundNote._fields) - 2
"""Fields of a `RoundNote` before its tokens and marks."""
_ROUND_TYPE = np.dtype(
    {"names": [*RoundNote._fields[:NUMBERS], "bs_s"], "formats": [f"<{kind}" for kind in "qqqqQddddddddqqqqqqqdd"]}
)


class Ring:
    """The last records of one layout, numbered from 1.

    Args:
        size: number of records kept.
    """

    def __init__(self, layout: struct.Struct, size: int) -> None:
        self.count = 0
        """Records so far."""
        self._pack, self._length, self._size = layout.pack_into, layout.size, size
        self._bytes = bytearray(layout.size * size)

    def add(self, *values: float) -> None:
        """Add a record: its number, and these values."""
        self._pack(self._bytes, self.count % self._size * self._length, self.count + 1, *values)
        self.count += 1

    def since(self, number: int) -> bytes:
        """Records after this number, as far as they are kept."""
        fresh = min(self.count - number, self._size)
        if fresh <= 0:
            return b""
        start, end = (place % self._size * self._length for place in (self.count - fresh, self.count))
        return bytes(self._bytes[start:end]) if start < end else bytes(self._bytes[start:]) + self._bytes[:end]


def columns(records: bytes) -> NDArray[np.void]:
    """Records of rounds as a structured array [rounds] of `RoundNote`'s numeric fields and `bs_s`."""
    return np.frombuffer(records, _ROUND_TYPE)


def rounds(look: RecentActivity) -> list[RoundNote]:
    """The rounds of an update."""
    nothing: tuple[list[int], str] = ([], "")
    words = look.words or [nothing] * (len(look.rounds) // ROUND.size)
    numbers = ROUND.iter_unpack(look.rounds)
    return [RoundNote._make((*record[:NUMBERS], *said)) for record, said in zip(numbers, words, strict=True)]


def passes(look: RecentActivity) -> list[PassNote]:
    """The passes of an update."""
    return [PassNote._make(record) for record in PASS.iter_unpack(look.passes)]
