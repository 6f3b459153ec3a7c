"""A drafter with another vocabulary than the target's: it drafts the tokens that both know, by the target's ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from testbed.errors import ModelError
from testbed.ue.drafters.base import Choose, Drafter, DraftSequence, DraftToken

MAPPED = "/mapped"
"""Ends the fingerprint of such a drafter: heads and predictors that were trained for the model alone do not apply."""
FILLER = 0
"""The drafter's id that stands for a token of which it knows no part."""


class IdMap:
    """Ids of equal tokens in two vocabularies.

    Args:
        own: the drafter's ids by token.
        target: the target's ids by token.

    Raises:
        ModelError: no token is in both.
    """

    def __init__(self, own: Mapping[str, int], target: Mapping[str, int]) -> None:
        self.own_size, self.target_size = (1 + max(ids.values(), default=-1) for ids in (own, target))
        common = [token for token in own if token in target]
        if not common:
            raise ModelError("drafter and target have no token in common")
        self.own_ids = np.array([own[token] for token in common], np.int64)
        self.target_ids = np.array([target[token] for token in common], np.int64)
        """[n] ids of the same tokens."""
        self._to_own: dict[int, int] = dict(zip(self.target_ids.tolist(), self.own_ids.tolist(), strict=True))
        self._own, self._texts = own, {number: token for token, number in target.items()}
        self._pieces: dict[int, list[int]] = {}

    @property
    def share(self) -> float:
        """Share of the target's tokens that the drafter knows."""
        return len(self.own_ids) / len(self._texts)

    def own(self, target_id: int) -> int:
        """The drafter's id of a common token."""
        return self._to_own[target_id]

    def pieces(self, target_id: int) -> list[int]:
        """What the drafter reads for a token of the target: the same token, or the longest ones that spell it."""
        if target_id in self._to_own:
            return [self._to_own[target_id]]
        if target_id not in self._pieces:
            self._pieces[target_id] = self._spelt(self._texts.get(target_id, "")) or [FILLER]
        return self._pieces[target_id]

    def _spelt(self, text: str) -> list[int]:
        """Ids of the longest known tokens from left to right; characters that begin none are left out."""
        found, start = [], 0
        while start < len(text):
            ends = range(len(text), start, -1)
            end = next((end for end in ends if text[start:end] in self._own), None)
            if end is not None:
                found.append(self._own[text[start:end]])
            start = end or start + 1
        return found


class MappedDrafter:
    """Implements `Drafter` with the target's ids, on a drafter with its own.

    Lossless like any drafter: what it cannot say is never drafted, and the target decides. Under protocols that draw
    tokens, q is the drafter's distribution given that the token is common.
    """

    def __init__(self, drafter: Drafter, ids: IdMap) -> None:
        self.drafter, self.ids = drafter, ids
        self.vocab_size, self.hidden_size, self.context = ids.target_size, drafter.hidden_size, drafter.context
        self.fingerprint = f"{drafter.fingerprint}{MAPPED}"

    def open(
        self, prompt: Sequence[int], *, distributions: bool = False, choose: Choose | None = None
    ) -> MappedSequence:
        """See `Drafter.open`."""
        return MappedSequence(self, prompt, distributions, choose)

    def close(self) -> None:
        """Free the model."""
        self.drafter.close()


class MappedSequence:
    """Implements `DraftSequence`.

    Where the text has more of the drafter's ids than its context, it reads the last ones, from a multiple of half its
    context on, so that drafts remain a function of the text.
    """

    def __init__(
        self, drafter: MappedDrafter, prompt: Sequence[int], distributions: bool, choose: Choose | None
    ) -> None:
        """Created by `MappedDrafter.open`."""
        self._drafter, self._ids = drafter.drafter, drafter.ids
        self._choose, self._distributions = choose, distributions
        self._length, self._drafted = len(prompt), 0
        self._own = [piece for token in prompt for piece in self._ids.pieces(int(token))]
        self._probs: NDArray[np.float32] | None = None
        self._chosen = 0
        self._start, self._read = self._begin(), 0
        """First id that the drafter reads, and drafted tokens that it read as a part of its prompt."""
        self._sequence: DraftSequence | None = self._opened()

    def _begin(self) -> int:
        """Where the ids begin that leave room for another one."""
        context = self._drafter.context
        half = max(1, context // 2)
        return -(-max(0, len(self._own) + 1 - context) // half) * half

    def _opened(self) -> DraftSequence:
        return self._drafter.open(self._own[self._start :], choose=self._common)

    @property
    def length(self) -> int:
        """Number of committed tokens of the target, the prompt included."""
        return self._length

    def _common(self, probs: NDArray[np.float32], position: int) -> int:
        """Choose among the common tokens; the position in the drafter's own ids does not matter."""
        ids = self._ids
        found = np.zeros(ids.target_size, np.float32)
        found[ids.target_ids] = probs[ids.own_ids]
        total = found.sum(dtype=np.float64)
        if total > 0:
            found = (found / total).astype(np.float32)
        else:
            found[ids.target_ids] = np.float32(1 / len(ids.target_ids))
        place = self._length + self._drafted
        self._probs = found
        self._chosen = int(found.argmax()) if self._choose is None else self._choose(found, place)
        return ids.own(self._chosen)

    def draft_one(self) -> DraftToken:
        """See `DraftSequence.draft_one`; the statistics are those of the drafter's own distribution."""
        if self._sequence is None or self._begin() != self._start:
            self.close()
            self._start, self._read = self._begin(), self._drafted
            self._sequence = self._opened()
        token = self._sequence.draft_one()
        self._drafted += 1
        self._own.append(token.id)
        return replace(token, id=self._chosen, probs=self._probs if self._distributions else None)

    def commit(self, accepted: int, token: int) -> None:
        """See `DraftSequence.commit`."""
        if not 0 <= accepted <= self._drafted:
            raise ValueError(f"{accepted} tokens accepted of {self._drafted} drafted")
        if not 0 <= token < self._ids.target_size:
            raise ValueError(f"token {token} is outside the vocabulary of {self._ids.target_size}")
        pieces = self._ids.pieces(token)
        self._own[len(self._own) - self._drafted + accepted :] = pieces
        if accepted < self._read:
            self.close()
        if self._sequence is not None:
            for kept, piece in zip((accepted - self._read, *(0 for _ in pieces)), pieces, strict=False):
                self._sequence.commit(kept, piece)
        self._length, self._drafted, self._read = self._length + accepted + 1, 0, 0

    def close(self) -> None:
        """Free the drafter's sequence."""
        if self._sequence is not None:
            self._sequence.close()
            self._sequence = None
