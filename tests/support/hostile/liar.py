"""Hostile UE: valid sequences of messages with extreme values, and the same with fields, order or bytes mutated.

It follows the protocol by its schema and the registry of protocols, so that it reaches the states in which invalid
messages matter: it drafts on, answers queries for hidden states, opens lost sessions again with their prefix, and takes
hints.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from testbed.errors import ProtocolError
from testbed.protocols import PROTOCOLS, TARGET_ONLY
from testbed.protocols.codec import Packet, asked_positions
from testbed.protocols.messages import (
    VERSION,
    Busy,
    Close,
    Draft,
    Fault,
    Hello,
    Message,
    NeedHidden,
    Open,
    Opened,
    Ping,
    Resync,
    Uplink,
    Verdict,
)
from testbed.protocols.quantise import HIDDEN_BITS
from testbed.protocols.ranges import RANGES
from testbed.protocols.sampling import Q_BITS
from tests.support.hostile import frames
from tests.support.hostile.frames import Frames, header_of, with_arrays
from tests.support.hostile.talk import Talk
from tests.support.hostile.values import Values

KINDS: tuple[type[Message], ...] = Uplink.__args__  # type: ignore[attr-defined]
COHERENT = {Open: ("hidden_size", "max_tokens", "window", "round", "q_top", "q_bits"), Draft: ("round", "guess")}
"""Bounded fields whose values depend on others; in valid messages they are not replaced by extremes."""
EXTREME = 0.3
"""Probability that a field of a valid message has a value from the edges of its range."""
TOPS = (0, 0, 1, 4, 16)
"""Ids of sparse draft distributions."""
TALKS = 6
"""Sessions at once."""
MOST_BUSY = 5
"""Refusals after which it begins anew."""


class Known(NamedTuple):
    """Knowledge of a base station that invalid messages are built from."""

    vocab_size: int = 512
    positions: int = 160
    hidden_size: int = 64
    drafter: str = "synthetic"
    """Fingerprint of a drafter that its judge takes."""
    sessions: Sequence[int] = ()
    """Numbers that other UEs use."""


class Liar:
    """Generates messages, reproducible by seed and by what it hears.

    Attributes:
        ways: how often each way to make a message was taken.
    """

    def __init__(self, seed: int, known: Known | None = None) -> None:
        self._rng, self._known = random.Random(f"liar/{seed}"), known or Known()
        self._values = Values(self._rng)
        self._talks: dict[int, Talk] = {}
        self._said: deque[Frames] = deque(maxlen=50)
        self._numbers = self._rng.randrange(10**6)
        self._busy = 0
        self.ways: Counter[str] = Counter()
        self._weights: dict[Callable[[], Frames], int] = {
            self._valid: 50, self._wild: 12, self._disordered: 12, self._drawn: 8, self._stray: 3, self._again: 4,
            self._patched: 5, self._lying: 4, self._noise: 2,
        }  # fmt: skip

    def frames(self) -> Frames:
        """The next message."""
        way = self._rng.choices(list(self._weights), list(self._weights.values()))[0]
        self.ways[way.__name__.removeprefix("_")] += 1
        found = way()
        self._said.append(found)
        return found

    def hear(self, packet: Packet[Any]) -> None:
        """Learn from an answer."""
        message = packet.message
        talk = self._talks.get(getattr(message, "session", -1))
        if talk is None:
            return
        if isinstance(message, Opened):
            talk.opened(message)
        elif isinstance(message, Verdict):
            talk.judged(message, packet.arrays, self._rng)
        elif isinstance(message, NeedHidden) and talk.drafted is not None and message.round == talk.round:
            with contextlib.suppress(ProtocolError):  # it has drafted another window since
                talk.asked = asked_positions(packet, len(talk.drafted.ids))
        elif isinstance(message, Resync):
            talk.state = "lost"
        elif isinstance(message, Busy) and message.round is not None:
            talk.state = "ready"
        elif isinstance(message, Fault):
            talk.state = "refused"
        elif isinstance(message, Busy):
            self._busy += 1
            del self._talks[talk.number]

    # ------------------------------------------------------------ valid messages

    def _valid(self) -> Frames:
        message, arrays = self._next()
        return with_arrays(self._extreme(message), arrays)

    def _next(self) -> tuple[Message, Mapping[str, Any]]:
        """The valid next message of one of its sessions."""
        rng = self._rng
        if rng.random() < 0.03:
            return Ping(token=self._values.draw(Ping, "token", False)), {}
        if self._busy > MOST_BUSY:
            self._busy = 0
            self._talks.clear()
            return self._hello(), {}
        waiting = [talk for talk in self._talks.values() if talk.can_look_ahead]
        if waiting and rng.random() < 0.2:
            return rng.choice(waiting).draft_ahead(rng)
        due = [talk for talk in self._talks.values() if talk.due]
        if len(self._talks) < TALKS and (rng.random() < 0.1 or not due):
            return self._opening()
        talk = rng.choice(due or list(self._talks.values()))
        if talk.asked is not None:
            return talk.reveal(rng)
        if talk.state == "lost":
            return talk.open(), {"ids": talk.ids}
        if talk.state == "ready" and talk.room > 0 and rng.random() < 0.97:
            return talk.draft(rng)
        if talk.state not in ("ready", "refused") and rng.random() < 0.7:  # all wait for answers
            return Ping(token=1), {}
        del self._talks[talk.number]
        return Close(session=talk.number), {}

    def _hello(self, again: bool = False) -> Hello:
        """A greeting, which ends all sessions of before, unless it only asks what is taken now."""
        return Hello(version=VERSION, tokenizer="", vocab_size=self._known.vocab_size, again=again)

    def _opening(self) -> tuple[Message, Mapping[str, Any]]:
        rng, known = self._rng, self._known
        self._numbers += 1
        kind = rng.choice([*PROTOCOLS, TARGET_ONLY])
        most = known.positions - 2
        length = rng.choice([1, 2, rng.randint(1, 20), rng.randint(1, 20), rng.randint(1, most), most])
        left = known.positions - length
        more: dict[str, Any] = {"max_tokens": rng.choice([1, rng.randint(1, left), left])}
        if kind != TARGET_ONLY:
            hinted = rng.random() < 0.4
            more = {"window": rng.choice([1, 5, 64, 2**31 - 1]), **more} if hinted else {}
            alone = hinted and rng.random() < 0.2 and not PROTOCOLS[kind].replaces
            more |= {"alone": True, "round": rng.choice([0, 1, 2**31])} if alone else {}
        sampled = kind != TARGET_ONLY and PROTOCOLS[kind].sampled
        opening = Open(
            session=self._numbers, protocol=kind, threshold=rng.choice([0.0, 0.5, 0.999, 1.0]),
            hidden_size=known.hidden_size, drafter=known.drafter, speed_tps=rng.choice([None, 1.0, 8.0]),
            hidden_bits=rng.choice([16, 16, *HIDDEN_BITS]), temperature=rng.choice([0.0, 0.0, 0.8]),
            seed=rng.choice([0, 7, 2**64 - 1]), coupled=not sampled and rng.random() < 0.4,
            protocol_hints=kind != TARGET_ONLY and bool(PROTOCOLS[kind].beside) and rng.random() < 0.4,
            lookahead_hints=kind != TARGET_ONLY and not sampled and rng.random() < 0.4,
            load=rng.random() < 0.4,
            endless=rng.random() < 0.3, block=sampled and PROTOCOLS[kind].blockwise and rng.random() < 0.4,
            q_top=rng.choice(TOPS) if sampled else 0, q_bits=rng.choice([16, *Q_BITS]) if sampled else 16, **more,
        )  # fmt: skip
        talk = Talk(opening, rng.choices(range(known.vocab_size), k=length), known.vocab_size, known.positions)
        self._talks[talk.number] = talk
        return talk.open(), {"ids": talk.ids}

    def _extreme(self, message: Message) -> list[Any]:
        """The header of a valid message, with some fields replaced by values from the edges of their ranges."""
        kind, header = type(message), header_of(message)
        for i, name in enumerate(kind.__struct_fields__):
            bounded = name in RANGES.get(kind, {}) or name == "csi"
            if bounded and name not in COHERENT.get(kind, ()) and self._rng.random() < EXTREME:
                header[i + 1] = self._values.draw(kind, name, False)
        return header

    # ------------------------------------------------------------ invalid ones

    def _wild(self) -> Frames:
        """A valid message but for one field."""
        message, arrays = self._next()
        names = [name for name in type(message).__struct_fields__ if name != "arrays"]
        header, at = header_of(message), self._rng.randrange(len(names))
        header[at + 1] = self._values.draw(type(message), names[at], True)
        return with_arrays(header, arrays)

    def _disordered(self) -> Frames:
        """A valid message in a place where it does not belong."""
        rng = self._rng
        if not self._talks:
            return self._valid()
        talk = rng.choice(list(self._talks.values()))
        way = rng.randrange(6)
        if way == 0:  # as if it were a session of another protocol
            message, arrays = talk.like(rng.choice(list(PROTOCOLS))).draft(rng)
            return with_arrays(header_of(message), arrays)
        if way == 1:
            message, arrays = talk.draft(rng)
            jump = rng.choice([-1, 1, 2, 2**31])
            return with_arrays(header_of(msgspec.structs.replace(message, round=max(0, message.round + jump))), arrays)
        if way == 2:
            message, arrays = talk.draft(rng)
            return with_arrays(header_of(msgspec.structs.replace(message, base_len=message.base_len + 1)), arrays)
        if way == 3:
            return with_arrays(header_of(talk.open()), {"ids": talk.ids[: rng.randint(1, len(talk.ids))]})
        if way == 4:
            return with_arrays(*_unasked(talk, rng))
        if rng.random() < 0.2:
            return with_arrays(header_of(self._hello(self._rng.random() < 0.5)), {})
        return with_arrays(header_of(Close(session=talk.number)), {})

    def _drawn(self) -> Frames:
        """Any message with any fields, and well-formed arrays that have nothing to do with it."""
        kind = self._rng.choice([k for k in KINDS if k is not Hello or self._rng.random() < 0.1])  # it ends sessions
        return with_arrays(self._values.message(kind, 0.3), frames.arrays(self._rng))

    def _stray(self) -> Frames:
        """A valid message for another UE's session."""
        if not self._talks or not self._known.sessions:
            return self._valid()
        talk, number = self._rng.choice(list(self._talks.values())), self._rng.choice(self._known.sessions)
        message, arrays = self._rng.choice([talk.draft, talk.reveal, lambda _: (Close(session=0), {})])(self._rng)
        return with_arrays(header_of(msgspec.structs.replace(message, session=number)), arrays)

    def _again(self) -> Frames:
        return self._rng.choice(self._said) if self._said else self._valid()

    def _patched(self) -> Frames:
        return frames.patched(self._rng, self._valid())

    def _lying(self) -> Frames:
        return frames.lying(self._rng, header_of(self._next()[0]))

    def _noise(self) -> Frames:
        return frames.noise(self._rng)


def _unasked(talk: Talk, rng: random.Random) -> tuple[list[Any], Mapping[str, Any]]:
    message, arrays = talk.reveal(rng)
    return header_of(message), arrays
