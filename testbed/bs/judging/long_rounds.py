"""Rounds that take long to decide: decided beside the event loop, a few at a time.

A sampled round of K tokens reads up to K + 1 distributions over the vocabulary, coupled sampling and block verification
all of them, and a decision head reads the hidden states of both models at every mismatch: seconds of work for the
largest windows and models, in which the base station would receive nothing and begin no pass. Passes never wait for it:
what may wait is bounded where windows are taken, in all and for each UE (`Round.target_bytes`, `Room.crowded`). UEs
take turns within sampled rounds, too (`Choices`, `Drawing`).
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from testbed.bs.closing import SessionCloser
from testbed.bs.engines.coupled import Choices
from testbed.bs.engines.runner import MOST_VALUES, EngineRunner
from testbed.bs.intake import Intake
from testbed.bs.isolation import apart
from testbed.bs.judging.acceptance import Acceptance, Judged
from testbed.bs.judging.distributions import Drawing
from testbed.bs.pending import Round
from testbed.bs.room import Load
from testbed.bs.sessions import Session
from testbed.clock import Clock

Ready = Sequence[tuple[Session, Round]]
"""Verified rounds that can be judged."""


class SetAside(NamedTuple):
    """A round that was set aside, to be decided or for its tokens to be chosen (`Round.choices`)."""

    session: Session
    round_: Round
    since_s: float
    drawing: Drawing | None = None
    """Its decision, where its tokens are drawn."""

    @property
    def parts(self) -> Choices | Drawing | None:
        """What takes several turns; None: it is decided in one."""
        return self.drawing if self.round_.choices is None else self.round_.choices


class LongRounds:
    """Rounds that were set aside; the arguments are parts of the base station."""

    def __init__(
        self,
        acceptance: Acceptance,
        intake: Intake,
        runner: EngineRunner,
        closer: SessionCloser,
        clock: Clock,
    ) -> None:
        self._acceptance, self._runner, self._closer, self._clock = acceptance, runner, closer, clock
        self._sessions, self._offer = intake.sessions, intake.offer
        self._aside: dict[bytes, deque[SetAside]] = {}
        """Rounds by UE."""
        self._served: dict[bytes, int] = {}
        self._level = 0
        """Values read for each UE, and for the one whose turn was last, before that turn; a UE for which nothing waited
        has at least as many (start-time fair queueing, Goyal et al., 1996).
        """
        self._filled = asyncio.Event()

    def split(self, ready: Ready) -> tuple[Ready, Ready]:
        """Verified rounds to decide at once, and those to set aside: all that read values, if they read many."""
        read = [self._values(*one) for one in ready]
        if sum(read) <= MOST_VALUES:
            return ready, ()
        now = [one for one, values in zip(ready, read, strict=True) if not values]
        return now, [one for one, values in zip(ready, read, strict=True) if values]

    def target_bytes(self, session: Session, round_: Round) -> int:
        """See `Round.target_bytes`."""
        drafted = len(round_.window.ids)
        sampled = session.drawn or not session.sampling.greedy
        hidden = self._offer.hidden_size if self._acceptance.needs_hidden(session, round_) else 0
        return 4 * (drafted + 1) * (self._offer.vocab_size if sampled else hidden) if drafted else 0

    @property
    def load(self) -> Load:
        """Windows that are set aside."""
        found = (one[:2] for rounds in self._aside.values() for one in rounds)
        waiting = [round_ for session, round_ in found if len(round_.window.ids) or not session.alone]
        return Load(len(waiting), sum(round_.size_bytes for round_ in waiting))

    def set_aside(self, rounds: Ready) -> None:
        """Set rounds aside; those whose sessions were closed meanwhile are dropped."""
        now_s = self._clock.time()
        for session, round_ in rounds:
            drawing = Drawing(session, round_, self._offer.vocab_size) if session.drawn else None
            self._of(session).append(SetAside(session, round_, now_s, drawing))
        kept = {ue: deque(one for one in waiting if self._waits(*one[:2])) for ue, waiting in self._aside.items()}
        self._aside = {ue: waiting for ue, waiting in kept.items() if waiting}
        if self._aside:
            self._filled.set()

    async def run(
        self,
        answer: Callable[[Sequence[Judged]], Awaitable[None]],
        go_on: Callable[[Session, Round], Awaitable[None]],
    ) -> None:
        """Decide the rounds that were set aside until cancelled, and hand them to `answer`; those whose tokens are
        chosen now, to `go_on`.
        """
        while True:
            await self._filled.wait()
            if not self._aside:
                self._filled.clear()
                continue
            taken = {one.session.name: one for one in self._next() if self._waits(*one[:2])}
            if not taken:
                continue
            work = functools.partial(apart, list(taken.values()), self._work)
            judged, failed = await self._runner.beside(work)
            await self._runner.judged(self._acceptance.by_hidden(judged))
            judged = [one for one in judged if self._waits(*one[:2])]
            for session, round_, _ in judged:
                round_.judge_s += self._clock.time() - taken[session.name].since_s
            await self._closer.fail_all((one.session, exc) for one, exc in failed if self._waits(*one[:2]))
            await answer(judged)
            for one in taken.values():
                if one.parts is not None and self._waits(*one[:2]):
                    await self._chosen(one, go_on)

    def _work(self, rounds: Sequence[SetAside]) -> list[Judged]:
        """Choose or draw the next tokens of rounds that take several turns, and decide the others."""
        for one in rounds:
            if one.parts is not None:
                one.parts.choose(MOST_VALUES)
        judged = self._acceptance.decide([one[:2] for one in rounds if one.parts is None])
        for session, round_, _, drawing in rounds:
            if drawing is not None and drawing.kept is not None:
                judged.append((session, round_, drawing.kept))
        return judged

    async def _chosen(self, one: SetAside, go_on: Callable[[Session, Round], Awaitable[None]]) -> None:
        """Go on with a round some of whose tokens were chosen: it waits for its UE's next turn, or all are chosen."""
        session, round_, since_s, _ = one
        if one.parts is not None and one.parts.left:
            self._of(session).appendleft(one)
            return
        assert round_.choices is not None
        round_.result, round_.choices = round_.choices.result, None
        round_.judge_s += self._clock.time() - since_s
        await go_on(session, round_)

    def _of(self, session: Session) -> deque[SetAside]:
        """The rounds of a session's UE that are set aside."""
        return self._aside.setdefault(self._sessions.owner(session.key[0]), deque())

    def _next(self) -> list[SetAside]:
        """The rounds whose turn it is: of the UEs for which least was read, as many as may be decided at once, and at
        least one.
        """
        found: list[SetAside] = []
        total = 0
        while self._aside:
            ue = min(self._aside, key=self._turn)
            waiting = self._aside[ue]
            total += (values := self._part(waiting[0]))
            if found and total > MOST_VALUES:
                break
            found.append(waiting.popleft())
            self._level = self._turn(ue)
            self._served[ue] = self._level + values
            del self._aside[ue]
            if waiting:
                self._aside[ue] = waiting
        self._served = {ue: read for ue, read in self._served.items() if read > self._level}
        return found

    def _turn(self, ue: bytes) -> int:
        """The lower, the earlier it is the turn of a UE; of equal ones, the first in `_aside`."""
        return max(self._level, self._served.get(ue, 0))

    def _part(self, one: SetAside) -> int:
        """Number of values that are read in the next turn of a round."""
        return self._values(*one[:2]) if one.parts is None else one.parts.part(MOST_VALUES)

    def _values(self, session: Session, round_: Round) -> int:
        """Number of values that decide about a round: probabilities, or elements of the hidden states of mismatches."""
        if session.drawn:
            return (len(round_.window.ids) + 1) * self._offer.vocab_size
        if not self._acceptance.needs_hidden(session, round_):
            return 0
        return len(round_.candidates()) * (session.drafter_hidden + self._offer.hidden_size)

    def _waits(self, session: Session, round_: Round) -> bool:
        """Whether the session is open and waits for this round."""
        return self._sessions.get(session.key) is session and session.current is round_
