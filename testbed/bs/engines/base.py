"""The verification seam: one forward pass of the target over the new tokens of a whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """One session's share of a pass.

    `prefix` holds the whole committed prefix (prompt included, at least one id), `draft` the K drafted ids after it;
    K may be 0 (plain decoding of the next token). Both int32.
    """

    session: str
    prefix: NDArray[np.int32]
    draft: NDArray[np.int32]
    hidden: bool = False
    logprobs: bool = False


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What the target says at the K+1 positions of one request.

    Row i belongs to the state that predicts the token after prefix + draft[:i]: rows 0..K-1 face the drafted tokens,
    row K is the bonus position. Padded vocabulary rows are never chosen.
    """

    argmax: NDArray[np.int32]
    """[K+1] the target's own greedy tokens."""
    margin: NDArray[np.float32]
    """[K+1] logit of the argmax minus the next best logit."""
    draft_gap: NDArray[np.float32]
    """[K] logit of the argmax minus logit of the drafted token, row by row; 0 where they agree."""
    hidden: NDArray[np.float32] | None = None
    """[K+1, hidden_size] final-layer, normalised states, where asked."""
    logprobs: NDArray[np.float32] | None = None
    """[K+1, vocab_size] natural log-probabilities, where asked."""
    cached: int | None = None
    """Leading positions that came from the prefix cache; None: the engine does not know."""

    def gap(self, row: int) -> float:
        """How clearly row `row`'s argmax beats the drafted token there, or the next best one at the bonus position."""
        return float(self.draft_gap[row] if row < len(self.draft_gap) else self.margin[row])


class VerifyEngine(Protocol):
    """A target model. Calls come from one thread at a time."""

    model_name: str
    vocab_size: int
    """Real tokens (tokenizer's count); head rows beyond are masked."""
    hidden_size: int
    max_positions: int
    """Prefix + draft + 1 may not be more."""
    max_batch_tokens: int
    """New tokens that one pass should take; more are verified, in more than one internal step."""
    block_size: int
    """Tokens of a block of the prefix cache, which holds whole blocks alone."""
    kv_tokens: int | None
    """Tokens whose keys and values there is room for; None: no fixed number."""

    def verify(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
        """Verify a batch, results in its order; first-time prompts and follow-ups may be mixed.

        Raises:
            BadInput: an empty prefix, ids outside the vocabulary, or more positions than `max_positions`.
            EngineError: the pass failed; no session is changed by it.
        """

    def release(self, session: str) -> None:
        """Forget a session; an unknown one is no error."""

    def close(self) -> None:
        """Free the model."""
