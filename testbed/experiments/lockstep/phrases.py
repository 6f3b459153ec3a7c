"""A drafter without a model: tokens that followed the same few tokens before."""

from __future__ import annotations

from collections.abc import Sequence

ORDERS = (6, 4, 3, 2)
"""Tokens that must agree, the longest known run first."""
MOST = 2**20
"""Runs that are kept; when so many are known, no new ones are learnt."""


class Phrases:
    """What followed every run of tokens when it was last seen."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, ...], int] = {}

    def learn(self, text: Sequence[int], start: int) -> None:
        """Remember what `text` says from `start` on."""
        if len(self._next) >= MOST:
            return
        for order in ORDERS:
            for end in range(max(start, order), len(text)):
                self._next[tuple(text[end - order : end])] = text[end]

    def follow(self, text: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that may follow; none where the end of `text` was never seen."""
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
