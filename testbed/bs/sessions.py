"""Sessions and their rounds at the BS: soft state, which a UE can always rebuild with `Open`."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from testbed.bs.pending import Round
from testbed.bs.room import WINDOWS_BYTES, Load, Room, SessionsByUe
from testbed.protocols.base import RoundProtocol
from testbed.protocols.messages import Reading
from testbed.protocols.sampling import GREEDY, Sampling

Key = tuple[bytes, int]
"""Identity of the peer and its session number: no peer can name another's session."""
REMEMBERED = 4096
"""Lost sessions that are remembered, to tell their UEs why."""
AHEAD_SHARE = 0.5
"""Share of the room for waiting windows that may be taken before windows ahead are refused."""
AHEAD_TOKENS = 256
"""Tokens to come that a session reserves at most, whatever it asks for: few outputs are as long as their limit."""


@dataclass(slots=True)
class Session:
    """One decoding request of a UE."""

    key: Key
    name: str
    """Session name for the engine: its UE, a slash, and what tells it from all other sessions."""
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
    owed: bool = False
    """Whether the UE drew a token after the committed prefix, which its next window carries."""
    computed: int = 0
    """Leading tokens that the engine has computed."""
    current: Round | None = None
    last_round: int = -1
    last_ids: bytes = b""
    last_reply: list[bytes | memoryview] = field(default_factory=list)
    held: tuple[Round, ...] = ()
    """Round whose window came ahead of the verdict of the round before it; of a stream, windows that may join it."""
    before: tuple[int, list[bytes | memoryview]] | None = None
    """Number and reply of the round before one that came ahead, whose reply may have been lost."""
    speed_tps: float | None = None
    """Guaranteed token speed [tokens/s], the service class; None: no guarantee."""
    begun_s: float | None = None
    """Start of its first round, on the server's clock: the guarantee counts from here."""
    got: int = 0
    """Tokens committed since then."""
    free_s: float | None = None
    lag_s: float = 0.0
    """When it was opened or last answered, on the server's clock, and its lag by the UE's own slowness."""
    accepted: int = 0
    rejected: int = 0
    drafted: int = 0
    """Drafted tokens that were accepted, first rejections (at most one per window), and drafted tokens."""
    hidden_bits: int = 16
    """Bits per element of its hidden states on the uplink."""
    states: Reading = "predicting"
    """Which hidden states of a token it uploads."""
    risk: float = 0.0
    """Risk that the response has spent, other base stations included."""
    hinted: int = 0
    protocol_hints: bool = False
    lookahead_hints: bool = False
    load: bool = False
    """Largest window that the UE takes as a hint, 0: it wants no hints; whether it takes hints of protocols, and of
    lookahead; whether it wants to know what others draft.
    """
    end_ids: tuple[int, ...] = ()
    """Tokens after which a BS that decodes alone stops."""
    alone: bool = False
    """Whether the target goes on without drafts: under `target-only`, in streams, and while speculation is off."""
    stream: int = 0
    """Largest window of a pass in a stream that windows may join; 0: none may."""
    waits: bool = False
    paused: bool = False
    """Whether a stream's target waits for windows once those that came are verified, and whether it does so now."""
    came: tuple[int, int] = (0, 0)
    """Number of the next window of a stream, and the length up to which windows are missing."""
    heard_s: float = 0.0
    """Time of the UE's last message, on the server's clock."""
    asked_bytes: int = 0
    """See `SessionTable.ask`."""

    @property
    def idle(self) -> bool:
        """Whether it waits for its UE and not for the engine."""
        return self.current is None or self.current.asking

    @property
    def reserved(self) -> int:
        """Tokens that count towards the bound on all sessions' tokens."""
        return max(self.length, min(self.wanted, self.length + AHEAD_TOKENS))

    @property
    def waiting_bytes(self) -> int | None:
        """Size of its window, and of what decides about it, if that waits; None: none does, or the target decodes
        alone without a window that joined: these rounds are bounded by the number of sessions.
        """
        if self.idle or self.current is None or (self.alone and not len(self.current.window.ids)):
            return None
        return self.current.size_bytes

    @property
    def waiting(self) -> list[int]:
        """Sizes of its windows that wait, one that came ahead included."""
        sizes = (self.waiting_bytes, *(round_.size_bytes for round_ in self.held))
        return [size for size in sizes if size is not None]

    @property
    def drawn(self) -> bool:
        """Whether its tokens are drawn here; otherwise they are those that come with the results of passes."""
        return self.sampling.independent if self.protocol is None else self.protocol.sampled

    @property
    def prefix(self) -> NDArray[np.int32]:
        """The committed prefix, a copy [length]."""
        return np.array(self.tokens[: self.length])

    def take(self, number: int, ids: bytes, ahead: bool) -> None:
        """Begin a round: its number, its drafted tokens, and whether they came ahead."""
        self.before = (self.last_round, self.last_reply) if ahead else None
        self.last_round, self.last_ids, self.last_reply = number, ids, []

    def continued_by(self, base_len: int, guess: int | None) -> bool:
        """Whether a window continues the committed prefix; of one that came ahead, the last token counts, too."""
        if base_len != self.length + self.owed:
            return False
        return guess is None or guess == self.tokens[self.length - 1]

    def awaits(self, number: int) -> bool:
        """Whether a window that came ahead is to be held: the round before it is in progress or has yet to come."""
        if self.alone or (self.held and number <= self.held[-1].number):
            return False
        return self.current is not None or number > self.last_round + 1

    def append(self, ids: NDArray[np.int32]) -> None:
        """Commit tokens."""
        end = self.length + len(ids)
        if end > len(self.tokens):
            self.tokens = np.concatenate([self.tokens, np.zeros(max(256, end), np.int32)])
        self.tokens[self.length : end] = ids
        self.got += len(ids)
        self.length = end


class SessionTable:
    """All sessions, bounded per UE and in total.

    Args:
        per_peer: sessions per UE.
        total: sessions in total.
        pending, tokens, windows_bytes, ue_share: see `Room`.
        idle_s: silence of the UE after which a session expires; None: never.
        owner: the UE that a peer belongs to; by default each is its own.
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
        ue_share: float = 1.0,
        owner: Callable[[bytes], bytes] = lambda peer: peer,
    ) -> None:
        self.per_peer, self.total, self.idle_s = per_peer, total, idle_s
        self.room = Room(pending, tokens, windows_bytes, ue_share, owner)
        self.owner = owner
        self.ues: SessionsByUe[Session] = SessionsByUe(owner)
        self._lost: OrderedDict[Key, str] = OrderedDict()
        """Sessions that were closed without their UEs, and why."""
        self._sessions: dict[Key, Session] = {}
        self._promised: Counter[float] = Counter()
        self._opened, self._now_s = 0, 0.0  # time of the last message, on the server's clock
        self.held = Load(0, 0)
        """Windows that came ahead, and what waits for hidden states."""

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def get(self, key: Key) -> Session | None:
        """The session, if it is known."""
        return self._sessions.get(key)

    def crowded(self, load: Load, peer: bytes, ahead: bool = False) -> str | None:
        """The reason to refuse another window of this peer under this load; None: it can be taken."""
        return self.room.crowded(load, peer, self, AHEAD_SHARE if ahead else 1.0)

    def hold(self, session: Session, *rounds: Round) -> None:
        """Keep rounds whose windows came ahead, in place of the session's earlier ones."""
        for found, sign in ((session.held, -1), (rounds, 1)):
            for one in found:
                self.held = Load(self.held.windows + sign, self.held.size_bytes + sign * one.size_bytes)
        session.held = rounds

    def drop_ahead(self, session: Session, waiting: Load) -> Load:
        """Drop a session's windows that came ahead; returns what waits without them."""
        windows, size_bytes = len(session.held), sum(one.size_bytes for one in session.held)
        self.hold(session)
        return Load(waiting.windows - windows, waiting.size_bytes - size_bytes)

    def ask(self, session: Session, size_bytes: int = 0) -> None:
        """Count the size of what waits for hidden states from a session's UE, and of these; 0: nothing waits."""
        self.held = Load(self.held.windows, self.held.size_bytes + size_bytes - session.asked_bytes)
        session.asked_bytes = size_bytes

    def refusal(self, key: Key, tokens: int) -> str | None:
        """The reason to refuse a new session of this many tokens under this key; None: it can be opened."""
        return self._full(key) or self.room.refusal(key[0], tokens, self._apart(key), self._now_s)

    def _full(self, key: Key) -> str | None:
        if key in self._sessions:
            return None
        if (owned := len(self.ues.of(self.owner(key[0])))) >= self.per_peer:
            return f"this UE has {owned} sessions; at most {self.per_peer}"
        return f"{len(self)} sessions are open; at most {self.total}" if len(self) >= self.total else None

    def open(
        self, key: Key, prefix: NDArray[np.int32], protocol: RoundProtocol | None, threshold: float,
        drafter_hidden: int, wanted: int, sampling: Sampling = GREEDY, seed: int = 0, speed_tps: float | None = None,
        hidden_bits: int = 16,
    ) -> Session:  # fmt: skip
        """Start a session, in place of an earlier one of the same key."""
        self._opened += 1
        tokens = np.concatenate([prefix, np.zeros(256, np.int32)])
        name = f"{self.owner(key[0]).hex()}/{key[1]}/{self._opened}"
        session = Session(key, name, tokens, len(prefix), protocol, threshold, drafter_hidden, wanted, sampling, seed)
        session.speed_tps, session.hidden_bits = speed_tps, hidden_bits
        self.close(key)
        self._lost.pop(key, None)
        self.room.granted(key[0])
        self._sessions[key] = session
        self.ues.add(session)
        if speed_tps is not None:
            self._promised[speed_tps] += 1
        return session

    def close(self, key: Key) -> Session | None:
        """Remove a session and return it; None: it was not known."""
        if (session := self._sessions.pop(key, None)) is None:
            return None
        self.hold(session)
        self.ask(session)
        self.ues.remove(session)
        if session.speed_tps is not None:
            self._promised -= Counter((session.speed_tps,))
        return session

    def hear(self, key: Key, now_s: float) -> None:
        """Record a message for a session."""
        self._now_s = now_s
        if (session := self._sessions.get(key)) is not None:
            session.heard_s = now_s

    def leave(self, peer: bytes) -> list[Session]:
        """Remove the sessions of a peer, and return them."""
        return [session for key in list(self._sessions) if key[0] == peer and (session := self.close(key))]

    def expire(self, now_s: float, serves: Callable[[bytes], bool] = lambda peer: True) -> list[Session]:
        """Remove the sessions that were idle for too long, or whose peers are not served any more; returns them."""
        idle_s = math.inf if self.idle_s is None else self.idle_s
        found = [s for s in self if (s.idle and s.heard_s < now_s - idle_s) or not serves(s.key[0])]
        for session in found:
            idle = f"idle for more than {idle_s:g} s"
            self.lose(session, idle if serves(session.key[0]) else "its key was revoked")
        return found

    def reclaimable(self, key: Key, tokens: int) -> list[Session]:
        """Sessions of UEs beyond their share to close for a new one under this key; empty: that does not suffice."""
        return [] if self._full(key) else self.room.reclaimable(key[0], tokens, self._apart(key))

    def _apart(self, key: Key) -> list[Session]:
        return [session for session in self if session.key != key]

    def lose(self, session: Session, why: str) -> None:
        """Close a session without its UE, which will be told why."""
        self.close(session.key)
        self._lost[session.key] = why
        if len(self._lost) > REMEMBERED:
            self._lost.popitem(last=False)

    def fate(self, key: Key) -> str:
        """The reason why a session is unknown; empty: it is not remembered."""
        return self._lost.get(key, "")

    def promised(self) -> dict[float, int]:
        """Number of sessions by guaranteed speed."""
        return dict(self._promised)
