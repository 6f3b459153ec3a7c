"""Windows that join a stream: the target decodes without waiting for them, unless they ask it to wait."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.errors import ProtocolError
from testbed.protocols.messages import MOST_JOINING, Verdict
from testbed.ue.drafters.hybrid import HYBRID_FLOOR
from testbed.ue.drafters.index import IndexDrafter, IndexSequence
from testbed.ue.windows.stream_choice import FadingMean

KEEP_SHORT = 0.95
"""Factor by which the weights of earlier tokens after short matches shrink with every new one."""


class JoiningWindow(NamedTuple):
    """A window of a stream."""

    number: int
    base_len: int
    """Length of the prefix that it continues, the tokens of earlier windows included."""
    ids: NDArray[np.int32]
    before: int
    """The last token of that prefix."""

    @property
    def end(self) -> int:
        """Length of that prefix and the window together."""
        return self.base_len + len(self.ids)


class JoiningWindows:
    """The windows of one request's stream that were sent and not yet verified.

    A proposal continues the committed tokens. If it begins with the tokens that are away, the rest of it is sent as
    further windows, and only in whole windows. A token of the target that differs from the drafted one at its place
    makes all windows that are away void.

    Args:
        index: proposes tokens after every commit; None: there is no index.
        window: most tokens of a pass.
    """

    def __init__(self, index: IndexDrafter | None, window: int) -> None:
        self._index, self.window = index, window
        self._sequence: IndexSequence | None = None
        self._last = self._length = self._numbers = self._lost = 0
        """The last committed token, the count of committed tokens, the number of the next window, and the number of the
        first window that the BS keeps."""
        self._sent: dict[int, JoiningWindow] = {}
        """Windows with tokens that are not committed yet, by their numbers."""
        self.short = FadingMean(KEEP_SHORT)
        """Share of committed tokens that the index would have drafted after a match shorter than `HYBRID_FLOOR`."""
        self.last_verified = -1
        """Number of the last window of which a pass verified tokens."""
        self._foreseen: list[int] = []
        """Tokens of the windows that are away, after the committed ones; empty once one of them was wrong."""
        self._by_index = False
        """Whether the last of those is the index's."""

    @property
    def most_ahead(self) -> int:
        """Most tokens that may be away at once."""
        return MOST_JOINING * self.window

    @property
    def away(self) -> int:
        """Number of tokens that are away and may still be right."""
        return len(self._foreseen)

    @property
    def length(self) -> int:
        """Number of committed tokens."""
        return self._length

    def awaits(self, number: int) -> bool:
        """Whether tokens of this window are not committed yet."""
        return number in self._sent

    def begin(self, prompt: Sequence[int]) -> None:
        """Set the prompt.

        Raises:
            BadInput: the drafter refuses it.
        """
        self._length, self._last = len(prompt), prompt[-1] if prompt else 0
        self._sequence = None if self._index is None else self._index.open(prompt)

    def reopened(self) -> None:
        """Forget the windows that are away: the BS opens the session anew; verdicts about them may still arrive."""
        self._lost, self._foreseen = self._numbers, []

    def draft(self, room: int, ends: Set[int], floor: int = 0) -> list[JoiningWindow]:
        """Windows of the index to send now; none contains a token that ends the output.

        Args:
            room: number of tokens that the output may still get.
            floor: least length of a match, if that is more than the index's own minimum.
        """
        if self._sequence is None or not (self._free(self.window, room) or self._others):
            return []
        proposed = self._sequence.proposed(min(self.most_ahead, room - 1), floor)
        if self._others and proposed[: self.away] != self._foreseen[: len(proposed)]:
            self._foreseen, self._lost = [], self._numbers  # the BS puts what is sent now in their place
        found = self.offer(proposed, self.window, room, ends, bool(self._foreseen) and self._by_index)
        self._by_index = self._by_index or bool(found)
        return found

    @property
    def _others(self) -> bool:
        """Whether tokens that are not the index's are away."""
        return bool(self._foreseen) and not self._by_index

    def offer(self, proposed: Sequence[int], size: int, room: int, ends: Set[int], whole: bool) -> list[JoiningWindow]:
        """Windows of at most `size` tokens to send now, of tokens proposed after the committed ones.

        Args:
            whole: whether a window of fewer tokens is held back for more.
        """
        ahead, places = len(self._foreseen), self._free(size, room)
        if not places or list(proposed[:ahead]) != self._foreseen:
            return []
        end = next((i for i, token in enumerate(proposed) if token in ends), len(proposed))
        new = list(proposed[ahead : min(end, room - 1)])
        if whole:
            del new[len(new) // size * size :]
        self._by_index = self._by_index and not new
        return [self._send(new[i : i + size]) for i in range(0, len(new), size)[:places]]

    def empty(self) -> JoiningWindow:
        """A window without tokens, which takes no number."""
        return JoiningWindow(self._numbers, self._length, np.zeros(0, np.int32), self._last)

    def _free(self, size: int, room: int) -> int:
        """Number of windows of `size` tokens for which the BS has places."""
        places = MOST_JOINING - sum(number >= self._lost for number in self._sent)
        ahead = len(self._foreseen)
        full = ahead + (size if ahead else 1) > min(MOST_JOINING * size, self.most_ahead) or ahead + 1 >= room
        return 0 if full else max(0, places)

    def _send(self, ids: list[int]) -> JoiningWindow:
        base_len = self._length + len(self._foreseen)
        before = self._foreseen[-1] if self._foreseen else self._last
        window = JoiningWindow(self._numbers, base_len, np.array(ids, np.int32), before)
        self._numbers += 1
        self._sent[window.number] = window
        self._foreseen += ids
        return window

    def verified(self, verdict: Verdict) -> NDArray[np.int32]:
        """The drafted tokens that the pass of a verdict verified.

        Raises:
            ProtocolError: the verdict names a window that was not sent, or that does not continue the committed prefix,
                or more tokens than were sent.
        """
        if verdict.draft is None:
            return np.zeros(0, np.int32)
        window = self._sent.get(verdict.draft)
        if window is None or not window.base_len <= self._length < window.end:
            raise ProtocolError(f"verdict of window {verdict.draft}, which does not continue the output")
        ids, last = window.ids[self._length - window.base_len :], window
        while len(ids) < verdict.joined and (more := self._sent.get(last.number + 1)) and more.base_len == last.end:
            ids, last = np.concatenate([ids, more.ids]), more
        if not 0 < verdict.joined <= len(ids):
            raise ProtocolError(f"verdict of {verdict.joined} tokens from window {verdict.draft} on")
        self.last_verified = last.number
        return ids[: verdict.joined]

    def commit(self, ids: Sequence[int]) -> None:
        """Append committed tokens."""
        if self._sequence is not None:
            for token in ids:
                if self._sequence.match < HYBRID_FLOOR and (guess := self._sequence.proposed(1)):
                    self.short.add(guess[0] == token)
                self._sequence.commit(0, token)
        self._length, self._last = self._length + len(ids), ids[-1]
        known = min(len(ids), len(self._foreseen))
        if self._foreseen[:known] == list(ids[:known]):
            self._foreseen = self._foreseen[len(ids) :]
        else:  # the BS drops what is away
            self._foreseen, self._lost = [], self._numbers
        self._sent = {number: one for number, one in self._sent.items() if one.end > self._length}

    def close(self) -> None:
        """Free the index's sequence."""
        if self._sequence is not None:
            self._sequence.close()
