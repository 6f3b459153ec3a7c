"""Drafters without a model: they copy what followed the end of the text where it occurred before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from testbed.errors import BadInput, ModelError
from testbed.ue.drafters.base import Choose, DraftToken
from testbed.ue.drafters.lookup import Lookup, Match
from testbed.ue.drafters.suffix_automaton import BREAK
from testbed.ue.drafters.text_memory import TextMemory


@dataclass(frozen=True)
class IndexRule:
    """When an index drafts, and how much.

    Attributes:
        floor: shortest match from which it drafts.
        reach: most tokens of a window, as a multiple of the match.
    """

    floor: int
    reach: int


class IndexDrafter:
    """Implements `Drafter` by lookups; a sequence drafts nothing where no match is long enough.

    Drafted tokens have no hidden states and no statistics; where they are drawn, their distribution is a point mass.

    Args:
        vocab_size: ids of the tokenizer.
        context: positions of a sequence.
        fingerprint: stands for that of a model.
        lookup: makes the index of a sequence.
        rule: when it drafts.
        memory: earlier requests are added to it; None: none are kept.
    """

    hidden_size = 1

    def __init__(
        self,
        vocab_size: int,
        context: int,
        fingerprint: str,
        lookup: Callable[[], Lookup],
        rule: IndexRule,
        memory: TextMemory | None = None,
    ) -> None:
        self.vocab_size, self.context, self.fingerprint = vocab_size, context, fingerprint
        self.lookup, self.rule, self.memory = lookup, rule, memory

    def open(
        self, prompt: Sequence[int], *, distributions: bool = False, choose: Choose | None = None
    ) -> IndexSequence:
        """See `Drafter.open`."""
        ids = [int(token) for token in prompt]
        if not ids:
            raise BadInput("the prompt is empty: give one token id or more")
        if len(ids) > self.context:
            raise BadInput(f"the prompt has {len(ids)} tokens, but the drafter's context {self.context}")
        if min(ids) < 0 or max(ids) >= self.vocab_size:
            raise BadInput(f"the prompt has ids outside the vocabulary of {self.vocab_size}")
        return IndexSequence(self, ids, distributions, choose)

    def close(self) -> None:
        """Nothing to free."""


class IndexSequence:
    """Implements `IndexedSequence`."""

    def __init__(self, drafter: IndexDrafter, prompt: list[int], distributions: bool, choose: Choose | None) -> None:
        self._drafter, self._distributions, self._choose = drafter, distributions, choose
        self._lookup = drafter.lookup()
        self._drafted: list[int] = []
        self._match = Match(0, (), 0)
        self._closed = False
        self._extend(prompt)

    @property
    def length(self) -> int:
        """Number of committed tokens, the prompt included."""
        return len(self._lookup.text)

    @property
    def match(self) -> int:
        """Length of the longest match."""
        return self._match.length

    def ready(self) -> bool:
        """See `IndexedSequence.ready`."""
        return self._next() is not None

    def draft_one(self) -> DraftToken:
        """See `DraftSequence.draft_one`.

        Raises:
            ModelError: there is nothing to draft, or the context is full.
        """
        token = self._next()
        if token is None:
            raise ModelError("the index has nothing to draft")
        position = self.length + len(self._drafted)
        if position >= self._drafter.context:
            raise ModelError(f"the drafter's context of {self._drafter.context} tokens is full")
        probs = None
        if self._distributions or self._choose is not None:
            probs = np.zeros(self._drafter.vocab_size, np.float32)
            probs[token] = 1.0
            token = self._choose(probs, position) if self._choose is not None else token
        self._drafted.append(token)
        hidden = np.zeros(self._drafter.hidden_size, np.float16)
        return DraftToken(token, 1.0, 0.0, 1.0, 0.0, hidden, probs if self._distributions else None)

    def proposed(self, most: int, floor: int = 0) -> list[int]:
        """Up to `most` tokens that `draft_one` would draft after the committed prefix; none of them counts as drafted.

        Args:
            floor: shortest match that counts, where it is more than the rule's.

        Raises:
            RuntimeError: tokens were drafted since the last commit.
        """
        if self._drafted:
            raise RuntimeError("tokens were drafted since the last commit")
        most = min(most, self._drafter.context - self.length) if self.match >= floor else 0
        while len(self._drafted) < most and (token := self._next()) is not None:
            self._drafted.append(token)
        found, self._drafted = self._drafted, []
        return found

    def commit(self, accepted: int, token: int) -> None:
        """See `DraftSequence.commit`."""
        if not 0 <= accepted <= len(self._drafted):
            raise ValueError(f"{accepted} tokens accepted of {len(self._drafted)} drafted")
        if not 0 <= token < self._drafter.vocab_size:
            raise ValueError(f"token {token} is outside the vocabulary of {self._drafter.vocab_size}")
        self._extend([*self._drafted[:accepted], token])

    def passes(self) -> tuple[int, int]:
        """See `IndexedSequence.passes`: none."""
        return 0, 0

    def close(self) -> None:
        """Add the text to the drafter's memory; a second call does nothing."""
        if not self._closed and self._drafter.memory is not None:
            self._drafter.memory.add(self._lookup.text)
        self._closed = True

    def _extend(self, ids: Sequence[int]) -> None:
        for token in ids:
            self._lookup.append(token)
        self._drafted, self._match = [], self._lookup.longest()

    def _next(self) -> int | None:
        """The token that comes next at the earlier occurrence; of this text itself, drafted tokens included."""
        match, drafted, rule = self._match, self._drafted, self._drafter.rule
        if match.length < rule.floor or len(drafted) >= rule.reach * match.length:
            return None
        place = match.place + len(drafted)
        if place < len(match.text):
            return match.text[place] if match.text[place] != BREAK else None
        return drafted[place - len(match.text)] if match.text is self._lookup.text else None
