"""A synthetic target that mostly repeats what stands `PERIOD` tokens back, and drafters without a model for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.synthetic import Peaked, next_token, uniform
from testbed.ue.drafters.index import IndexDrafter, IndexRule
from testbed.ue.drafters.lookup import NgramLookup, SuffixLookup
from testbed.ue.drafters.text_memory import TextMemory

VOCAB = 512
PERIOD = 12


def copied(prefix: Sequence[int] | NDArray[np.int32], errors: float) -> int:
    """The token after a prefix: the one `PERIOD` back, or with probability `errors` another one."""
    if len(prefix) < PERIOD or uniform(prefix, 0, "copy") < errors:
        return next_token(prefix, VOCAB, 0)
    return int(prefix[-PERIOD])


class CopyingEngine(SyntheticEngine):
    """Its greedy tokens are `copied`."""

    def __init__(self, errors: float) -> None:
        super().__init__(vocab_size=VOCAB)
        self._errors = errors

    def _shape(self, prefix: NDArray[np.int32]) -> Peaked:
        best = copied(prefix, self._errors)
        return Peaked(best, (best + 1) % VOCAB, VOCAB, uniform(prefix, 0, "target"))


def own(prompt: Sequence[int], tokens: int, errors: float, ends: Sequence[int] = ()) -> list[int]:
    """The target's greedy output."""
    ids = list(prompt)
    while len(ids) < len(prompt) + tokens and (len(ids) == len(prompt) or ids[-1] not in ends):
        ids.append(copied(ids, errors))
    return ids[len(prompt) :]


def index_drafter(kind: str, floor: int = 3) -> IndexDrafter:
    """A drafter `ngram` or `suffix`."""
    rule = IndexRule(floor, 2)
    if kind == "ngram":
        return IndexDrafter(VOCAB, 4096, kind, lambda: NgramLookup(8, floor), rule)
    memory = TextMemory(0)
    return IndexDrafter(VOCAB, 4096, kind, lambda: SuffixLookup(memory), rule, memory)
