"""The target's greedy continuation of a prefix in few passes: speculative decoding whose draft is a similar known text.

Lossless: the target's argmax decides every token.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from testbed.bs.engines.base import VerifyRequest
from testbed.experiments.lockstep.decoding import Decoding
from testbed.experiments.lockstep.phrases import Phrases

LEAST_GUESS, MOST_GUESS = 8, 32
"""Range of the draft length per pass: doubled after a fully accepted draft, reset to the minimum otherwise."""
MATCH = 6
"""Maximum number of tokens compared to align with the similar text."""
SLACK = 8
"""Distance in tokens that one more matching token outweighs."""


class Completer:
    """Continues prefixes with the target.

    Args:
        ends: ids that end an output.
    """

    def __init__(self, ends: Collection[int]) -> None:
        self.ends = frozenset(ends)
        self._phrases = Phrases()

    def complete(self, session: str, ids: Sequence[int], room: int, like: Sequence[int] = ()) -> Decoding[list[int]]:
        """The target's greedy continuation of `ids`: at most `room` tokens, up to and including an end id.

        Args:
            session: session name for the engine.
            like: ids of a complete text with a probably similar continuation, roughly aligned with `ids`; empty: none.
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
        """Ids up to and including the first end id; all if there is none."""
        return ids[: next((i + 1 for i, token in enumerate(ids) if token in self.ends), len(ids))]

    def _guess(self, like: Sequence[int], text: Sequence[int], near: int, count: int) -> list[int]:
        """Draft from the similar text if its last token matches, otherwise from phrases of earlier texts."""
        if 0 < near < len(like) and like[near - 1] == text[-1]:
            return list(like[near : near + count])
        return self._phrases.follow(text, count)


def _place(like: Sequence[int], text: Sequence[int], near: int) -> int:
    """Position in `like` that continues `text`: after the best match with its end, near position `near`."""

    def score(place: int) -> float:
        agreeing = 0
        while agreeing < min(MATCH, place, len(text)) and like[place - 1 - agreeing] == text[-1 - agreeing]:
            agreeing += 1
        return agreeing - abs(place - near) / SLACK

    reach = MATCH * SLACK
    return max(range(max(1, near - reach), min(len(like), near + reach) + 1), key=score, default=near)


@dataclass
class Paths:
    """Known continuations by the target from prefixes of one prompt."""

    _known: list[tuple[int, list[int]]] = field(default_factory=list)

    def add(self, start: int, text: list[int]) -> None:
        """Add a complete text, which from index `start` on is the target's continuation."""
        self._known.append((start, text))

    def follow(self, prefix: Sequence[int]) -> list[int] | None:
        """The complete text that continues `prefix`; None: not known."""
        ids = list(prefix)
        return next((t for start, t in reversed(self._known) if start <= len(ids) and t[: len(ids)] == ids), None)

    def first(self) -> list[int]:
        """The first text added; empty: none."""
        return self._known[0][1] if self._known else []
