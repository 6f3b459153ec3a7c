"""What the BS remembers of a session: soft state, which a UE can always rebuild with `Open`."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.bs.engines.base import VerifyResult
from testbed.bs.pending import Pending
from testbed.channel.csi import Csi
from testbed.protocols.base import RoundProtocol, Window
from testbed.protocols.sampling import GREEDY, Sampling

Key = tuple[bytes, int]
"""A peer's identity and its session number: no peer can name another's session."""
WINDOWS_BYTES = 2**30
"""Of windows that wait for the engine: of large vocabularies some hundred of the largest would be tens of gigabytes."""
REMEMBERED = 4096
"""Expired sessions whose UEs will be told why."""


@dataclass(slots=True)
class Round:
    """One round under way."""

    number: int
    window: Window
    csi: Csi | None
    arrived_s: float
    queue_s: float = 0.0
    verify_s: float = 0.0
    judge_s: float = 0.0
    batch_size: int = 0
    result: VerifyResult | None = None
    asked_s: float | None = None
    """When `NeedHidden` was sent; None while nothing is waited for."""
    waited_s: float = 0.0
    """Time between `NeedHidden` and `Hidden`."""
    draft_s: float = 0.0
    """As the UE measured them: its part of the round, and the link's part of the last one."""
    network_s: float = 0.0
    pending: Pending | None = None
    """What the scheduler was shown."""
    pieces_s: float = 0.0
    """Time in passes that computed pieces of its prefix."""
    new: int = 0
    """Tokens that passes computed for it, pieces of its prefix included."""
    cached: int = 0
    """Tokens of its prefix that the last of them found in the prefix cache."""

    def candidates(self) -> list[int]:
        """Positions whose drafted token is not the target's argmax."""
        assert self.result is not None
        return [int(i) for i in np.flatnonzero(self.window.ids != self.result.argmax[:-1])]


@dataclass(slots=True)
class Session:
    """One decoding request of a UE."""

    key: Key
    name: str
    """Key for the engine."""
    tokens: NDArray[np.int32]
    """Buffer; the first `length` are the committed prefix."""
    length: int
    protocol: RoundProtocol | None
    """None: the target decodes alone."""
    threshold: float
    drafter_hidden: int
    """Hidden size of the UE's drafter."""
    wanted: int = 0
    """Target-only: length at which to stop."""
    sampling: Sampling = GREEDY
    seed: int = 0
    """Of its random numbers."""
    owed: bool = False
    """Whether the UE drew a token after the committed prefix, which its next window brings."""
    computed: int = 0
    """Leading tokens that the engine has seen."""
    current: Round | None = None
    last_round: int = -1
    last_ids: bytes = b""
    last_reply: list[bytes | memoryview] = field(default_factory=list)
    speed_tps: float | None = None
    """Tokens a second promised to it, its service class; None: nothing is promised."""
    begun_s: float | None = None
    """When its first round began, on the server's clock: what a promise is counted from."""
    got: int = 0
    """Tokens committed since then."""
    accepted: int = 0
    """Drafted tokens that stayed."""
    rejected: int = 0
    """Drafted tokens that were the first of their window not to stay."""
    hidden_bits: int = 16
    """Bits of an element at which its hidden states come up."""
    hinted: int = 0
    """The most that its UE drafts in a round, where that one wants hints; 0: it wants none."""
    alone: bool = False
    """Whether the target decodes on without waiting for drafts: always in `target-only`, else while speculation is
    off."""

    heard_s: float = 0.0
    """When its UE was last heard of, on the server's clock."""

    @property
    def idle(self) -> bool:
        """Whether it waits for its UE rather than for the engine."""
        return self.current is None or self.current.asked_s is not None

    @property
    def drawn(self) -> bool:
        """Whether its tokens are drawn rather than the target's argmax."""
        return not self.sampling.greedy if self.protocol is None else self.protocol.sampled

    @property
    def prefix(self) -> NDArray[np.int32]:
        """The committed prefix, a copy [length]."""
        prefix: NDArray[np.int32] = self.tokens[: self.length].copy()
        return prefix

    def append(self, ids: NDArray[np.int32]) -> None:
        """Commit tokens."""
        end = self.length + len(ids)
        if end > len(self.tokens):
            self.tokens = np.concatenate([self.tokens, np.zeros(max(256, end), np.int32)])
        self.tokens[self.length : end] = ids
        self.got += len(ids)
        self.length = end


class Load(NamedTuple):
    """What waits for the engine."""

    windows: int
    size_bytes: int
    """Of their arrays."""


NOTHING = Load(0, 0)


class SessionTable:
    """All sessions, bounded per UE and in all.

    Args:
        per_peer: sessions of one UE.
        total: sessions of all.
        pending: windows that may wait for the engine; None: one of every session.
        tokens: of all sessions together, beyond which no more are opened; None: no bound.
        idle_s: after which a session is forgotten whose UE says nothing; None: never.
        windows_bytes: of windows that wait for the engine, beyond which no more are taken.
        owner: whose a peer is; by default each is its own.
    """

    def __init__(
        self,
        per_peer: int = 64,
        total: int = 1024,
        *,
        pending: int | None = None,
        tokens: int | None = None,
        idle_s: float | None = None,
        windows_bytes: int = WINDOWS_BYTES,
        owner: Callable[[bytes], bytes] = lambda peer: peer,
    ) -> None:
        self.per_peer, self.total = per_peer, total
        self.pending, self.tokens, self.idle_s = pending, tokens, idle_s
        self.windows_bytes = windows_bytes
        self._owner = owner
        self._owned: Counter[bytes] = Counter()
        self._expired: OrderedDict[Key, None] = OrderedDict()
        self._sessions: dict[Key, Session] = {}
        self._promised: Counter[float] = Counter()
        self._opened = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def get(self, key: Key) -> Session | None:
        """The session, if it is known."""
        return self._sessions.get(key)

    def crowded(self, load: Load) -> str | None:
        """Why a window more would pass a bound, where so much waits for the engine."""
        if self.pending is not None and load.windows >= self.pending:
            return f"{load.windows} windows wait for the engine; at most {self.pending}"
        if load.size_bytes >= self.windows_bytes:
            return f"windows of {load.size_bytes} bytes wait for the engine; at most {self.windows_bytes}"
        return None

    def refusal(self, key: Key, tokens: int) -> str | None:
        """Why a new session of so many tokens under this key would pass a bound, if it would."""
        before = self._sessions.get(key)
        if before is None:
            if (owned := self._owned[self._owner(key[0])]) >= self.per_peer:
                return f"this UE has {owned} sessions; at most {self.per_peer}"
            if len(self) >= self.total:
                return f"{len(self)} sessions are open; at most {self.total}"
        if self.tokens is not None:
            held = sum(max(s.length, s.wanted) for s in self._sessions.values() if s is not before)
            if held + tokens > self.tokens:
                return f"the open sessions hold {held} tokens; {tokens} more pass the bound of {self.tokens}"
        return None

    def open(
        self,
        key: Key,
        prefix: NDArray[np.int32],
        protocol: RoundProtocol | None,
        threshold: float,
        drafter_hidden: int,
        wanted: int,
        sampling: Sampling = GREEDY,
        seed: int = 0,
        speed_tps: float | None = None,
        hidden_bits: int = 16,
    ) -> Session:
        """Start a session, in place of an earlier one of the same key."""
        self._opened += 1
        tokens = np.concatenate([prefix, np.zeros(256, np.int32)])
        name = f"{key[0].hex()}/{key[1]}/{self._opened}"
        session = Session(key, name, tokens, len(prefix), protocol, threshold, drafter_hidden, wanted, sampling, seed)
        session.speed_tps, session.hidden_bits = speed_tps, hidden_bits
        self.close(key)
        self._expired.pop(key, None)
        self._owned[self._owner(key[0])] += 1
        self._sessions[key] = session
        if speed_tps is not None:
            self._promised[speed_tps] += 1
        return session

    def close(self, key: Key) -> Session | None:
        """Forget a session and return it; None if it was not known."""
        session = self._sessions.pop(key, None)
        if session is None:
            return None
        owner = self._owner(key[0])
        self._owned[owner] -= 1
        if not self._owned[owner]:
            del self._owned[owner]
        if session.speed_tps is not None:
            self._promised[session.speed_tps] -= 1
            if not self._promised[session.speed_tps]:
                del self._promised[session.speed_tps]
        return session

    def hear(self, key: Key, now_s: float) -> None:
        """Something came for a session."""
        if (session := self._sessions.get(key)) is not None:
            session.heard_s = now_s

    def leave(self, peer: bytes) -> list[Session]:
        """Forget the sessions of a peer, and return them."""
        if not self._owned[self._owner(peer)]:
            return []
        found = [session for key, session in self._sessions.items() if key[0] == peer]
        for session in found:
            self.close(session.key)
        return found

    def expire(self, now_s: float) -> list[Session]:
        """Forget the sessions that have been idle for too long, and return them."""
        if self.idle_s is None:
            return []
        late_s = now_s - self.idle_s
        found = [session for session in self._sessions.values() if session.idle and session.heard_s < late_s]
        for session in found:
            self.close(session.key)
            self._expired[session.key] = None
        while len(self._expired) > REMEMBERED:
            self._expired.popitem(last=False)
        return found

    def fate(self, key: Key) -> str:
        """What became of a session that is not known; empty where nobody knows."""
        return f"idle for more than {self.idle_s:g} s" if key in self._expired else ""

    def promised(self, apart: Key | None = None) -> dict[float, int]:
        """Sessions that are promised something by speed, one of them left out."""
        but = None if apart is None else self._sessions.get(apart)
        left_out = None if but is None else but.speed_tps
        counts = {speed: count - (speed == left_out) for speed, count in self._promised.items()}
        return {speed: count for speed, count in counts.items() if count > 0}
