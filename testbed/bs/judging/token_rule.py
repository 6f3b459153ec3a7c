"""A judge without a head: a rule on the two tokens, the baseline for decision heads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from testbed.bs.judging.base import Candidates
from testbed.protocols.messages import Reading
from testbed.protocols.quantise import FULL_BITS
from testbed.protocols.vocabulary import read_tokenizer


class TokenRuleJudge:
    """Keeps a mismatch if both tokens are harmless and θ > 0.

    Args:
        harmless: [vocab_size] whether each token is harmless.
    """

    def __init__(self, harmless: NDArray[np.bool_]) -> None:
        self._harmless = harmless

    def check(
        self, drafter: str, hidden_size: int, hidden_bits: int = FULL_BITS, states: Reading = "predicting"
    ) -> None:
        """Accepts any drafter of the target's vocabulary."""

    def needs_hidden(self, threshold: float) -> bool:
        """Never."""
        return False

    def judge(self, batch: Sequence[Candidates]) -> list[NDArray[np.bool_]]:
        """Both tokens harmless, and θ > 0."""
        return [self._harmless[w.draft_ids] & self._harmless[w.target_ids] & (w.threshold > 0) for w in batch]


def digit_free(model: Path) -> NDArray[np.bool_]:
    """[ids] whether a token's text has no decimal digit; False for ids that are no token.

    Args:
        model: directory of `tokenizer.json`, or a GGUF file beside it.

    Raises:
        ModelError: it has none, or one that cannot be read.
    """
    vocabulary = read_tokenizer(model).get_vocab()
    harmless = np.zeros(1 + max(vocabulary.values()), np.bool_)
    for text, token in vocabulary.items():  # byte-level alphabets map ASCII digits to themselves
        harmless[token] = not any("0" <= character <= "9" for character in text)
    return harmless
