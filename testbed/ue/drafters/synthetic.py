"""A drafter without a model: it agrees with the synthetic target with a given probability, token by token.

Everything it drafts is a pure function of (seeds, prefix), so that a replay drafts the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from testbed.assets.fingerprints import SYNTHETIC
from testbed.errors import BadInput, ModelError
from testbed.synthetic import MIN_VOCAB, Peaked, next_token, noise, runner_up, uniform
from testbed.ue.drafters.base import Choose, DraftToken


class SyntheticDrafter:
    """Implements `Drafter`. With probability `alpha` a drafted token is the target's; else it is the runner-up."""

    def __init__(
        self,
        *,
        vocab_size: int,
        alpha: float,
        hidden_size: int = 64,
        context: int = 4096,
        max_sequences: int = 1024,
        seed: int = 0,
        target_seed: int = 0,
    ) -> None:
        """Set up the drafter.

        Args:
            vocab_size: tokens of the language, as the synthetic engine was given them.
            alpha: probability of agreeing with the target at one position, given the same prefix, in [0, 1].
            max_sequences: sequences that may be open at once.
            seed: decides where it agrees, its statistics and its hidden states.
            target_seed: the synthetic engine's seed.

        Raises:
            BadInput: alpha outside [0, 1], or fewer than `MIN_VOCAB` tokens.
        """
        if not 0.0 <= alpha <= 1.0:
            raise BadInput(f"the acceptance rate must be in [0, 1], got {alpha}")
        if vocab_size < MIN_VOCAB:
            raise BadInput(f"a synthetic vocabulary needs {MIN_VOCAB} tokens or more, got {vocab_size}")
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.context = context
        self.fingerprint = SYNTHETIC
        self.max_sequences = max_sequences
        self.alpha = alpha
        self.seed = seed
        self.target_seed = target_seed
        self._open: set[SyntheticSequence] = set()

    def open(
        self, prompt: Sequence[int], *, distributions: bool = False, choose: Choose | None = None
    ) -> SyntheticSequence:
        """See `Drafter.open`."""
        ids = [int(token) for token in prompt]
        if not ids:
            raise BadInput("the prompt is empty: give one token id or more")
        if len(ids) >= self.context:
            raise BadInput(f"the prompt has {len(ids)} tokens, but the drafter's context {self.context}")
        if not all(0 <= token < self.vocab_size for token in ids):
            raise BadInput(f"the prompt has ids outside the vocabulary of {self.vocab_size}")
        if len(self._open) >= self.max_sequences:
            raise ModelError(f"all {self.max_sequences} sequences of the drafter are taken: close one first")
        sequence = SyntheticSequence(self, ids, distributions, choose)
        self._open.add(sequence)
        return sequence

    def forget(self, sequence: SyntheticSequence) -> None:
        """Free a sequence's place."""
        self._open.discard(sequence)

    def agrees(self, prefix: Sequence[int]) -> bool:
        """Whether the token drafted after a prefix is the target's."""
        return uniform(prefix, self.seed, "agree") < self.alpha

    def predict(self, prefix: Sequence[int], distributions: bool) -> DraftToken:
        """The token drafted after a prefix, with statistics that are sharper where the drafter agrees."""
        best = next_token(prefix, self.vocab_size, self.target_seed)
        second = runner_up(prefix, self.vocab_size, self.target_seed)
        draw = uniform(prefix, self.seed, "sharpness")
        if self.agrees(prefix):
            shape = Peaked(best, second, self.vocab_size, draw**0.5)
        else:
            shape = Peaked(second, best, self.vocab_size, draw**2)
        return DraftToken(
            id=shape.best,
            top1=shape.top1,
            entropy=shape.entropy,
            margin=shape.top1 - shape.top2,
            logit_std=shape.logit_std,
            hidden=noise(prefix, self.seed, "draft-hidden", self.hidden_size).astype(np.float16),
            probs=shape.probs() if distributions else None,
        )

    def close(self) -> None:
        """Close all sequences."""
        self._open.clear()


class SyntheticSequence:
    """Implements `DraftSequence`."""

    def __init__(
        self, drafter: SyntheticDrafter, prompt: list[int], distributions: bool, choose: Choose | None = None
    ) -> None:
        self._drafter = drafter
        self._ids = prompt
        self._committed = len(prompt)
        self._distributions, self._choose = distributions, choose

    @property
    def length(self) -> int:
        """Number of committed tokens, the prompt included."""
        return self._committed

    def draft_one(self) -> DraftToken:
        """See `DraftSequence.draft_one`."""
        if len(self._ids) >= self._drafter.context:
            raise ModelError(f"the drafter's context of {self._drafter.context} tokens is full")
        token = self._drafter.predict(self._ids, self._distributions or self._choose is not None)
        if self._choose is not None and token.probs is not None:
            chosen = self._choose(token.probs, len(self._ids))
            token = replace(token, id=chosen, probs=token.probs if self._distributions else None)
        self._ids.append(token.id)
        return token

    def commit(self, accepted: int, token: int) -> None:
        """See `DraftSequence.commit`."""
        drafted = len(self._ids) - self._committed
        if not 0 <= accepted <= drafted:
            raise ValueError(f"{accepted} tokens accepted of {drafted} drafted")
        if not 0 <= token < self._drafter.vocab_size:
            raise ValueError(f"token {token} is outside the vocabulary of {self._drafter.vocab_size}")
        del self._ids[self._committed + accepted :]
        self._ids.append(token)
        self._committed = len(self._ids)

    def close(self) -> None:
        """Free the sequence's place; a second call does nothing."""
        self._drafter.forget(self)
