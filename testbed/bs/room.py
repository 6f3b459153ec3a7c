"""Room of a base station: tokens and waiting windows that all sessions together may take, and one UE's share of it."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar

WINDOWS_BYTES = 2**30
"""Bound on all waiting windows: with a large vocabulary, a hundred of the largest would take tens of gigabytes."""
WAIT_S = 30.0
"""Time for which a UE counts as waiting after it was refused room."""
MOST_REFUSED = 1024
"""UEs that are remembered as waiting; without keys, each identity is one."""


class Load(NamedTuple):
    """Windows waiting for the engine."""

    windows: int
    size_bytes: int
    """Size of their arrays."""


NOTHING = Load(0, 0)


class Holder(Protocol):
    """A session, as far as it takes room."""

    key: tuple[bytes, int]
    heard_s: float
    speed_tps: float | None

    @property
    def idle(self) -> bool:
        """Whether it waits for its UE."""

    @property
    def reserved(self) -> int:
        """Tokens that count towards the bound."""

    asked_bytes: int

    @property
    def waiting(self) -> list[int]:
        """Sizes of its windows that wait."""


H = TypeVar("H", bound=Holder)


class SessionsByUe(Generic[H]):
    """The sessions of each UE, and the number of UEs with sessions that have no guarantee."""

    def __init__(self, owner: Callable[[bytes], bytes]) -> None:
        self.owner = owner
        self._of: dict[bytes, dict[tuple[bytes, int], H]] = {}
        self._without: Counter[bytes] = Counter()

    def add(self, session: H) -> None:
        """Add a session."""
        ue = self.owner(session.key[0])
        self._of.setdefault(ue, {})[session.key] = session
        if session.speed_tps is None:
            self._without[ue] += 1

    def remove(self, session: H) -> None:
        """Remove a session."""
        ue = self.owner(session.key[0])
        del self._of[ue][session.key]
        if not self._of[ue]:
            del self._of[ue]
        if session.speed_tps is None:
            self._without -= Counter((ue,))

    def of(self, ue: bytes) -> Collection[H]:
        """The sessions of a UE."""
        return self._of.get(ue, {}).values()

    def knows(self, peer: bytes) -> bool:
        """Whether a peer has a session."""
        return any(key[0] == peer for key in self._of.get(self.owner(peer), ()))

    @property
    def without_guarantee(self) -> int:
        """Number of UEs with sessions that have no guarantee."""
        return len(self._without)


class RefusedUes:
    """UEs that were refused something within the last `WAIT_S`."""

    def __init__(self) -> None:
        self._since_s: OrderedDict[bytes, float] = OrderedDict()
        """Time of the last refusal; the latest last."""

    def add(self, owner: bytes, now_s: float) -> None:
        """Note a refusal."""
        self._since_s[owner] = now_s
        self._since_s.move_to_end(owner)
        if len(self._since_s) > MOST_REFUSED:
            self._since_s.popitem(last=False)

    def remove(self, owner: bytes) -> None:
        """Note that a UE waits no longer."""
        self._since_s.pop(owner, None)

    def others(self, owner: bytes, now_s: float) -> bool:
        """Whether other UEs wait."""
        while self._since_s and next(iter(self._since_s.values())) < now_s - WAIT_S:
            self._since_s.popitem(last=False)
        return any(other != owner for other in self._since_s)


class Room:
    """Bounds of a session table.

    Args:
        pending: windows that may wait for the engine; None: one per session.
        tokens: tokens of all sessions together, beyond which none is opened; None: no bound.
        windows_bytes: size of the waiting windows beyond which no more are taken.
        ue_share: share of `tokens` that one UE may hold while others are refused, in more than one session, and share
            of the waiting windows that are its own.
        owner: the UE that a peer belongs to.
    """

    def __init__(
        self,
        pending: int | None,
        tokens: int | None,
        windows_bytes: int,
        ue_share: float,
        owner: Callable[[bytes], bytes],
    ) -> None:
        self.pending, self.tokens, self.windows_bytes, self.ue_share = pending, tokens, windows_bytes, ue_share
        self._owner = owner
        self._refused = RefusedUes()

    def crowded(self, load: Load, peer: bytes, sessions: Iterable[Holder], part: float = 1.0) -> str | None:
        """The reason to refuse another window of this peer under this load; None: it can be taken.

        Args:
            part: share of the room in which it must fit.
        """
        pending = math.inf if self.pending is None else int(part * self.pending)
        windows_bytes = int(part * self.windows_bytes)
        if load.windows >= pending:
            return f"{load.windows} windows wait for the engine; at most {pending}"
        if load.size_bytes >= windows_bytes:
            return f"windows of {load.size_bytes} bytes wait for the engine; at most {windows_bytes}"
        most = math.inf if self.pending is None else max(1, int(self.ue_share * pending))
        most_bytes = self.ue_share * windows_bytes
        if load.windows < most and load.size_bytes < most_bytes:
            return None
        owner = self._owner(peer)
        mine = [s for s in sessions if self._owner(s.key[0]) == owner]
        own = [size for s in mine for size in s.waiting]
        size_bytes = sum(own) + sum(s.asked_bytes for s in mine)
        if len(own) < most and size_bytes < most_bytes:
            return None
        return f"{len(own)} windows of this UE, of {size_bytes} bytes, wait for the engine: its share of the queue"

    def refusal(self, peer: bytes, tokens: int, others: Iterable[Holder], now_s: float) -> str | None:
        """The reason to refuse a session of this many tokens beside the others; None: there is room."""
        if self.tokens is None:
            return None
        owner, held = self._owner(peer), self._held(others)
        total, share = sum(held.values()), int(self.ue_share * self.tokens)
        if total + tokens > self.tokens:
            self._refused.add(owner, now_s)
            return f"the open sessions hold {total} tokens; {tokens} more pass the bound of {self.tokens}"
        if held[owner] and held[owner] + tokens > share and self._refused.others(owner, now_s):
            return f"this UE holds {held[owner]} tokens while others wait; {tokens} more pass its share of {share}"
        return None

    def granted(self, peer: bytes) -> None:
        """Note that a UE waits for tokens no longer."""
        self._refused.remove(self._owner(peer))

    def reclaimable(self, peer: bytes, tokens: int, others: Iterable[H]) -> list[H]:
        """The sessions to close for a new one of a UE within its share: those of UEs beyond theirs, first those that
        wait for their UE, the least recently heard first, as many as needed; each UE keeps one. None where they would
        not suffice.
        """
        others = list(others)
        owner, held = self._owner(peer), self._held(others)
        count, found = Counter(self._owner(session.key[0]) for session in others), list[H]()
        if self.tokens is None or (held[owner] and held[owner] + tokens > self.ue_share * self.tokens):
            return found
        for session in sorted(others, key=lambda s: (not s.idle, s.heard_s)):
            other = self._owner(session.key[0])
            needed = sum(held.values()) + tokens > self.tokens
            if needed and other != owner and held[other] > self.ue_share * self.tokens and count[other] > 1:
                held[other] -= session.reserved
                count[other] -= 1
                found.append(session)
        return found if sum(held.values()) + tokens <= self.tokens else []

    def _held(self, sessions: Iterable[Holder]) -> Counter[bytes]:
        """Reserved tokens by UE."""
        held: Counter[bytes] = Counter()
        for session in sessions:
            held[self._owner(session.key[0])] += session.reserved
        return held
