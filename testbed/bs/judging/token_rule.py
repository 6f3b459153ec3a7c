"""A judge without a head: what a rule on the two tokens alone is worth. The baseline that a head must beat."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from testbed.bs.judging.base import Candidates
from testbed.errors import ModelError
from testbed.protocols.quantise import FULL_BITS


class TokenRuleJudge:
    """Keeps a mismatch where both tokens are harmless; θ says only whether anything is kept.

    Args:
        harmless: [vocab_size] whether a token is.
    """

    def __init__(self, harmless: NDArray[np.bool_]) -> None:
        self._harmless = harmless

    def check(self, drafter: str, hidden_size: int, hidden_bits: int = FULL_BITS) -> None:
        """Any drafter of the target's vocabulary will do."""

    def needs_hidden(self, threshold: float) -> bool:
        """Never."""
        return False

    def judge(self, batch: Sequence[Candidates]) -> list[NDArray[np.bool_]]:
        """Both tokens harmless, and θ > 0."""
        return [self._harmless[w.draft_ids] & self._harmless[w.target_ids] & (w.threshold > 0) for w in batch]


def digit_free(tokenizer: Path) -> NDArray[np.bool_]:
    """[ids] whether a token's text is without a decimal digit; ids that are no token are not.

    Args:
        tokenizer: directory of `tokenizer.json`.

    Raises:
        ModelError: there is none.
    """
    from tokenizers import Tokenizer

    path = tokenizer / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"judge digits reads the tokens' texts, but {tokenizer} has no tokenizer.json")
    vocabulary = Tokenizer.from_file(str(path)).get_vocab()
    harmless = np.zeros(1 + max(vocabulary.values()), np.bool_)
    for text, token in vocabulary.items():  # digits are ASCII, which every byte-level alphabet leaves as it is
        harmless[token] = not any("0" <= character <= "9" for character in text)
    return harmless
