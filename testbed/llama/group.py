"""llama.cpp context for batches: one pass takes new ids of several sequences and gives logits and hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.errors import ModelError
from testbed.llama.context import MAX_BATCH, LlamaContext


class SequenceInput(NamedTuple):
    """New ids of one sequence."""

    sequence: int
    position: int
    """Position of the first id: the number of cached ids of the sequence."""
    ids: Sequence[int]


class LlamaGroup(LlamaContext):
    """A `LlamaContext` that computes several sequences in one pass."""

    def fill(self, rows: Sequence[SequenceInput]) -> None:
        """Compute all ids of all rows without logits, in as few passes as `MAX_BATCH` tokens allow.

        Every pass takes the same number of ids from each row, since llama.cpp splits passes otherwise.

        Raises:
            ModelError: a pass failed; the caches are restored.
        """
        left = [row for row in rows if row.ids]
        try:
            while left:
                some = left[:MAX_BATCH]
                take = min(MAX_BATCH // len(some), min(len(row.ids) for row in some))
                self._together([row._replace(ids=row.ids[:take]) for row in some], outputs=False)
                rest = [SequenceInput(row.sequence, row.position + take, row.ids[take:]) for row in some]
                left = [row for row in rest if row.ids] + left[MAX_BATCH:]
        except ModelError:
            self._forget_all(rows)
            raise

    def follow(self, rows: Sequence[SequenceInput], vocab_size: int) -> NDArray[np.int32]:
        """Compute rows of one id each, in one pass; returns [b] the most likely next ids below `vocab_size`.

        Raises:
            ModelError: the pass failed, or logits are not numbers; the caches are restored.
        """
        try:
            self._together(rows, outputs=True)
            logits = self._logits.at(self._lib.llama_get_logits(self._context), len(rows))[:, :vocab_size]
            if not np.isfinite(logits.max(axis=1)).all():
                raise ModelError(f"{self.path}: the drafter's logits are not numbers")
        except ModelError:
            self._forget_all(rows)
            raise
        best: NDArray[np.int32] = logits.argmax(axis=1).astype(np.int32)
        return best

    def score(self, rows: Sequence[SequenceInput]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Compute all ids of all rows, at most `LlamaOptions.outputs`, in one pass.

        Returns:
            logits [n, rows of the head] and final-layer, normalised hidden states [n, hidden_size] of the n ids, in
            their order; views of llama.cpp's memory that the next pass overwrites.

        Raises:
            ModelError: the pass failed; the caches are restored.
        """
        count = sum(len(row.ids) for row in rows)
        try:
            self._together(rows, outputs=True, hidden=True)
        except ModelError:
            self._forget_all(rows)
            raise
        logits, hidden = self._lib.llama_get_logits(self._context), self._lib.llama_get_embeddings(self._context)
        return self._logits.at(logits, count), self._hidden.at(hidden, count)

    def _together(self, rows: Sequence[SequenceInput], *, outputs: bool, hidden: bool = False) -> None:
        """One pass over all ids of all rows, with logits (and hidden states) for all of them or for none."""
        if self._outputs_on is not hidden:
            self._lib.llama_set_embeddings(self._context, hidden)
            self._flags.fill(hidden)
            self._outputs_on = hidden
        total = 0
        for sequence, position, ids in rows:
            start, total = total, total + len(ids)
            self._ids[start:total] = ids
            self._places[start:total] = range(position, position + len(ids))
            self._sequences[start:total] = sequence
        self._flags[:total] = outputs
        self._batch.n_tokens = total
        code = self._lib.llama_decode(self._context, self._batch)
        self._flags[:total] = hidden
        if code:
            raise ModelError(f"{self.path}: llama.cpp failed to compute {total} tokens (code {code})")

    def _forget_all(self, rows: Sequence[SequenceInput]) -> None:
        for row in rows:
            self.forget(row.sequence, row.position)
