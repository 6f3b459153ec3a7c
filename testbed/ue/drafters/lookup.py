"""Where the end of a text occurred before: n-grams (prompt lookup), and suffixes of any length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from testbed.ue.drafters.suffix_automaton import SuffixAutomaton
from testbed.ue.drafters.text_memory import TextMemory


class Match(NamedTuple):
    """An earlier occurrence of the end of a text."""

    length: int
    """Tokens that are the same; 0: none, and the rest has no meaning."""
    text: Sequence[int]
    place: int
    """Index in `text` of the token after the occurrence."""


class Lookup(Protocol):
    """Index of one growing text."""

    text: list[int]

    def append(self, token: int) -> None:
        """Add a token."""

    def longest(self) -> Match:
        """The longest suffix of the text that occurred before."""


class NgramLookup:
    """Implements `Lookup` by n-grams of `least` to `most` tokens, the longest first (Saxena, prompt lookup decoding,
    2023), at their latest earlier occurrence.
    """

    def __init__(self, most: int, least: int) -> None:
        self.text: list[int] = []
        self._sizes = range(most, least - 1, -1)
        self._after: dict[tuple[int, ...], int] = {}
        self._match = 0, 0

    def append(self, token: int) -> None:
        """Add a token, and the n-grams that end with it."""
        self.text.append(token)
        self._match = 0, 0
        for size in self._sizes:
            if size > len(self.text):
                continue
            gram = tuple(self.text[-size:])
            if not self._match[0] and gram in self._after:
                self._match = size, self._after[gram]
            self._after[gram] = len(self.text)

    def longest(self) -> Match:
        """See `Lookup.longest`; no suffix is longer than the largest n-gram."""
        return Match(self._match[0], self.text, self._match[1])


class SuffixLookup:
    """Implements `Lookup` by suffix automata: of the text, and of a memory as it was when the text began.

    The text's own match is taken if none is longer.
    """

    def __init__(self, memory: TextMemory) -> None:
        self._own = SuffixAutomaton()
        self.text = self._own.text
        self._cursors = [(one, 0, 0) for one in memory.automata]

    def append(self, token: int) -> None:
        """Add a token."""
        self._own.append(token)
        self._cursors = [(one, *one.step(state, length, token)) for one, state, length in self._cursors]

    def longest(self) -> Match:
        """See `Lookup.longest`."""
        length, place = self._own.longest
        found = Match(length, self.text, place)
        for one, state, matched in self._cursors:
            length, place = one.continued(state, matched)
            if length > found.length:
                found = Match(length, one.text, place)
        return found
