"""What the target makes of a prefix when it goes on alone, in few passes: speculative decoding with a text that it is
likely to repeat as the draft. Lossless: the target's own argmax decides about every token.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from testbed.bs.engines.base import VerifyRequest
from testbed.experiments.lockstep.phrases import Phrases
from testbed.experiments.lockstep.walk import Walk

LEAST_GUESS, MOST_GUESS = 8, 32
"""Tokens drafted for a pass: doubled after a draft that was kept whole, back to the least after any other."""
MATCH = 6
"""Tokens that are compared to find where in the other text we are."""
SLACK = 8
"""A place so much farther away must agree in one token more."""


class Completer:
    """Continues prefixes with the target.

    Args:
        ends: ids that end an output.
    """

    def __init__(self, ends: Collection[int]) -> None:
        self.ends = frozenset(ends)
        self._phrases = Phrases()

    def complete(self, session: str, ids: Sequence[int], room: int, like: Sequence[int] = ()) -> Walk[list[int]]:
        """The target's greedy continuation of `ids`: up to and with an end id, at most `room` tokens.

        Args:
            session: name for the engine.
            like: ids of a whole text that may go on alike, aligned with `ids` as well as may be; empty: none is known.
        """
        text, near, count, ended = list(ids), len(ids), LEAST_GUESS, False
        while not ended and (left := room + len(ids) - len(text)) > 0:
            near = _place(like, text, near)
            draft = self._guess(like, text, near, min(count, left - 1))
            result = yield VerifyRequest(session, np.array(text, np.int32), np.array(draft, np.int32))
            best = result.argmax.tolist()
            kept = next((i for i, token in enumerate(draft) if token != best[i]), len(draft))
            new = self.up_to_end(best[: kept + 1])
            ended = new[-1] in self.ends
            text += new
            near += kept + 1
            count = min(2 * count, MOST_GUESS) if kept == len(draft) else LEAST_GUESS
        self._phrases.learn(text, len(ids))
        return text[len(ids) :]

    def up_to_end(self, ids: list[int]) -> list[int]:
        """Ids up to and with the first that ends an output; all where none does."""
        return ids[: next((i + 1 for i, token in enumerate(ids) if token in self.ends), len(ids))]

    def _guess(self, like: Sequence[int], text: Sequence[int], near: int, count: int) -> list[int]:
        """As the other text goes on, if it was just now saying the same; else as texts before this one went on."""
        if 0 < near < len(like) and like[near - 1] == text[-1]:
            return list(like[near : near + count])
        return self._phrases.follow(text, count)


def _place(like: Sequence[int], text: Sequence[int], near: int) -> int:
    """Where in `like` to go on after `text`: behind what agrees best with its end, not far from `near`."""

    def score(place: int) -> float:
        agreeing = 0
        while agreeing < min(MATCH, place, len(text)) and like[place - 1 - agreeing] == text[-1 - agreeing]:
            agreeing += 1
        return agreeing - abs(place - near) / SLACK

    reach = MATCH * SLACK
    return max(range(max(1, near - reach), min(len(like), near + reach) + 1), key=score, default=near)


@dataclass
class Paths:
    """The target's own ways on from prefixes of one prompt, as far as they are known."""

    _known: list[tuple[int, list[int]]] = field(default_factory=list)

    def add(self, start: int, text: list[int]) -> None:
        """From `start` on, `text` is the target's own continuation of what stands before, to its end."""
        self._known.append((start, text))

    def follow(self, prefix: Sequence[int]) -> list[int] | None:
        """The whole text that the target makes of a prefix; None: not known."""
        ids = list(prefix)
        return next((t for start, t in reversed(self._known) if start <= len(ids) and t[: len(ids)] == ids), None)

    def first(self) -> list[int]:
        """The text added first; empty: none."""
        return self._known[0][1] if self._known else []
