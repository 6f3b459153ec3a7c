"""An index where its match is long enough, else a model."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.ue.drafters.base import Choose, Drafter, DraftSequence, DraftToken
from testbed.ue.drafters.index import IndexDrafter, IndexSequence

HYBRID_FLOOR = 6
"""Beside a model that drafts, shortest match of the index: it is then more likely right than the model."""


class HybridDrafter:
    """Implements `Drafter`: each window comes from the index or from the model.

    The model computes what the index drafted and the base station accepted when it drafts again, in one pass.
    """

    def __init__(self, index: IndexDrafter, model: Drafter) -> None:
        self.index, self.model = index, model
        self.vocab_size, self.hidden_size, self.context = model.vocab_size, model.hidden_size, model.context
        self.fingerprint = f"{index.fingerprint}+{model.fingerprint}"
        index.hidden_size = model.hidden_size

    def open(
        self, prompt: Sequence[int], *, distributions: bool = False, choose: Choose | None = None
    ) -> HybridSequence:
        """See `Drafter.open`."""
        model = self.model.open(prompt, distributions=distributions, choose=choose)
        return HybridSequence(self.index.open(prompt, distributions=distributions, choose=choose), model)

    def close(self) -> None:
        """Free the model."""
        self.index.close()
        self.model.close()


class HybridSequence:
    """Implements `IndexedSequence`."""

    def __init__(self, index: IndexSequence, model: DraftSequence) -> None:
        self._index, self._model = index, model
        self._drafted: list[int] = []
        self._by_index = False
        self._behind, self._computed, self._passes = 0, model.length, 0

    @property
    def length(self) -> int:
        """Number of committed tokens, the prompt included."""
        return self._model.length

    def ready(self) -> bool:
        """See `IndexedSequence.ready`: the model can always begin a window and go on with its own."""
        return not (self._drafted and self._by_index) or self._index.ready()

    def draft_one(self) -> DraftToken:
        """See `DraftSequence.draft_one`."""
        if not self._drafted:
            self._by_index = self._index.match >= HYBRID_FLOOR and self._index.ready()
        token = self._index.draft_one() if self._by_index else self._model.draft_one()
        self._drafted.append(token.id)
        if not self._by_index:
            self._computed, self._passes, self._behind = self._computed + self._behind, self._passes + 1, 0
        return token

    def commit(self, accepted: int, token: int) -> None:
        """See `DraftSequence.commit`."""
        if not 0 <= accepted <= len(self._drafted):
            raise ValueError(f"{accepted} tokens accepted of {len(self._drafted)} drafted")
        added = [*self._drafted[:accepted], token]
        if self._by_index or not self._drafted:
            self._index.commit(accepted, token)
            for one in added:
                self._model.commit(0, one)
            self._behind += len(added)
        else:
            self._model.commit(accepted, token)
            for one in added:
                self._index.commit(0, one)
        self._drafted = []

    def passes(self) -> tuple[int, int]:
        """See `IndexedSequence.passes`."""
        done = self._computed, self._passes
        self._computed = self._passes = 0
        return done

    def close(self) -> None:
        """Free the model's sequence."""
        self._index.close()
        self._model.close()
