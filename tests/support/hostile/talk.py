"""One session as a hostile UE keeps it: what it may send next, and the arrays that its protocol makes."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from testbed.errors import ProtocolError
from testbed.protocols import PROTOCOLS
from testbed.protocols.base import Drafted, RoundProtocol, hidden_arrays
from testbed.protocols.messages import NO_HINT, Draft, Hidden, Open, Opened, Verdict
from testbed.protocols.quantise import FULL_BITS, pack_q
from testbed.protocols.sampling import ONE, Sampling, unit
from testbed.synthetic import next_token

HALVES = np.array([0.0, -0.0, 6e-8, -6e-8, 65504.0, -65504.0], np.float16)
BROKEN = np.array([np.nan, np.inf, -np.inf], np.float16)
WINDOWS = (0, 1, 1, 2, 3, 4, 6, 10**6)
"""Lengths of windows; the last is cut to what fits the context."""


class Talk:
    """A session.

    Attributes:
        state: "opening", "ready" for the next draft, "waiting" for a verdict, "lost" by the base station, or "refused".
        asked: positions whose hidden states were requested; None: none were.
        drafted: the last window.
    """

    def __init__(self, opening: Open, prompt: list[int], vocab_size: int, positions: int) -> None:
        self.number, self._opening, self._vocab, self._positions = opening.session, opening, vocab_size, positions
        self.tokens, self.round, self.state = list(prompt), opening.round, "opening"
        self.asked: list[int] | None = None
        self.drafted: Drafted | None = None
        self._alone = opening.alone or opening.protocol not in PROTOCOLS
        self._ahead: tuple[int, Drafted] | None = None
        self._replaced: int | None = None
        self._hidden = np.random.default_rng(opening.session & 0xFFFF)

    @property
    def ids(self) -> NDArray[np.int32]:
        """The committed prefix."""
        return np.array(self.tokens, np.int32)

    @property
    def due(self) -> bool:
        """Whether the next message is this side's."""
        return self.asked is not None or self.state in ("ready", "lost", "refused")

    @property
    def room(self) -> int:
        """Tokens of the longest window that fits the context."""
        return self._positions - len(self.tokens) - 1

    def like(self, kind: str) -> Talk:
        """The same session under another protocol."""
        found = Talk(msgspec.structs.replace(self._opening, protocol=kind), self.tokens, self._vocab, self._positions)
        found.round = self.round
        return found

    def open(self) -> Open:
        """Open it, or open it again with the committed prefix."""
        self.state, self.asked, self._replaced, self._ahead = "opening", None, None, None
        left = max(1, self._positions - len(self.tokens))
        opening = msgspec.structs.replace(self._opening, max_tokens=min(self._opening.max_tokens, left))
        return msgspec.structs.replace(opening, round=self.round) if opening.alone else opening

    # ------------------------------------------------------------ messages

    def draft(self, rng: random.Random) -> tuple[Draft, Mapping[str, Any]]:
        """The next window."""
        size = max(0, min(rng.choice(WINDOWS), self.room))
        ids = self._ids(size, rng)
        bits = self._opening.hidden_bits
        self.drafted = Drafted(ids, self._states(size, rng), self._q(ids, rng), self._replaced, bits)
        self.state = "waiting"
        kind = self._carried(rng)
        arrays = {"ids": ids} if kind is None else _scaled(kind.uplink(self.drafted), rng)
        arrays = pack_q(arrays, Sampling(q_top=self._opening.q_top, q_bits=self._opening.q_bits))
        if self._opening.q_top and "q" in arrays and rng.random() < 0.1:
            arrays["q"] = self._hidden.integers(0, 256, len(arrays["q"]), np.uint8)
        if rng.random() < 0.03:
            arrays["ids"] = np.append(ids[:-1], np.int32(rng.choice([self._vocab, 2**31 - 1, -1, -(2**31)])))
        return Draft(session=self.number, round=self.round, base_len=len(self.tokens)), arrays

    @property
    def can_look_ahead(self) -> bool:
        """Whether the window after the one that is away can be sent before its verdict."""
        kind = PROTOCOLS.get(self._opening.protocol)
        waiting = self.state == "waiting" and self.drafted is not None and self._ahead is None
        return waiting and kind is not None and not kind.sampled and self.room > len(self._away) + 1

    @property
    def _away(self) -> list[int]:
        return [] if self.drafted is None else self.drafted.ids.tolist()

    def draft_ahead(self, rng: random.Random) -> tuple[Draft, Mapping[str, Any]]:
        """The window after the one that is away; its guess is mostly right if all of that one is accepted."""
        before = [*self.tokens, *self._away]
        guess = next_token(before, self._vocab, 0) if rng.random() < 0.8 else rng.randrange(self._vocab)
        size = max(0, min(rng.choice(WINDOWS), self.room - len(self._away) - 1))
        ids = self._ids(size, rng, [*before, guess])
        self._ahead = guess, Drafted(ids, self._states(size, rng), None, None, self._opening.hidden_bits)
        kind = self._carried(rng)
        assert kind is not None
        arrays = _scaled(kind.uplink(self._ahead[1]), rng)
        return Draft(session=self.number, round=self.round + 1, base_len=len(before) + 1, guess=guess), arrays

    def reveal(self, rng: random.Random) -> tuple[Hidden, Mapping[str, Any]]:
        """The answer to a query for hidden states; without a query, any."""
        positions, self.asked = self.asked, None
        message = Hidden(session=self.number, round=self.round)
        if positions is not None and self.drafted is not None and self._opening.protocol in PROTOCOLS:
            known = [position for position in positions if position < len(self.drafted.ids)]
            with contextlib.suppress(ProtocolError):  # it asks for none
                return message, _scaled(PROTOCOLS[self._opening.protocol].reveal(self.drafted, known), rng)
        return message, hidden_arrays(self._states(rng.randint(1, 4), rng), self._opening.hidden_bits)

    def _carried(self, rng: random.Random) -> RoundProtocol | None:
        """Protocol of the next window: the session's, or the one beside it; None: it has none."""
        kind = PROTOCOLS.get(self._opening.protocol)
        return PROTOCOLS[kind.beside] if kind is not None and kind.beside and rng.random() < 0.3 else kind

    def _ids(self, size: int, rng: random.Random, before: list[int] | None = None) -> NDArray[np.int32]:
        """Mostly what the synthetic target would choose, so that windows are accepted in part."""
        ids = list(self.tokens if before is None else before)
        start = len(ids)
        for _ in range(size):
            ids.append(next_token(ids, self._vocab, 0) if rng.random() < 0.7 else rng.randrange(self._vocab))
        return np.array(ids[start:], np.int32)

    def _states(self, rows: int, rng: random.Random) -> NDArray[np.float16]:
        states = self._hidden.standard_normal((rows, self._opening.hidden_size), np.float32).astype(np.float16)
        if not rows:
            return states
        if rng.random() < 0.2:
            states[rng.randrange(rows)] = self._hidden.choice(HALVES, states.shape[1])
        if rng.random() < 0.05 and self._opening.hidden_bits == FULL_BITS:
            states[rng.randrange(rows), rng.randrange(states.shape[1])] = rng.choice(BROKEN)
        return states

    def _q(self, ids: NDArray[np.int32], rng: random.Random) -> NDArray[np.uint16]:
        """[K, V] distributions: all on the token, or one count of it and the rest on another."""
        q, rows = np.zeros((len(ids), self._vocab), np.uint16), np.arange(len(ids))
        drawn, least = ids % self._vocab, unit(self._opening.q_bits)
        if rng.random() < 0.5 or self._opening.q_top == 1:
            q[rows, drawn] = ONE
        else:
            q[rows, (drawn + 1) % self._vocab], q[rows, drawn] = ONE - least, least
        return q

    # ------------------------------------------------------------ answers

    def opened(self, message: Opened) -> None:
        """The session is open; the base station knows this number of its tokens."""
        self.tokens = self.tokens[: message.length]
        self.state = "waiting" if self._alone else "ready"

    def judged(self, message: Verdict, arrays: Mapping[str, Any], rng: random.Random) -> None:
        """Commit a verdict's tokens."""
        if message.round != self.round:
            return
        drafted = self._away
        self._replaced = rng.randrange(self._vocab) if arrays else None
        self.tokens += [*drafted[: message.accepted], message.token if self._replaced is None else self._replaced]
        if message.window != NO_HINT:
            self._alone = message.window == 0
        ahead, self._ahead = self._ahead, None
        whole = message.accepted == len(drafted) and not self._alone
        hit = ahead is not None and whole and message.token == ahead[0]
        void = ahead is not None and not hit and not self._alone
        self.round, self.asked = message.round + 1 + void, None
        self.drafted = ahead[1] if ahead is not None and hit else None
        self.state = "waiting" if self._alone or hit else "ready"


def _scaled(arrays: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The same, where quantised states are concerned sometimes with a scale that no UE computes."""
    if "scale" in arrays and rng.random() < 0.1:
        arrays["scale"] = np.full(len(arrays["scale"]), rng.choice([*HALVES, *BROKEN]), np.float16)
    return arrays
