"""Suffix automaton of token ids (Blumer et al., 1985): the longest suffix of a growing text that occurred before."""

from __future__ import annotations

BREAK = -1
"""Stands between two texts of one automaton; no token has this id."""
RECENT = 64
"""States of one suffix chain that learn of a new occurrence: bounds the time of an appended token."""


class SuffixAutomaton:
    """Automaton of one text, or of several with `end_text` between them; at most two states for each token.

    A state stands for the suffixes that end at the same places. Each knows a place where they end and a token follows:
    the latest one, except for suffixes with more than `RECENT` longer states in their chain, which may know an earlier
    one; -1 if there is none.
    """

    def __init__(self) -> None:
        self.text: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link, self._length, self._end = [-1], [0], [-1]
        self._last = 0
        self._before = 0, 0

    @property
    def states(self) -> int:
        """Number of states."""
        return len(self._link)

    @property
    def longest(self) -> tuple[int, int]:
        """Length of the longest suffix of the only text that occurred before, and the place of the token after it."""
        return self._before

    def append(self, token: int) -> None:
        """Add a token to the latest text."""
        self._followed()
        last = self._last
        self.text.append(token)
        known = self._next[last].get(token)
        if known is not None:  # an earlier text began in the same way
            state = known if self._length[known] == self._length[last] + 1 else self._split(last, token, known)
        else:
            state = self._state({}, -1, self._length[last] + 1, -1)
            while last != -1 and token not in self._next[last]:
                self._next[last][token] = state
                last = self._link[last]
            self._link[state] = 0 if last == -1 else self._target(last, token)
        before = self._link[state]
        self._last, self._before = state, (self._length[before], self._end[before] + 1)

    def end_text(self) -> None:
        """End the latest text."""
        self.text.append(BREAK)
        self._last = 0

    def step(self, state: int, length: int, token: int) -> tuple[int, int]:
        """Longest suffix in the automaton, as its state and length, of a text whose longest was (`state`, `length`),
        and that goes on with `token`; (0, 0) at its start.
        """
        while state and length <= self._length[self._link[state]]:  # the state was split since
            state = self._link[state]
        while state and token not in self._next[state]:
            state = self._link[state]
            length = self._length[state]
        following = self._next[state].get(token)
        return (0, 0) if following is None else (following, length + 1)

    def continued(self, state: int, length: int) -> tuple[int, int]:
        """Longest suffix of such a text that a token follows here: its length, and that token's place; 0 if none."""
        while state:
            if self._end[state] >= 0:
                return length, self._end[state] + 1
            state = self._link[state]
            length = self._length[state]
        return 0, 0

    def _followed(self) -> None:
        """A token follows the last one: its place is the latest one of its suffixes."""
        state, place = self._last, len(self.text) - 1
        for _ in range(RECENT):
            if state == 0:
                break
            self._end[state], state = place, self._link[state]

    def _target(self, last: int, token: int) -> int:
        """The state that `token` leads to from `last`, split off if it also stands for longer suffixes."""
        state = self._next[last][token]
        return state if self._length[state] == self._length[last] + 1 else self._split(last, token, state)

    def _split(self, last: int, token: int, state: int) -> int:
        short = self._state(dict(self._next[state]), self._link[state], self._length[last] + 1, self._end[state])
        self._link[state] = short
        while last != -1 and self._next[last].get(token) == state:
            self._next[last][token] = short
            last = self._link[last]
        return short

    def _state(self, following: dict[int, int], link: int, length: int, end: int) -> int:
        self._next.append(following)
        self._link.append(link)
        self._length.append(length)
        self._end.append(end)
        return len(self._link) - 1
