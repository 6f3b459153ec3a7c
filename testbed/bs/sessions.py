"""What the BS remembers of a session: soft state, which a UE can always rebuild with `Open`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from testbed.bs.engine import VerifyResult
from testbed.bs.scheduler import Pending
from testbed.channel.csi import Csi
from testbed.protocols.base import RoundProtocol, Window
from testbed.protocols.sampling import GREEDY, Sampling

Key = tuple[bytes, int]
"""A peer's identity and its session number: no peer can name another's session."""


@dataclass(slots=True)
class Round:
    """One round under way."""

    number: int
    window: Window
    csi: Csi | None
    arrived_s: float
    queue_s: float = 0.0
    verify_s: float = 0.0
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


class SessionTable:
    """All sessions, bounded per peer and in all."""

    def __init__(self, per_peer: int = 64, total: int = 1024) -> None:
        self.per_peer, self.total = per_peer, total
        self._sessions: dict[Key, Session] = {}
        self._promised: Counter[float] = Counter()
        self._opened = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: Key) -> Session | None:
        """The session, if it is known."""
        return self._sessions.get(key)

    def full_for(self, key: Key) -> bool:
        """Whether a new session under this key would pass a bound."""
        if key in self._sessions:
            return False
        return len(self) >= self.total or sum(k[0] == key[0] for k in self._sessions) >= self.per_peer

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
        self._sessions[key] = session
        if speed_tps is not None:
            self._promised[speed_tps] += 1
        return session

    def close(self, key: Key) -> Session | None:
        """Forget a session and return it; None if it was not known."""
        session = self._sessions.pop(key, None)
        if session is not None and session.speed_tps is not None:
            self._promised[session.speed_tps] -= 1
        return session

    def promised(self, apart: Key | None = None) -> dict[float, int]:
        """Sessions that are promised something by speed, one of them left out."""
        but = None if apart is None else self._sessions.get(apart)
        left_out = None if but is None else but.speed_tps
        counts = {speed: count - (speed == left_out) for speed, count in self._promised.items()}
        return {speed: count for speed, count in counts.items() if count > 0}
