"""A drafter that knows the target's output and errs at a given rate: a real target at any acceptance rate."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from testbed.errors import BadInput, ModelError
from testbed.ue.drafters.base import Choose, DraftToken

REPLAY = "replay"
"""Stands in for a fingerprint."""


class ReplayDrafter:
    """Implements `Drafter`. With probability `alpha` a drafted token is the target's, independently at each position.

    What it drafts is a pure function of (seed, prompt, position). Tokens carry no statistics, and their hidden states
    are zero.
    """

    def __init__(
        self,
        outputs: Mapping[tuple[int, ...], Sequence[int]],
        *,
        vocab_size: int,
        alpha: float,
        context: int,
        hidden_size: int = 64,
        seed: int = 0,
    ) -> None:
        """Set up the drafter.

        Args:
            outputs: by prompt ids, what the target decodes greedily after them.
            vocab_size: ids of the tokenizer; two or more, so that there is a wrong one.
            alpha: probability of agreeing with the target at one position, in [0, 1].
            context: positions that one sequence may take.

        Raises:
            BadInput: alpha outside [0, 1], or a vocabulary of one.
        """
        if not 0 <= alpha <= 1:
            raise BadInput(f"the acceptance rate must lie in [0, 1], not {alpha}")
        if vocab_size < 2:
            raise BadInput(f"a vocabulary has 2 ids or more, not {vocab_size}")
        self._outputs = outputs
        self.vocab_size, self.context, self.hidden_size = vocab_size, context, hidden_size
        self.fingerprint = REPLAY
        self._alpha, self._seed = alpha, seed

    def open(
        self, prompt: Sequence[int], *, distributions: bool = False, choose: Choose | None = None
    ) -> ReplaySequence:
        """See `Drafter.open`.

        Raises:
            BadInput: a prompt whose output it was not given, or distributions, which it has not.
        """
        if distributions or choose is not None:
            raise BadInput("a replay has no distributions to draw from; use greedy, fh or sh")
        known = self._outputs.get(tuple(int(i) for i in prompt))
        if known is None:
            raise BadInput("a replay drafts only after prompts whose outputs it was given")
        digest = hashlib.blake2b(np.asarray(prompt, np.int32).tobytes(), digest_size=8).digest()
        random = np.random.default_rng([self._seed, int.from_bytes(digest, "little")])
        right = random.random(len(known)) < self._alpha
        return ReplaySequence(self, len(prompt), [int(t) for t in known], right.tolist())

    def close(self) -> None:
        """Nothing to free."""


class ReplaySequence:
    """Implements `DraftSequence`."""

    def __init__(self, drafter: ReplayDrafter, prompt_len: int, known: list[int], right: list[bool]) -> None:
        self._vocab_size, self._context = drafter.vocab_size, drafter.context
        self._hidden = np.zeros(drafter.hidden_size, np.float16)
        self._prompt_len, self._known, self._right = prompt_len, known, right
        self._committed, self._drafted = prompt_len, 0

    @property
    def length(self) -> int:
        """Number of committed tokens, the prompt included."""
        return self._committed

    def draft_one(self) -> DraftToken:
        """See `DraftSequence.draft_one`; beyond the known output its last token comes again."""
        place = self._committed + self._drafted
        if place >= self._context:
            raise ModelError(f"the drafter's context of {self._context} tokens is full")
        index = min(place - self._prompt_len, len(self._known) - 1)
        token = self._known[index] if self._right[index] else (self._known[index] + 1) % self._vocab_size
        self._drafted += 1
        return DraftToken(id=token, top1=1.0, entropy=0.0, margin=1.0, logit_std=0.0, hidden=self._hidden)

    def commit(self, accepted: int, token: int) -> None:
        """See `DraftSequence.commit`."""
        if not 0 <= accepted <= self._drafted:
            raise ValueError(f"{accepted} tokens accepted of {self._drafted} drafted")
        if not 0 <= token < self._vocab_size:
            raise ValueError(f"token {token} is outside the vocabulary of {self._vocab_size}")
        self._committed, self._drafted = self._committed + accepted + 1, 0

    def close(self) -> None:
        """Nothing to free."""
