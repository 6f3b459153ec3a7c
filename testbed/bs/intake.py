"""Checks of what UEs send: who they are, what sessions they open, and whether a window can be taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from testbed.bs.room import NOTHING, Load
from testbed.bs.sessions import Key, Session, SessionTable
from testbed.bs.streams import complete, finished
from testbed.errors import ModelError, ProtocolError
from testbed.protocols import PROTOCOLS, TARGET_ONLY
from testbed.protocols.base import RoundProtocol, Window, expect_names, read_ids
from testbed.protocols.codec import AnyArray
from testbed.protocols.messages import (
    VERSION,
    Busy,
    Draft,
    Fault,
    Hello,
    Message,
    Open,
    Opened,
    Resync,
    Welcome,
)  # fmt: skip
from testbed.protocols.quantise import HIDDEN_BITS, unpack_q
from testbed.protocols.ranges import check_ranges
from testbed.protocols.sampling import GREEDY, Sampling
from testbed.protocols.vocabulary import check_same

RETRY_S = 1.0
Admit = Callable[[Key, Open], "Busy | None"]
"""The refusal of a session whose token speed cannot be guaranteed; None: it can."""


@dataclass(frozen=True)
class Offer:
    """The target that a base station serves, and its limits."""

    model: str
    tokenizer: str
    """Fingerprint; empty where the model directory has none."""
    vocab_size: int
    hidden_size: int
    end_ids: tuple[int, ...]
    max_positions: int
    max_window: int = 256
    weights: str = ""
    """Fingerprint of the target."""
    judge: str = ""
    """Kind of the judge and fingerprints of its head."""


class Intake:
    """Checks messages before they may cost engine time; a `ProtocolError` is answered with `Fault`."""

    def __init__(self, offer: Offer, sessions: SessionTable) -> None:
        self.offer, self.sessions = offer, sessions

    def hello(self, message: Hello) -> Message:
        """Welcome a UE, or refuse it for its wire version or vocabulary."""
        if message.version != VERSION:
            return Fault(session=-1, reason=f"wire version {message.version}; this BS speaks {VERSION}")
        try:
            check_same((message.tokenizer, message.vocab_size), (self.offer.tokenizer, self.offer.vocab_size))
        except ModelError as exc:
            return Fault(session=-1, reason=str(exc))
        return self.welcome

    @property
    def welcome(self) -> Welcome:
        """The answer to a UE's greeting."""
        offer = self.offer
        return Welcome(
            version=VERSION, model=offer.model, hidden_size=offer.hidden_size, vocab_size=offer.vocab_size,
            end_ids=offer.end_ids, protocols=(TARGET_ONLY, *PROTOCOLS), max_window=offer.max_window,
            max_positions=offer.max_positions, weights=offer.weights, judge=offer.judge,
        )  # fmt: skip

    def open(
        self,
        peer: bytes,
        message: Open,
        arrays: dict[str, AnyArray],
        admit: Admit = lambda key, message: None,
        forget: Callable[[Session], None] = lambda session: None,
    ) -> tuple[Message, Session | None]:
        """Start a session; returns the reply and the session, None if it was refused. Sessions that were closed to make
        room are passed to `forget`.

        Raises:
            ProtocolError: a value that is out of range, or values that do not go together.
        """
        check_ranges(message)
        key: Key = (peer, message.session)
        _check_choices(message)
        sampling = _sampling(message)
        expect_names(arrays, "ids")
        ids = read_ids(arrays)
        self._check_prompt(ids, message)
        _check_hints(message)
        if message.stream > self.offer.max_window:
            raise ProtocolError(f"stream with passes of {message.stream} tokens; at most {self.offer.max_window}")
        refusal, yielding = self.sessions.refusal(key, len(ids)), list[Session]()
        if refusal is not None and not (yielding := self.sessions.reclaimable(key, len(ids))):
            return Busy(session=message.session, reason=refusal, retry_s=RETRY_S), None
        if (busy := admit(key, message)) is not None:
            return busy, None
        for lost in self.sessions.reclaimable(key, len(ids)) if yielding else ():  # `admit` may have closed some
            self.sessions.lose(lost, "its room was needed for other UEs")
            forget(lost)
        return Opened(session=message.session, length=len(ids)), self._start(key, message, ids, sampling)

    def _start(self, key: Key, message: Open, ids: AnyArray, sampling: Sampling) -> Session:
        """The session that a checked `Open` asks for."""
        protocol = PROTOCOLS.get(message.protocol)
        session = self.sessions.open(
            key, ids, protocol, message.threshold, message.hidden_size, len(ids) + message.max_tokens, sampling,
            message.seed, message.speed_tps, message.hidden_bits,
        )  # fmt: skip
        session.hinted, session.alone = message.window, protocol is None or message.alone
        session.protocol_hints, session.lookahead_hints = message.protocol_hints, message.lookahead_hints
        session.states, session.risk, session.load = message.states, message.risk, message.load
        session.end_ids, session.stream = () if message.endless else self.offer.end_ids, message.stream
        return session

    def draft(
        self, peer: bytes, message: Draft, arrays: dict[str, AnyArray], waiting: Load = NOTHING
    ) -> Message | list[bytes | memoryview] | tuple[Session, Window, bool] | None:
        """Check a window; its arrays last, since distributions take long to unpack.

        Args:
            waiting: load of the engine's queue.

        Returns:
            An answer, a reply that is to be sent again, a window to verify, with True for one to be held until the
            round before it is judged, or None for a late copy.

        Raises:
            ProtocolError: a window that the session cannot take.
        """
        check_ranges(message)
        key: Key = (peer, message.session)
        session = self.sessions.get(key)
        if session is None:
            return self.resync(key)
        if session.protocol is None:
            raise ProtocolError("a target-only session takes no drafts")
        if session.stream:
            return self._joining(session, session.protocol, message, arrays, waiting)
        if message.round <= session.last_round:
            return _again(session, message.round, arrays)
        ahead, now = message.guess is not None, not session.alone and session.current is None
        if ahead and session.protocol.sampled:
            raise ProtocolError(f"protocol {session.protocol.kind} draws its tokens: no window can come ahead")
        now = now and session.continued_by(message.base_len, message.guess)
        if not now and not (ahead and session.awaits(message.round)):
            return None if ahead else Resync(session=message.session)
        busy = self.crowded(key, message.round, waiting, not now)
        if busy is not None and now and session.held:  # the one after it has its place
            busy = self.crowded(key, message.round, self.sessions.drop_ahead(session, waiting))
        if busy is not None:
            return busy
        window = self._read(session, session.protocol, arrays, message.base_len)
        if now:
            self._take(session, message, window)
        return session, window, not now

    def _take(self, session: Session, message: Draft, window: Window) -> None:
        """Begin a round of a session."""
        self._commit_drawn(session, window.token)
        session.take(message.round, window.ids.tobytes(), message.guess is not None)
        if session.held and session.held[0].number <= message.round:
            self.sessions.hold(session)

    def _joining(
        self, session: Session, protocol: RoundProtocol, message: Draft, arrays: dict[str, AnyArray], waiting: Load
    ) -> tuple[Session, Window, bool] | None:
        """A window that may join a stream; None: the stream is complete, or has no room for it and goes on without.

        Raises:
            ProtocolError: the window cannot be taken.
        """
        session.waits = False
        if finished(session) or self.sessions.crowded(waiting, session.key[0], ahead=True) is not None:
            return None
        window = self._read(session, protocol, arrays, message.base_len)
        session.waits = complete(session, message.round, window, message.base_len) and message.waits
        return session, window, True

    def crowded(self, key: Key, round_: int, waiting: Load, ahead: bool = False) -> Busy | None:
        """The refusal of a window, or of its hidden states, while too much waits; None: they can be taken."""
        reason = self.sessions.crowded(waiting, key[0], ahead)
        return None if reason is None else Busy(session=key[1], reason=reason, retry_s=RETRY_S, round=round_)

    def resync(self, key: Key) -> Resync:
        """The answer to a message for an unknown session."""
        return Resync(session=key[1], reason=self.sessions.fate(key))

    def _commit_drawn(self, session: Session, token: int | None) -> None:
        """Commit the token that the UE drew after the last window; after a new `Open` the prefix holds it already."""
        if session.owed:
            if token is None:
                raise ProtocolError("the token that the UE drew after the last window is missing")
            drawn = np.array([token], np.int64)
            self._check_ids(drawn)
            session.append(drawn.astype(np.int32))
            session.owed = False
        elif token is not None and token != session.tokens[session.length - 1]:
            raise ProtocolError(f"token {token} is not the last one of the committed prefix")

    def _check_prompt(self, ids: AnyArray, message: Open) -> None:
        self._check_ids(ids)
        most, to_come = self.offer.max_positions, message.max_tokens
        if len(ids) + max(to_come, 1) > most:
            raise ProtocolError(f"{len(ids)} tokens of prefix and {to_come} to come pass the context of {most}")
        if message.protocol == TARGET_ONLY and message.max_tokens < 1:
            raise ProtocolError("target-only needs max_tokens of at least 1")

    def _read(self, session: Session, protocol: RoundProtocol, arrays: dict[str, AnyArray], base_len: int) -> Window:
        """A window; one that is too long is refused first, since reading takes time in proportion to its size."""
        if "ids" in arrays and arrays["ids"].size > self.offer.max_window:
            raise ProtocolError(f"window of {arrays['ids'].size} tokens; at most {self.offer.max_window}")
        if protocol.sampled:
            arrays = unpack_q(arrays, session.sampling, self.offer.vocab_size, not protocol.replaces)
        window = protocol.window(arrays, session.drafter_hidden, session.hidden_bits)
        self._check_ids(window.ids)
        if base_len + len(window.ids) + 1 > self.offer.max_positions:
            raise ProtocolError(f"the window passes the context of {self.offer.max_positions}")
        return window

    def _check_ids(self, ids: AnyArray) -> None:
        if ((ids < 0) | (ids >= self.offer.vocab_size)).any():
            raise ProtocolError(f"token ids must lie in 0..{self.offer.vocab_size - 1}")


def _again(session: Session, number: int, arrays: dict[str, AnyArray]) -> list[bytes | memoryview] | None:
    """The reply to a round that came before, if it is known.

    Raises:
        ProtocolError: the last round came with other tokens.
    """
    if session.before is not None and number == session.before[0]:
        return session.before[1] or None
    if number < session.last_round:
        return None
    if "ids" not in arrays or arrays["ids"].tobytes() != session.last_ids:
        raise ProtocolError(f"round {number} came before with other tokens")
    return session.last_reply or None


def _check_choices(message: Open) -> None:
    """Refuse an unknown protocol, hints of protocols where there is one alone, or a size of hidden states' elements
    that is not offered.

    Raises:
        ProtocolError: one of them.
    """
    kind = PROTOCOLS.get(message.protocol)
    if kind is None and message.protocol != TARGET_ONLY:
        raise ProtocolError(f"unknown protocol {message.protocol!r}; known: {TARGET_ONLY}, {', '.join(PROTOCOLS)}")
    if message.protocol_hints and not (kind and kind.beside):
        raise ProtocolError(f"protocol {message.protocol} has no other one beside it to hint")
    if message.lookahead_hints and (kind is None or kind.sampled or message.stream):
        raise ProtocolError("lookahead is hinted for windows whose tokens are not drawn, and not for streams")
    if message.hidden_bits not in HIDDEN_BITS:
        raise ProtocolError(f"hidden_bits must be one of {HIDDEN_BITS}, not {message.hidden_bits}")


def _sampling(message: Open) -> Sampling:
    """How the tokens of a session are sampled.

    Raises:
        ProtocolError: its protocol has no such sampling.
    """
    protocol = PROTOCOLS.get(message.protocol)
    if message.coupled and protocol is not None and protocol.sampled:
        raise ProtocolError(f"protocol {protocol.kind} draws its own tokens, without coupled sampling")
    sampling = Sampling(**{name: getattr(message, name) for name in Sampling.__struct_fields__})
    if sampling.block and not (protocol and protocol.blockwise):
        raise ProtocolError(f"protocol {message.protocol} has no block verification")
    if sampling.packed and not (protocol and protocol.sampled):
        raise ProtocolError(f"protocol {message.protocol} uploads no draft distributions")
    return sampling if message.coupled or protocol is None or protocol.sampled else GREEDY


def _check_hints(message: Open) -> None:
    """Refuse an `Open` whose options for hints are inconsistent.

    Raises:
        ProtocolError: hints or a stream without tokens to come, a BS asked to decode alone without either, or under a
            protocol whose UE draws tokens, or a stream whose tokens are drawn or judged.
    """
    if (message.window or message.stream) and (message.protocol == TARGET_ONLY or message.max_tokens < 1):
        raise ProtocolError("hints and streams are for sessions that draft, and need max_tokens of at least 1")
    if message.alone and (not (message.window or message.stream) or PROTOCOLS[message.protocol].replaces):
        raise ProtocolError("the BS goes on alone in streams and in sessions with hints only, and never under split")
    if message.stream:
        kind = PROTOCOLS[message.protocol]
        if kind.sampled or kind.judged or kind.skips or message.window or not message.alone:
            raise ProtocolError("a stream is decoded alone, without hints, where tokens are not drawn or judged")
