"""The drafter seam: what a UE session needs of a small model, whatever runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Choose = Callable[[NDArray[np.float32], int], int]
"""Chooses the token at a position of the sequence from the probabilities [vocab_size] at temperature 1."""


@dataclass(frozen=True, slots=True)
class DraftToken:
    """One drafted token with the statistics of its distribution.

    Statistics are those of the distribution that the token was taken from (softmax of the logits at temperature 1,
    padded vocabulary rows left out). The hidden state is the final-layer, normalised state that produced those logits:
    the state that *predicts* the token.
    """

    id: int
    top1: float
    """Probability of the most likely token."""
    entropy: float
    """Entropy of the distribution in nats."""
    margin: float
    """Top-1 minus top-2 probability."""
    logit_std: float
    """Standard deviation of the logits."""
    hidden: NDArray[np.float16]
    """[hidden_size]"""
    probs: NDArray[np.float32] | None = None
    """[vocab_size], only where the sequence was opened with `distributions=True`."""


class DraftSequence(Protocol):
    """One sequence in a drafter's context; its committed prefix starts as the prompt."""

    @property
    def length(self) -> int:
        """Number of committed tokens, the prompt included."""

    def draft_one(self) -> DraftToken:
        """Draft the next token (the argmax, or what the sequence's `choose` takes) after the committed prefix and the
        tokens drafted since.

        Raises:
            ModelError: the context is full.
        """

    def commit(self, accepted: int, token: int) -> None:
        """Commit the first `accepted` drafted tokens and then `token`; forget the other drafted tokens.

        The cache is rolled back to the committed prefix, never computed anew.

        Raises:
            ValueError: `accepted` is negative or more than was drafted, or `token` is outside the vocabulary.
        """

    def close(self) -> None:
        """Free the sequence's place and its cache; a second call does nothing."""


@runtime_checkable
class IndexedSequence(DraftSequence, Protocol):
    """A sequence that may have nothing to draft, and whose tokens may cost no pass of a model."""

    def ready(self) -> bool:
        """Whether `draft_one` has a token to draft; otherwise the window ends here, possibly empty."""

    def passes(self) -> tuple[int, int]:
        """Tokens that a model computed since the last call: of the committed text, and drafted ones."""


class Drafter(Protocol):
    """A small model that drafts, with room for several sequences."""

    vocab_size: int
    """Rows of the output head that are real tokens; padded rows are masked."""
    hidden_size: int
    context: int
    """Positions that one sequence may take."""
    fingerprint: str
    """Fingerprint of its weights (`testbed.assets.fingerprints`)."""

    def open(
        self, prompt: Sequence[int], *, distributions: bool = False, choose: Choose | None = None
    ) -> DraftSequence:
        """Prefill a prompt (ids, at least one) and return its sequence.

        Args:
            distributions: whether drafted tokens come with the probabilities of all tokens.
            choose: chooses each drafted token, called once for each; None: the most likely one.

        Raises:
            BadInput: the prompt is empty, beyond the context, or has ids outside the vocabulary.
            ModelError: no place is left for another sequence.
        """

    def close(self) -> None:
        """Free the model."""
