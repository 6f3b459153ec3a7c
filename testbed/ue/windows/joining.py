"""Windows of a drafter without a model that join a stream, which the target decodes without waiting for them."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.errors import ProtocolError
from testbed.protocols.base import RoundProtocol
from testbed.protocols.messages import MOST_JOINING, Verdict
from testbed.ue.drafters.base import Drafter
from testbed.ue.drafters.index import IndexDrafter, IndexSequence
from testbed.ue.windows.base import WindowPolicy


class JoiningWindow(NamedTuple):
    """A window that was sent, or is to be sent."""

    number: int
    base_len: int
    """Length of the prefix that it continues, tokens of earlier windows included."""
    ids: NDArray[np.int32]

    @property
    def end(self) -> int:
        """Length of the prefix with it."""
        return self.base_len + len(self.ids)


class JoiningWindows:
    """Drafts windows that join the stream of one request, and follows which of its tokens they foresaw.

    The index proposes tokens after every committed one. Those that go on from the windows that are away are sent as
    further windows, whole ones only while one of those is not refuted; a token of the target that differs from the one
    foreseen refutes them all.

    Args:
        window: most tokens of a window.
    """

    def __init__(self, drafter: IndexDrafter, window: int) -> None:
        self._drafter, self.window = drafter, window
        self._sequence: IndexSequence | None = None
        self._numbers = self._lost = 0
        """Number of the next window, and of the first one that the BS can have."""
        self._sent: dict[int, JoiningWindow] = {}
        """Windows with tokens that are not committed yet, by their numbers."""
        self._foreseen: list[int] = []
        """Tokens after the committed ones, as sent and not refuted."""

    @property
    def most_ahead(self) -> int:
        """Most tokens that are away."""
        return MOST_JOINING * self.window

    def begin(self, prompt: Sequence[int]) -> None:
        """Set the prompt.

        Raises:
            BadInput: the drafter refuses it.
        """
        self._sequence = self._drafter.open(prompt)

    def reopened(self) -> None:
        """The BS is to open the session anew, and loses the windows; verdicts about them may still arrive."""
        self._lost, self._foreseen = self._numbers, []

    def draft(self, room: int, ends: Set[int]) -> list[JoiningWindow]:
        """Windows to send now, for an output of `room` further tokens; none has a token that ends the output."""
        assert self._sequence is not None
        ahead, size = len(self._foreseen), self.window
        places = MOST_JOINING - sum(number >= self._lost for number in self._sent)
        if places <= 0 or ahead + (size if ahead else 1) > min(self.most_ahead, room - 1):
            return []
        proposed = self._sequence.proposed(min(self.most_ahead, room - 1))
        end = next((i for i, token in enumerate(proposed) if token in ends), len(proposed))
        if proposed[:ahead] != self._foreseen:
            return []
        new = proposed[ahead:end]
        if ahead:
            del new[len(new) // size * size :]
        return [self._send(new[i : i + size]) for i in range(0, len(new), size)[:places]]

    def _send(self, ids: list[int]) -> JoiningWindow:
        assert self._sequence is not None
        base_len = self._sequence.length + len(self._foreseen)
        window = JoiningWindow(self._numbers, base_len, np.array(ids, np.int32))
        self._numbers += 1
        self._sent[window.number] = window
        self._foreseen += ids
        return window

    def verified(self, verdict: Verdict) -> NDArray[np.int32]:
        """The drafted tokens that the pass of a verdict verified.

        Raises:
            ProtocolError: a window that was not sent, or that does not go on from the committed prefix.
        """
        if verdict.draft is None:
            return np.zeros(0, np.int32)
        assert self._sequence is not None
        window, length = self._sent.get(verdict.draft), self._sequence.length
        if window is None or not window.base_len <= length < window.end:
            raise ProtocolError(f"verdict of window {verdict.draft}, which does not continue the output")
        return window.ids[length - window.base_len :]

    def commit(self, ids: Sequence[int]) -> None:
        """Append committed tokens."""
        assert self._sequence is not None
        for token in ids:
            self._sequence.commit(0, token)
        known = min(len(ids), len(self._foreseen))
        agrees = self._foreseen[:known] == list(ids[:known])
        self._foreseen = self._foreseen[len(ids) :] if agrees else []
        self._sent = {number: one for number, one in self._sent.items() if one.end > self._sequence.length}

    def close(self) -> None:
        """Free the sequence."""
        if self._sequence is not None:
            self._sequence.close()


def joining_windows(drafter: Drafter, protocol: RoundProtocol, policy: WindowPolicy) -> JoiningWindows | None:
    """The windows of a session that may join a stream; None: it has none, since its drafter is a model, or its protocol
    draws or judges tokens.
    """
    if not isinstance(drafter, IndexDrafter) or protocol.sampled or protocol.judged or protocol.skips:
        return None
    return JoiningWindows(drafter, policy.max_window)
