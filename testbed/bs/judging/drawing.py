"""Sampled rounds that take long to decide: decided beside the event loop, one after another.

A round of K tokens reads up to K + 1 distributions over the vocabulary: seconds of work for the largest windows and
vocabularies, in which the base station would receive nothing and begin no pass. Passes never wait for it: what may wait
is bounded where windows are taken, in all and for each UE (`Round.probs_bytes`, `Room.crowded`).
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from testbed.bs.closing import SessionCloser
from testbed.bs.engines.runner import EngineRunner
from testbed.bs.intake import Intake
from testbed.bs.isolation import apart
from testbed.bs.judging.acceptance import Acceptance, Judged
from testbed.bs.room import Load
from testbed.bs.sessions import Round, Session
from testbed.clock import Clock

MOST_VALUES = 2**18
"""Probabilities of the sampled rounds of a pass up to which they are decided at once: about two milliseconds."""
Ready = Sequence[tuple[Session, Round]]
"""Verified rounds that can be judged."""
_Aside = deque[tuple[Session, Round, float]]
"""Rounds of one UE, and the times since which they wait."""


class Drawing:
    """Sampled rounds that were set aside; the arguments are parts of the base station."""

    def __init__(
        self,
        acceptance: Acceptance,
        intake: Intake,
        runner: EngineRunner,
        closer: SessionCloser,
        clock: Clock,
    ) -> None:
        self._acceptance, self._runner, self._closer, self._clock = acceptance, runner, closer, clock
        self._sessions, self._vocab_size = intake.sessions, intake.offer.vocab_size
        self._aside: dict[bytes, _Aside] = {}
        """Rounds by UE, the one whose turn it is first."""
        self._filled = asyncio.Event()

    def split(self, ready: Ready) -> tuple[Ready, Ready]:
        """Verified rounds of a pass to decide at once, and those to set aside: the sampled ones, if they take long."""
        drawn = [one for one in ready if one[0].drawn]
        if sum((len(round_.window.ids) + 1) * self._vocab_size for _, round_ in drawn) <= MOST_VALUES:
            return ready, ()
        return [one for one in ready if not one[0].drawn], drawn

    def probs_bytes(self, session: Session, round_: Round) -> int:
        """See `Round.probs_bytes`."""
        drafted = len(round_.window.ids)
        return 4 * (drafted + 1) * self._vocab_size if session.drawn and drafted else 0

    @property
    def load(self) -> Load:
        """Rounds that are set aside."""
        waiting = [round_ for rounds in self._aside.values() for _, round_, _ in rounds]
        return Load(len(waiting), sum(round_.window.size_bytes + round_.probs_bytes for round_ in waiting))

    def set_aside(self, rounds: Ready) -> None:
        """Set rounds aside; those whose sessions were closed meanwhile are dropped."""
        now_s = self._clock.time()
        for session, round_ in rounds:
            self._aside.setdefault(self._sessions.owner(session.key[0]), deque()).append((session, round_, now_s))
        kept = {ue: deque(one for one in waiting if self._waits(*one[:2])) for ue, waiting in self._aside.items()}
        self._aside = {ue: waiting for ue, waiting in kept.items() if waiting}
        if self._aside:
            self._filled.set()

    async def run(self, answer: Callable[[Sequence[Judged]], Awaitable[None]]) -> None:
        """Decide the rounds that were set aside until cancelled, one of each UE in turn; each is handed to `answer`."""
        while True:
            await self._filled.wait()
            if not self._aside:
                self._filled.clear()
                continue
            session, round_, since_s = self._next()
            if self._waits(session, round_):
                work = functools.partial(apart, [(session, round_)], self._acceptance.decide)
                judged, failed = await self._runner.beside(work)
                if self._waits(session, round_):
                    round_.judge_s = self._clock.time() - since_s
                    await self._closer.fail_all((lost, exc) for (lost, _), exc in failed)
                    await answer(judged)

    def _next(self) -> tuple[Session, Round, float]:
        """The round whose turn it is; its UE's next one comes after one of each other UE."""
        ue = next(iter(self._aside))
        waiting = self._aside.pop(ue)
        found = waiting.popleft()
        if waiting:
            self._aside[ue] = waiting
        return found

    def _waits(self, session: Session, round_: Round) -> bool:
        """Whether the session is open and waits for this round."""
        return self._sessions.get(session.key) is session and session.current is round_
