"""The verification seam: one forward pass of the target over the new tokens of a whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """One session's request in a pass.

    `prefix` is the whole committed prefix (prompt included, at least one id), `draft` the K drafted ids after it; K may
    be 0 (plain decoding of the next token). Both int32.
    """

    session: str
    prefix: NDArray[np.int32]
    draft: NDArray[np.int32]
    hidden: bool = False
    logprobs: bool = False


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The target's outputs at the K+1 positions of one request.

    Row i belongs to the state that predicts the token after prefix + draft[:i]: rows 0..K-1 predict the positions of
    the drafted tokens, row K the bonus token. Padded vocabulary rows are never chosen.
    """

    argmax: NDArray[np.int32]
    """[K+1] the target's own greedy tokens."""
    margin: NDArray[np.float32]
    """[K+1] logit of the argmax minus the next best logit."""
    draft_gap: NDArray[np.float32]
    """[K] logit of the argmax minus logit of the drafted token, row by row; 0 where they agree."""
    hidden: NDArray[np.float32] | None = None
    """[K+1, hidden_size] normalised states of the final layer, if requested."""
    logprobs: NDArray[np.float32] | None = None
    """[K+1, vocab_size] natural log-probabilities, if requested."""
    cached: int | None = None
    """Leading positions read from the prefix cache; None: the engine does not report it."""

    def gap(self, row: int) -> float:
        """Logit of the argmax at `row` minus that of the drafted token, or of the second best at the bonus position."""
        return float(self.draft_gap[row] if row < len(self.draft_gap) else self.margin[row])


class VerifyEngine(Protocol):
    """A target model. Calls come from one thread at a time."""

    model_name: str
    vocab_size: int
    """Real tokens (the tokenizer's count); head rows beyond them are masked."""
    hidden_size: int
    max_positions: int
    """Upper bound of prefix + draft + 1."""
    max_batch_tokens: int
    """New tokens that one pass should take; more are verified in several internal steps."""
    block_size: int
    """Tokens of a block of the prefix cache, which holds whole blocks only."""
    kv_tokens: int | None
    """Tokens whose keys and values fit the cache; None: no fixed number."""

    def verify(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
        """Verify a batch; results in its order. New prompts and follow-ups may be mixed.

        Raises:
            BadInput: an empty prefix, ids outside the vocabulary, or more positions than `max_positions`.
            EngineError: the pass failed; sessions are unchanged.
        """

    def release(self, session: str) -> None:
        """Release a session; an unknown one is no error."""

    def close(self) -> None:
        """Free the model."""
