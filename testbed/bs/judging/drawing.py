"""Sampled rounds that take long to decide: decided beside the event loop, one after another.

A round of K tokens reads up to K + 1 distributions over the vocabulary: seconds of work for the largest windows and
vocabularies, in which the base station would receive nothing and begin no pass.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence

from testbed.bs.closing import SessionCloser
from testbed.bs.engines.runner import EngineRunner
from testbed.bs.intake import Intake
from testbed.bs.isolation import apart
from testbed.bs.judging.acceptance import Acceptance, Judged
from testbed.bs.sessions import Round, Session
from testbed.clock import Clock

MOST_VALUES = 2**18
"""Probabilities of the sampled rounds of a pass up to which they are decided at once: about two milliseconds."""
MOST_HELD = 2**28
"""Probabilities of rounds that are set aside: 1 GiB in single precision."""
Ready = Sequence[tuple[Session, Round]]
"""Verified rounds that can be judged."""


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
        self._aside: asyncio.Queue[tuple[Session, Round, float]] = asyncio.Queue()
        self._held, self._fewer = 0, asyncio.Event()
        """Probabilities of the rounds that are set aside, and whether one was decided since."""

    def split(self, ready: Ready) -> tuple[Ready, Ready]:
        """Verified rounds of a pass to decide at once, and those to set aside: the sampled ones, if they take long."""
        drawn = [one for one in ready if one[0].drawn]
        if sum(self._values(round_) for _, round_ in drawn) <= MOST_VALUES:
            return ready, ()
        return [one for one in ready if not one[0].drawn], drawn

    async def set_aside(self, rounds: Ready) -> None:
        """Set rounds aside; waits while those before them hold too many probabilities."""
        for session, round_ in rounds:
            while self._held and self._held + self._values(round_) > MOST_HELD:
                self._fewer.clear()
                await self._fewer.wait()
            self._held += self._values(round_)
            self._aside.put_nowait((session, round_, self._clock.time()))

    def _values(self, round_: Round) -> int:
        return (len(round_.window.ids) + 1) * self._vocab_size

    async def run(self, answer: Callable[[Sequence[Judged]], Awaitable[None]]) -> None:
        """Decide the rounds that were set aside, until cancelled; each is handed to `answer`."""
        while True:
            session, round_, since_s = await self._aside.get()
            if self._waits(session, round_):
                work = functools.partial(apart, [(session, round_)], self._acceptance.decide)
                judged, failed = await self._runner.beside(work)
                if self._waits(session, round_):
                    round_.judge_s = self._clock.time() - since_s
                    await self._closer.fail_all((lost, exc) for (lost, _), exc in failed)
                    await answer(judged)
            self._held -= self._values(round_)
            self._fewer.set()

    def _waits(self, session: Session, round_: Round) -> bool:
        """Whether the session is open and waits for this round."""
        return self._sessions.get(session.key) is session and session.current is round_
