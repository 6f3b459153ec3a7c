"""A model's drafting ahead of a stream's verdicts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set

from testbed.clock import Clock
from testbed.errors import ModelError
from testbed.ue.drafters.base import Choose, Drafter, DraftSequence, DraftToken
from testbed.ue.pace import Pace
from testbed.ue.windows.stream_choice import StreamChoice

TURNS = 4
"""Turns of the event loop that a message which has arrived needs to reach the session."""


class ModelAhead:
    """A model's sequence that continues its own tokens while the target commits the same or other ones."""

    def __init__(self, drafter: Drafter, choose: Choose | None, pace: Pace, clock: Clock, choice: StreamChoice) -> None:
        self._drafter, self._choose, self._pace, self._clock, self._choice = drafter, choose, pace, clock, choice
        self._sequence: DraftSequence | None = None
        self._prompt: list[int] = []
        self._drafted: list[DraftToken] = []
        """Drafted tokens after those that the sequence holds as committed."""
        self._pending: list[int] = []
        """Committed tokens after those that the sequence holds as committed."""
        self._right = True
        """Whether `_drafted` and `_pending` agree as far as both go."""
        self._paid = self._count = self._void = 0
        """Committed tokens whose computation was paid for; drafted and void tokens since the last `counts`."""
        self._seconds = self._unsent_s = 0.0
        self.full = False
        """Whether the drafter's context is full."""

    def begin(self, prompt: list[int]) -> None:
        """Set the prompt; the sequence is opened when the first token is drafted."""
        self._prompt = prompt

    @property
    def tokens(self) -> list[DraftToken]:
        """Drafted tokens that continue the committed ones; none if the target has committed other tokens."""
        return self._drafted[len(self._pending) :] if self._right else []

    @property
    def ahead(self) -> int:
        """Number of `tokens`."""
        return max(0, len(self._drafted) - len(self._pending)) if self._right else 0

    def ended(self, ends: Set[int]) -> bool:
        """Whether the last of `tokens` ends the output."""
        return self.ahead > 0 and self._drafted[-1].id in ends

    def commit(self, ids: Sequence[int]) -> None:
        """Append committed tokens, and compare them with what was drafted."""
        for token in ids:
            place = len(self._pending)
            if self._right and place < len(self._drafted):
                self._right = self._drafted[place].id == token
                self._choice.compared(int(self._right), int(not self._right))
                self._void += 0 if self._right else len(self._drafted) - place
            self._pending.append(token)

    async def draft_one(self) -> bool:
        """Draft a token; returns whether there are tokens that continue the committed ones."""
        try:
            await self._follow()
            start_s, begun_s = self._clock.time(), self._pace.begin()
            assert self._sequence is not None
            self._drafted.append(self._sequence.draft_one())
        except ModelError:
            self.full = True
            return True
        self._count += 1
        await self._pace.drafted(1, self._paid, begun_s, len(self._drafted) - 1)
        seconds = self._clock.time() - start_s
        self._seconds += seconds
        self._unsent_s += seconds
        self._choice.drafted(seconds)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return self.ahead > 0

    def counts(self) -> tuple[int, int, float]:
        """Numbers of drafted and of void tokens, and the drafting time [s], since the last call."""
        found = self._count, self._void, self._seconds
        self._count, self._void, self._seconds = 0, 0, 0.0
        return found

    def unsent_s(self) -> float:
        """Drafting time [s] since the last call."""
        found, self._unsent_s = self._unsent_s, 0.0
        return found

    def close(self) -> None:
        """Free the sequence."""
        if self._sequence is not None:
            self._sequence.close()

    async def _follow(self) -> None:
        """Roll the sequence back to the committed tokens, unless its drafted tokens agree with them and go beyond."""
        begun_s = self._pace.begin()
        if self._sequence is None:
            text, self._pending = [*self._prompt, *self._pending], []
            drafter, choose = self._drafter, self._choose
            self._sequence = drafter.open(text) if choose is None else drafter.open(text, choose=choose)
            await self._opened(len(text), begun_s)
        while len(self._pending) > len(self._drafted) or not self._right:
            begun_s = self._pace.begin()
            pending, drafted = self._pending, [token.id for token in self._drafted]
            same = next(i for i, token in enumerate(pending) if drafted[i : i + 1] != [token])
            self._sequence.commit(same, pending[same])
            for token in pending[same + 1 :]:
                self._sequence.commit(0, token)
            self._pending, self._drafted, self._right = [], [], True
            await self._opened(len(pending) - same - 1, begun_s)

    async def _opened(self, count: int, begun_s: float) -> None:
        assert self._sequence is not None
        self._paid = self._sequence.length
        if count:
            await self._pace.opened(count, begun_s)
