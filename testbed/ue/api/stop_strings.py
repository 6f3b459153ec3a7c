"""Detokenized text of an output while it is decoded, cut before the first stop string."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from testbed.protocols.detokeniser import Detokeniser


class StopStrings:
    """Cuts text before the first stop string, independent of how the text is split into pieces.

    The first stop string is the one that is complete first; of several that end together, the longest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops`: non-empty strings; if there are none, text passes unchanged."""
        self._stops = sorted(stops, key=len, reverse=True)
        self._held = ""
        self.found = False
        """Whether a stop string was found, after which there is no more text."""

    def push(self, text: str) -> str:
        """Add text; returns the further text that cannot be part of a stop string."""
        if self.found:
            return ""
        text = self._held + text
        ends = [(at + len(stop), -len(stop)) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            end, minus = min(ends)
            self.found, self._held = True, ""
            return text[: end + minus]
        keep = self._possible(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text held back so far; called at the end."""
        held, self._held = self._held, ""
        return held

    def _possible(self, text: str) -> int:
        """Length of the longest suffix of `text` that is a prefix of a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            end = text[len(text) - length :]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0


class Transcript:
    """Text of one output, and where it ends.

    Attributes:
        tokens: number of ids of the output, up to the end of the stop string if there is one.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stops: Sequence[str], ends: Sequence[int]) -> None:
        """`ends`: ids that end an output; they have no text."""
        self._pieces, self._cut = Detokeniser(tokenizer, prompt), StopStrings(stops)
        self._ends = frozenset(ends)
        self.tokens = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found."""
        return self._cut.found

    def push(self, ids: Sequence[int]) -> str:
        """Add ids; returns their text."""
        text = ""
        for token in ids:
            if self.stopped:
                break
            self.tokens += 1
            if token not in self._ends:
                text += self._cut.push(self._pieces.push(token))
        return text

    def flush(self) -> str:
        """The text held back so far; called at the end."""
        return self._cut.push(self._pieces.flush()) + self._cut.flush()
