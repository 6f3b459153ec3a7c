"""Text of an output as it comes, cut before the first stop string."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from testbed.protocols.detokeniser import Detokeniser


class StopStrings:
    """Cuts text before the first stop string; which one is first does not depend on how the text comes in pieces.

    The first is the one that is complete first; of several that end together, the longest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops`: not empty strings; none of them: nothing is ever held or cut."""
        self._stops = sorted(stops, key=len, reverse=True)
        self._held = ""
        self.found = False
        """Whether a stop string came; nothing comes out any more then."""

    def push(self, text: str) -> str:
        """What may be shown of all text so far and was not yet: no part of it can belong to a stop string."""
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
        """What was held, now that the text is at its end."""
        held, self._held = self._held, ""
        return held

    def _possible(self, text: str) -> int:
        """Length of the longest end of `text` that a stop string begins with."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            end = text[len(text) - length :]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0


class Transcript:
    """Text of one output, and where it ends.

    Attributes:
        tokens: ids that belong to the output: all that came, or those up to the end of the stop string.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stops: Sequence[str], ends: Sequence[int]) -> None:
        """`ends`: ids that end an output; they have no text."""
        self._pieces, self._cut = Detokeniser(tokenizer, prompt), StopStrings(stops)
        self._ends = frozenset(ends)
        self.tokens = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string came."""
        return self._cut.found

    def push(self, ids: Sequence[int]) -> str:
        """The text that these ids bring."""
        text = ""
        for token in ids:
            if self.stopped:
                break
            self.tokens += 1
            if token not in self._ends:
                text += self._cut.push(self._pieces.push(token))
        return text

    def flush(self) -> str:
        """The text that was held until the end."""
        return self._cut.push(self._pieces.flush()) + self._cut.flush()
