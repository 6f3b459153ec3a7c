"""Drafting of a session: its sequence, its windows, and committed tokens that the drafter has not computed yet."""

from __future__ import annotations

from collections.abc import Set

import numpy as np
from numpy.typing import NDArray

from testbed.protocols.base import Drafted
from testbed.protocols.sampling import Draws
from testbed.ue.drafters.base import Drafter, DraftSequence, DraftToken, IndexedSequence
from testbed.ue.drafters.sampler import DraftSampler
from testbed.ue.pace import Pace
from testbed.ue.windows.base import WindowPolicy, window_of


class WindowDrafter:
    """Drafts windows after one prompt; the drafter's sequence is opened with the first window.

    Args:
        sampler: draws the tokens; None: the most likely ones are taken.
        pace: how long drafting takes.
        hidden_bits: bits per element of uploaded hidden states.
    """

    def __init__(
        self, drafter: Drafter, policy: WindowPolicy, sampler: DraftSampler | None, pace: Pace, hidden_bits: int
    ) -> None:
        self._drafter, self._policy, self._sampler = drafter, policy, sampler
        self._pace, self._hidden_bits = pace, hidden_bits
        self._prompt: list[int] = []
        self._sequence: DraftSequence | None = None
        self._indexed: IndexedSequence | None = None
        self._known = 0
        self.replaced: int | None = None
        """The last committed token, where the UE drew it and the BS does not know it yet."""

    def begin(self, prompt: list[int]) -> None:
        """Set the prompt of all windows that follow."""
        self._prompt, self._sequence, self._known, self.replaced = prompt, None, 0, None

    async def catch_up(self, committed: NDArray[np.int32]) -> None:
        """Compute committed tokens that it did not draft: the prompt, and tokens that the BS decoded alone.

        Raises:
            BadInput: the drafter refuses the prompt.
        """
        if self._sequence is None:
            self._sequence = self._open()
            self._indexed = self._sequence if isinstance(self._sequence, IndexedSequence) else None
        for token in committed[self._sequence.length :].tolist():
            self._sequence.commit(0, token)
        await self._opened(len(committed) - self._known)
        self._known = len(committed)

    async def _opened(self, count: int, drafted: int = 0) -> None:
        """Wait for the passes over `count` committed and `drafted` new tokens, or, of an index, for those it needed."""
        if self._indexed is not None:
            count, drafted = self._indexed.passes()
        if count:
            await self._pace.opened(count)
        if drafted:
            await self._pace.drafted(drafted, self._known)

    def _open(self) -> DraftSequence:
        if self._sampler is None:
            return self._drafter.open(self._prompt)
        return self._drafter.open(self._prompt, choose=self._sampler)

    async def draft(self, number: int, room: int, ends: Set[int]) -> Drafted:
        """The window of a round: ended by the policy, an end id, or the room left for the output.

        Tokens that the policy leaves out cost their drafting time; `Drafted.left_out` counts them.
        """
        if self._sampler:
            self._sampler.begin(number)
        tokens = self._tokens(room, ends)
        count = window_of(self._policy, tokens) if tokens else 0
        ids = np.array([t.id for t in tokens], np.int32)
        hidden = np.array([t.hidden for t in tokens], np.float16).reshape(len(tokens), self._drafter.hidden_size)
        q = self._sampler.window(self._drafter.vocab_size)[:count] if self._sampler else None
        await self._opened(0, len(tokens))
        return Drafted(ids[:count], hidden[:count], q, self.replaced, self._hidden_bits, len(tokens) - count)

    def _tokens(self, room: int, ends: Set[int]) -> list[DraftToken]:
        sequence, indexed = self._sequence, self._indexed
        assert sequence is not None
        if indexed and not indexed.ready():
            return []
        limit = min(self._policy.max_window, room)
        tokens = [sequence.draft_one()]
        while len(tokens) < limit and tokens[-1].id not in ends and self._policy.keep_drafting(tokens):
            if indexed and not indexed.ready():
                break
            tokens.append(sequence.draft_one())
        return tokens

    @property
    def draws(self) -> Draws | None:
        """Random numbers of the round; None where nothing is drawn."""
        return self._sampler.draws if self._sampler else None

    def commit(self, accepted: int, token: int) -> None:
        """Roll back to the first `accepted` tokens of the window, and append the target's token."""
        assert self._sequence is not None
        self._sequence.commit(accepted, token)
        self._known = self._sequence.length

    def close(self) -> None:
        """Free the sequence."""
        if self._sequence is not None:
            self._sequence.close()
