"""A drafter whose tokens carry the hidden states after reading them: it drafts one token ahead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from testbed.protocols.messages import Reading
from testbed.ue.drafters.base import Choose, Drafter, DraftSequence, DraftToken
from testbed.ue.drafters.sampler import DraftSampler


class StatesAfter:
    """Implements `Drafter` on another one, at the cost of one more draft pass in every window."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.vocab_size, self.hidden_size, self.context = drafter.vocab_size, drafter.hidden_size, drafter.context
        self.fingerprint = drafter.fingerprint

    def open(
        self, prompt: Sequence[int], *, distributions: bool = False, choose: Choose | None = None
    ) -> DraftSequence:
        """See `Drafter.open`; sequences of protocols that draw tokens upload no hidden states and stay as they are."""
        opened = self._drafter.open(prompt, distributions=distributions, choose=choose)
        return opened if isinstance(choose, DraftSampler) else _Ahead(opened)

    def close(self) -> None:
        """Free the model."""
        self._drafter.close()


def states_of(drafter: Drafter) -> Reading:
    """Which hidden states a drafter's tokens carry."""
    return "after" if isinstance(drafter, StatesAfter) else "predicting"


class _Ahead:
    """Implements `DraftSequence`; holds the token that was drafted for its state alone."""

    def __init__(self, sequence: DraftSequence) -> None:
        self._sequence = sequence
        self._next: DraftToken | None = None

    @property
    def length(self) -> int:
        """Number of committed tokens, the prompt included."""
        return self._sequence.length

    def draft_one(self) -> DraftToken:
        """See `DraftSequence.draft_one`."""
        token = self._next or self._sequence.draft_one()
        self._next = self._sequence.draft_one()
        return replace(token, hidden=self._next.hidden)

    def commit(self, accepted: int, token: int) -> None:
        """See `DraftSequence.commit`."""
        self._sequence.commit(accepted, token)
        self._next = None

    def close(self) -> None:
        """Free the sequence."""
        self._sequence.close()
