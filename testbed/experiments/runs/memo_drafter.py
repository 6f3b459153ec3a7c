"""Memoised drafter: runs over the same tokens share drafts, whatever their link, window or protocol.

A drafter with weights in floats is a function of the prefix, up to rounding. A quantised one is not: llama.cpp rounds
activations differently in passes of one and of several ids, so that a token depends on how the ids before it were
divided into passes, by 0.1 in hidden states of a Q4_0 file. Its drafts are kept by prefix and passes, and those that
are missing are computed in the same passes as in a real run.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from testbed.errors import ModelError
from testbed.experiments.runs.memo import Key, hasher_of
from testbed.llama.gguf_rules import check_gguf
from testbed.ue.drafters.base import Choose, Drafter, DraftSequence, DraftToken
from testbed.ue.load_drafter import is_file

FLOATS = {0, 1, 30}
"""Tensor types F32, F16 and BF16."""


def depends_on_passes(drafter: str) -> bool:
    """Whether a drafter, by file or name, has quantised weights."""
    return is_file(drafter) and any(t.kind not in FLOATS for t in check_gguf(Path(drafter)).tensors.values())


class MemoDrafter:
    """Implements `Drafter`: opens a sequence of the drafter only for tokens that are not in memory.

    Args:
        by_passes: whether drafts also depend on the division of the ids into passes.
    """

    def __init__(self, drafter: Drafter, by_passes: bool = False) -> None:
        self.drafter, self.by_passes = drafter, by_passes
        self.vocab_size, self.hidden_size, self.context = drafter.vocab_size, drafter.hidden_size, drafter.context
        self.fingerprint = drafter.fingerprint
        self.tokens: dict[Key, DraftToken] = {}
        self.asked = self.drafted = 0
        """Number of tokens, and of those that the drafter computed."""

    def open(
        self, prompt: Sequence[int], *, distributions: bool = False, choose: Choose | None = None
    ) -> DraftSequence:
        """See `Drafter.open`; distributions are not stored, so that a sequence with them is the drafter's own."""
        if distributions or choose is not None:
            return self.drafter.open(prompt, distributions=distributions, choose=choose)
        if not 0 < len(prompt) < self.context:
            return self.drafter.open(prompt)  # raises the error
        return _MemoSequence(self, prompt)

    def close(self) -> None:
        """Free the model and the memory."""
        self.tokens.clear()
        self.drafter.close()


class _MemoSequence:
    """Implements `DraftSequence`."""

    def __init__(self, memo: MemoDrafter, prompt: Sequence[int]) -> None:
        self._memo = memo
        self._ids = [int(i) for i in prompt]
        self._committed = self._prompt = len(self._ids)
        self._ends: list[int] = []
        """Numbers of ids computed at the end of each pass after the prompt's."""
        self._hasher = hasher_of(np.array(self._ids, np.int32))
        self._live: DraftSequence | None = None
        """A sequence of the drafter with the same tokens as this one and, if drafts depend on them, passes."""

    @property
    def length(self) -> int:
        """Number of committed tokens, the prompt included."""
        return self._committed

    def draft_one(self) -> DraftToken:
        """See `DraftSequence.draft_one`."""
        if len(self._ids) >= self._memo.context:
            raise ModelError(f"the drafter's context of {self._memo.context} tokens is full")
        key = self._key()
        token = self._memo.tokens.get(key)
        self._memo.asked += 1
        if token is None:
            if self._live is None:
                self._live = self._opened()
            token = self._live.draft_one()
            self._memo.tokens[key] = token
            self._memo.drafted += 1
        elif self._live is not None:  # its tokens would differ
            self._drop()
        self._ends.append(len(self._ids))
        self._ids.append(token.id)
        self._hasher.update(np.int32(token.id).tobytes())
        return token

    def commit(self, accepted: int, token: int) -> None:
        """See `DraftSequence.commit`."""
        drafted = len(self._ids) - self._committed
        if not 0 <= accepted <= drafted:
            raise ValueError(f"{accepted} tokens accepted of {drafted} drafted")
        if not 0 <= token < self._memo.vocab_size:
            raise ValueError(f"token {token} is outside the vocabulary of {self._memo.vocab_size}")
        if self._live is not None and self._memo.by_passes and self._live.length == self._committed:
            self._live.commit(accepted, token)
        else:
            self._drop()
        kept = self._committed + accepted
        del self._ids[kept:]
        self._ends = [end for end in self._ends if end <= kept]
        self._ids.append(token)
        self._committed = len(self._ids)
        self._hasher = hasher_of(np.array(self._ids, np.int32))

    def close(self) -> None:
        """Free the drafter's sequence."""
        self._drop()

    def _key(self) -> Key:
        """Key of the next token."""
        if not self._memo.by_passes:
            return self._hasher.digest()
        passes = hasher_of(np.array([self._prompt, *self._ends], np.int32))
        return self._hasher.digest() + passes.digest()

    def _opened(self) -> DraftSequence:
        """A sequence of the drafter in the state of this one."""
        if not self._memo.by_passes:
            return self._memo.drafter.open(self._ids)
        live = self._memo.drafter.open(self._ids[: self._prompt])
        for end, following in itertools.pairwise([*self._ends, len(self._ids)]):
            drafted = live.draft_one().id
            if following == end + 2 and drafted == self._ids[end]:  # accepted, and computed with the token after it
                live.commit(1, self._ids[end + 1])
                continue
            for token in self._ids[end : following - 1]:
                live.commit(0, token)
                live.draft_one()
            live.commit(0, self._ids[following - 1])
        return live

    def _drop(self) -> None:
        if self._live is not None:
            self._live.close()
            self._live = None
