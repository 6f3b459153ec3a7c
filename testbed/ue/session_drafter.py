"""Drafting of a session: its sequence, its windows, one of them possibly ahead of a verdict, and committed tokens that
the drafter has not computed yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set

import numpy as np
from numpy.typing import NDArray

from testbed.errors import ModelError
from testbed.protocols.base import Drafted
from testbed.protocols.sampling import Draws
from testbed.ue.drafters.base import Choose, Drafter, DraftSequence, DraftToken, IndexedSequence
from testbed.ue.drafters.sampler import DraftSampler
from testbed.ue.pace import Pace
from testbed.ue.windows.base import WindowPolicy, window_of

TURNS = 4
"""Turns of the event loop in which a message that has arrived reaches the session that waits for it."""


class WindowDrafter:
    """Drafts windows after one prompt; the drafter's sequence is opened with the first window.

    Args:
        choose: chooses the tokens; None: the most likely ones are taken.
        pace: how long drafting takes.
        hidden_bits: bits per element of uploaded hidden states.
        sure: probability from which a token needs no verification; a window ends with the first one below. None: all
            tokens need it.
    """

    def __init__(
        self, drafter: Drafter, policy: WindowPolicy, choose: Choose | None, pace: Pace, hidden_bits: int,
        sure: float | None = None,
    ) -> None:  # fmt: skip
        self._drafter, self._policy, self._choose = drafter, policy, choose
        self._sampler = choose if isinstance(choose, DraftSampler) else None
        self._pace, self._hidden_bits, self._sure = pace, hidden_bits, sure
        self._prompt: list[int] = []
        self._sequence: DraftSequence | None = None
        self._indexed: IndexedSequence | None = None
        self._known = self._ahead = 0
        """Committed tokens whose computation was paid for, and those of them that the sequence holds as drafted."""
        self.guess: int | None = None
        """The token that is expected after the window that is away; None: there is no guess."""
        self.drafted_ahead = 0
        """Tokens drafted since that window was sent."""
        self.replaced: int | None = None
        """The last committed token, where the UE drew it and the BS does not know it yet."""

    def begin(self, prompt: list[int]) -> None:
        """Set the prompt of all windows that follow."""
        self._prompt, self._sequence, self._indexed = prompt, None, None
        self._known, self._ahead, self.guess, self.replaced = 0, 0, None, None

    async def catch_up(self, committed: NDArray[np.int32]) -> None:
        """Compute committed tokens that it did not draft: the prompt, and tokens that the BS decoded alone.

        Raises:
            BadInput: the drafter refuses the prompt.
        """
        begun_s = self._pace.begin()
        if self._sequence is None:
            self._sequence = self._open()
            self._indexed = self._sequence if isinstance(self._sequence, IndexedSequence) else None
        for token in committed[self._sequence.length + self._ahead :].tolist():
            self._sequence.commit(self._ahead, token)
            self._ahead = 0
        await self._opened(begun_s, len(committed) - self._known)
        self._known = len(committed)

    async def _opened(self, begun_s: float, count: int, drafted: int = 0, before: int = 0) -> None:
        """Wait for the passes over `count` committed and `drafted` new tokens, or, of an index, for those it needed.

        Args:
            begun_s: time at which they began (`Pace.begin`).
            before: tokens drafted ahead before those.
        """
        if self._indexed is not None:
            count, drafted = self._indexed.passes()
        if count:
            await self._pace.opened(count, begun_s)
            begun_s = self._pace.begin()
        if drafted:
            await self._pace.drafted(drafted, self._known, begun_s, before)

    def _open(self) -> DraftSequence:
        if self._choose is None:
            return self._drafter.open(self._prompt)
        return self._drafter.open(self._prompt, choose=self._choose)

    async def draft(self, number: int, room: int, ends: Set[int]) -> Drafted:
        """The window of a round: ended by the policy, an end id, or the room left for the output.

        Tokens that the policy leaves out cost their drafting time; `Drafted.left_out` counts them.
        """
        if self._sampler:
            self._sampler.begin(number)
        tokens: list[DraftToken] = []
        begun_s = self._pace.begin()
        while self._wants(tokens, room, ends):
            assert self._sequence is not None
            tokens.append(self._sequence.draft_one())
        await self._opened(begun_s, 0, len(tokens))
        return self._window(tokens)

    def _wants(self, tokens: list[DraftToken], room: int, ends: Set[int]) -> bool:
        """Whether a window that begins with these tokens gets another one."""
        if tokens:
            more = len(tokens) < min(self._policy.max_window, room) and tokens[-1].id not in ends
            if not (more and self._policy.keep_drafting(tokens)) or (self._sure and tokens[-1].top1 < self._sure):
                return False
        return self._indexed is None or self._indexed.ready()

    def _window(self, tokens: list[DraftToken]) -> Drafted:
        """What is sent of drafted tokens."""
        count = window_of(self._policy, tokens) if tokens else 0
        ids = np.array([t.id for t in tokens], np.int32)
        hidden = np.array([t.hidden for t in tokens], np.float16).reshape(len(tokens), self._drafter.hidden_size)
        q = self._sampler.window(self._drafter.vocab_size)[:count] if self._sampler else None
        sure = 0 if self._sure is None else sum(token.top1 >= self._sure for token in tokens[:count])
        return Drafted(ids[:count], hidden[:count], q, self.replaced, self._hidden_bits, len(tokens) - count, sure)

    # ------------------------------------------------------------ ahead of a verdict

    async def draft_ahead(self, away: Drafted, room: int, ends: Set[int]) -> Drafted | None:
        """The window after one that is away, and the guess before it; None: there is nothing to draft ahead.

        May be cancelled between two tokens; between them, messages that have arrived are handled.
        """
        self.guess, self.drafted_ahead = None, 0
        if away.left_out or room <= 0 or (len(away.ids) and int(away.ids[-1]) in ends):
            return None
        tokens: list[DraftToken] = []
        try:
            if not self._wants([], 1, ends):
                return None
            self.guess = (await self._draft_one_ahead()).id
            if self.guess in ends:
                return None
            while self._wants(tokens, room, ends):
                tokens.append(await self._draft_one_ahead())
        except ModelError:  # no place is left for more tokens
            if not tokens:
                return None
        return self._window(tokens)

    async def _draft_one_ahead(self) -> DraftToken:
        assert self._sequence is not None
        begun_s = self._pace.begin()
        token = self._sequence.draft_one()
        self.drafted_ahead += 1
        await self._opened(begun_s, 0, 1, self.drafted_ahead - 1)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return token

    def advance(self, accepted: int) -> None:
        """Commit the first `accepted` tokens of the window and the guess; what was drafted after them stays."""
        self._ahead += accepted + 1
        self._known += accepted + 1

    @property
    def draws(self) -> Draws | None:
        """Random numbers of the round; None where nothing is drawn."""
        return self._sampler.draws if self._sampler else None

    def commit(self, accepted: int, token: int) -> None:
        """Roll back to the first `accepted` tokens of the window, and append the target's token."""
        assert self._sequence is not None
        self._sequence.commit(self._ahead + accepted, token)
        self._ahead, self._known = 0, self._sequence.length

    def close(self) -> None:
        """Free the sequence."""
        if self._sequence is not None:
            self._sequence.close()
