"""What base stations have told a UE: with it, another process gives the UE the state that it has in this one.

A UE is a logical process: what it does follows from its seed and from what it is told, and when. The process of another
group of base stations therefore needs no coroutine in the middle of a response to take a UE over, but what it was told
since it was there last: its own copy of the UE goes through the same again, faster than in the simulation, since radio
and base stations have no part in it.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

CHUNK = 128
"""Entries that are packed together."""


class Told(NamedTuple):
    """A call of a method of a UE."""

    runs: int
    """How often the UE's logical process had run."""
    at_s: float
    name: str
    arguments: tuple[Any, ...]


class Record:
    """All that a UE has been told, in packed chunks."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._open: list[Told] = []
        self._known: dict[int, int] = {}
        """Number of chunks that each group has had."""

    def add(self, told: Told) -> None:
        """Add an entry."""
        self._open.append(told)
        if len(self._open) == CHUNK:
            self._pack()

    def for_group(self, own: int, group: int) -> tuple[list[bytes], dict[int, int]]:
        """Chunks that a group has not had yet, and what each of them will know: that of this number, and this one."""
        self._pack()
        missing = self._chunks[self._known.get(group, 0) :]
        self._known |= {own: len(self._chunks), group: len(self._chunks)}
        return missing, dict(self._known)

    def take(self, chunks: Sequence[bytes], known: dict[int, int]) -> list[Told]:
        """Add chunks of another group; returns their entries."""
        self._chunks += chunks
        self._known = dict(known)
        return [Told(*entry) for chunk in chunks for entry in pickle.loads(zlib.decompress(chunk))]  # noqa: S301

    def _pack(self) -> None:
        if self._open:
            self._chunks.append(zlib.compress(pickle.dumps([tuple(told) for told in self._open]), 1))
            self._open = []
