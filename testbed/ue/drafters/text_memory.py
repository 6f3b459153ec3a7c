"""Latest requests that an index drafts from beside a request's own text, within bounded memory."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.ue.drafters.suffix_automaton import SuffixAutomaton


class TextMemory:
    """Suffix automata of the latest requests, prompts and outputs.

    Requests are kept in two generations of half the tokens each: when the newer one is full, the older one is dropped
    and a new one begins.

    Args:
        tokens: most tokens that are kept.
    """

    def __init__(self, tokens: int) -> None:
        self._half = tokens // 2
        self._older, self._newer = SuffixAutomaton(), SuffixAutomaton()

    @property
    def automata(self) -> list[SuffixAutomaton]:
        """Those with a text; a request that runs keeps the ones that it began with."""
        return [one for one in (self._older, self._newer) if one.text]

    @property
    def states(self) -> int:
        """States of all automata: at most two for each token, and two roots."""
        return self._older.states + self._newer.states

    def add(self, ids: Sequence[int]) -> None:
        """Keep a finished request; of one that is too long, its end."""
        kept = list(ids)[-self._half + 1 :] if self._half > 1 else []
        if not kept:
            return
        if len(self._newer.text) + len(kept) + 1 > self._half:
            self._older, self._newer = self._newer, SuffixAutomaton()
        for token in kept:
            self._newer.append(token)
        self._newer.end_text()
