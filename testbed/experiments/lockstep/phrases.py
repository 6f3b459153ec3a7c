"""N-gram drafting without a model: predicts the token that last followed the same few tokens."""

from __future__ import annotations

from collections.abc import Sequence

ORDERS = (6, 4, 3, 2)
"""N-gram lengths to match, longest first."""
MOST = 2**20
"""Maximum number of n-grams; no more are learned after that."""


class Phrases:
    """Maps every n-gram seen to the token that last followed it."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, ...], int] = {}

    def learn(self, text: Sequence[int], start: int) -> None:
        """Learn the tokens of `text` from index `start` on."""
        if len(self._next) >= MOST:
            return
        for order in ORDERS:
            for end in range(max(start, order), len(text)):
                self._next[tuple(text[end - order : end])] = text[end]

    def follow(self, text: Sequence[int], count: int) -> list[int]:
        """Predict at most `count` tokens after `text`; none if its end was never seen."""
        tail = list(text[-ORDERS[0] :])
        found: list[int] = []
        while len(found) < count:
            known = (self._next.get(tuple(tail[-order:])) for order in ORDERS if len(tail) >= order)
            token = next((k for k in known if k is not None), None)
            if token is None:
                break
            found.append(token)
            tail = [*tail[-ORDERS[0] + 1 :], token]
        return found
