"""The base station: steps 4 to 7 of a round (queue, verify, judge, verdict) for all sessions at once.

`BaseStation._step` is the round. Two tasks share one event loop: `Dispatcher.receive` handles messages and fills the
queue, `_run` takes a step whenever requests are waiting. The engine has a thread of its own for longer passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from testbed.bs.closing import SessionCloser
from testbed.bs.dispatch import Dispatcher
from testbed.bs.engines.base import Share, VerifyRequest
from testbed.bs.engines.checks import check_result
from testbed.bs.engines.coupled import choices
from testbed.bs.engines.runner import EngineRunner
from testbed.bs.intake import Intake
from testbed.bs.isolation import apart
from testbed.bs.judging.acceptance import Acceptance, Judged, asked_bytes, attach_hidden
from testbed.bs.judging.base import Judge
from testbed.bs.judging.long_rounds import LongRounds, Ready
from testbed.bs.metrics import Metrics
from testbed.bs.observer import Observer
from testbed.bs.pending import Round
from testbed.bs.queue import Queue, Taken
from testbed.bs.room import Load
from testbed.bs.scheduling.admission import Admission
from testbed.bs.scheduling.base import Scheduler
from testbed.bs.scheduling.estimator_online import OnlineEstimator
from testbed.bs.scheduling.hints import WindowHints
from testbed.bs.scheduling.pass_ledger import PassLedger
from testbed.bs.sessions import Key, Session
from testbed.bs.streams import ahead, following, rounds_of
from testbed.bs.verdict import Verdicts, need_hidden
from testbed.channel.link import ServerLink
from testbed.clock import Clock
from testbed.errors import BadInput, EngineError
from testbed.protocols.codec import AnyArray, encode
from testbed.protocols.messages import Busy, Open
from testbed.tasks import together


class BaseStation:
    """Serves rounds until cancelled.

    Args:
        estimator, admission, block_size, margin: see `PassLedger`.
        windows: draft-window hints for UEs; None: no hints.
        observer: informed of rounds, passes and sessions.
    """

    def __init__(
        self,
        link: ServerLink,
        runner: EngineRunner,
        intake: Intake,
        scheduler: Scheduler,
        judge: Judge,
        clock: Clock,
        *,
        estimator: OnlineEstimator | None = None,
        admission: Admission | None = None,
        block_size: int = 1,
        margin: float = 0.0,
        windows: WindowHints | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._link, self._runner, self._intake, self._clock = link, runner, intake, clock
        self._acceptance = Acceptance(judge, intake.offer.vocab_size)
        self._ledger = PassLedger(intake.sessions, scheduler, estimator, admission, block_size, margin)
        self._windows, self._metrics, self._observer = windows, Metrics(), observer or Observer()
        self._verdicts = Verdicts(self._ledger, self._metrics, windows, self._observer, clock)
        self._queue, self._wake = Queue(), asyncio.Event()
        self._closer = SessionCloser(
            link, intake.sessions, self._queue, runner, windows, self._observer, self._metrics, self._ledger, self._wake
        )
        self._long = LongRounds(self._acceptance, intake, runner, self._closer, clock)
        self._dispatcher = Dispatcher(
            link, intake, judge, clock, self, self._closer, self._long.target_bytes, self._observer
        )

    @property
    def rounds(self) -> int:
        """Rounds verified so far."""
        return self._metrics.rounds

    def metrics(self) -> dict[str, Any]:
        """Counters since the start, and gauges."""
        return self._metrics.snapshot() | self._ledger.snapshot() | (self._windows.snapshot() if self._windows else {})

    async def serve(self) -> None:
        """Serve until cancelled; raises what a task raises."""
        jobs = [self._dispatcher.receive(), self._run(), self._long.run(self._answer, self._go_on)]
        if self._intake.sessions.idle_s is not None:
            jobs.append(self._dispatcher.expire(self._intake.sessions.idle_s))
        await together(jobs)

    # ------------------------------------------------------------ the round

    async def _step(self, repeated: Sequence[Taken] | None = None) -> bool:
        """One engine pass and the verdicts of the rounds that it finished; returns whether there was anything to do.

        Args:
            repeated: what joins the pass after a failed one; None: what the scheduler chooses.
        """
        planned = await self._schedule(repeated)  # 4 queue
        if not (running := self._queue.running):
            return planned
        start_s = self._clock.time()
        try:
            shares = await self._verify(running)  # 5 verify
        except (EngineError, BadInput) as exc:
            await self._recover(running, exc, again=repeated is None)
            return True
        ready = await self._complete(shares, start_s)  # prompts in pieces and SH's open questions stay behind
        await self._decide(ready)
        return True

    async def resume(self, session: Session, round_: Round, arrays: dict[str, AnyArray]) -> None:
        """Continue a round at step 6, now that its hidden states have arrived (SH).

        Raises:
            ProtocolError: the arrays are not those that were asked for.
        """
        attach_hidden(session, round_, arrays)
        self._intake.sessions.ask(session)
        round_.waited_s = self._clock.time() - (round_.asked_s or 0.0)
        self._ledger.waited(session, round_)
        await self._decide([(session, round_)])

    async def _decide(self, ready: Ready) -> None:
        now, later = self._long.split(ready)
        await self._answer(await self._judge(now))  # 6 judge, 7 verdict
        self._long.set_aside(later)

    # ------------------------------------------------------------ 4 queue

    @property
    def load(self) -> Load:
        """Windows waiting for the engine, to be decided, or for the round before them, and what waits for UEs."""
        return Load(*map(sum, zip(self._queue.load, self._long.load, self._intake.sessions.held, strict=True)))

    def begin(self, session: Session, round_: Round) -> None:
        """Queue a round for verification."""
        if self._windows is not None:
            round_.threshold = self._windows.threshold(session)
        session.current, round_.target_bytes = round_, self._long.target_bytes(session, round_)
        hidden = len(round_.window.ids) > 0 and self._acceptance.needs_hidden(session, round_)
        further, ends = 0 if self._ledger.estimates else ahead(session, round_), session.end_ids
        how = hidden, not session.sampling.greedy, further, ends, session.sampling.coupling(session.seed)
        request = VerifyRequest(session.name, session.prefix, round_.window.ids, *how)
        round_.pending = self._ledger.pending(session, round_, request)
        self._queue.put(session, round_.pending)
        self._wake.set()

    async def _schedule(self, repeated: Sequence[Taken] | None) -> bool:
        """Submit the requests that join the next pass to the engine; returns whether there are any."""
        failed: list[tuple[Session, Exception]] = []
        if repeated is None:
            now_s = self._clock.time()
            self._queue.see(self._runner.cached)
            running = self._queue.unfinished
            planned, refused = apart(self._queue.pending(), lambda waiting: self._ledger.plan(waiting, now_s, running))
            failed += [(self._queue.session(item), exc) for item, exc in refused]
            repeated = self._queue.take(planned)
        failed += [(taken.session, exc) for taken in repeated if (exc := self._submit(taken)) is not None]
        await self._closer.fail_all(failed)
        return bool(repeated or failed)

    def _submit(self, taken: Taken) -> Exception | None:
        """Hand a request to the engine; returns the error if it is refused."""
        try:
            self._runner.submit(taken.pending.request)
        except Exception as exc:
            return exc
        self._queue.start(taken)
        return None

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            worked = await self._step()
            if self._queue.running or (self._queue and worked):  # an empty plan waits for another request
                self._wake.set()
            elif not self._queue:
                self._verdicts.learn()

    # ------------------------------------------------------------ 5 verify

    async def _verify(self, running: Sequence[Taken]) -> list[Share]:
        """One engine pass; learning from earlier ones is due half-way through it. Raises BadInput and EngineError."""
        if self._ledger.estimates or self._windows is not None:
            asyncio.get_running_loop().call_later(self._ledger.expected_s(running) / 2, self._verdicts.learn)
        return await self._runner.step(lambda: len(self._queue) > 0 or any(taken.session.held for taken in running))

    async def _recover(self, running: Sequence[Taken], exc: Exception, again: bool) -> None:
        """Repeat each request of a failed pass by itself, so that only the one at fault fails; that one is given up."""
        self._metrics.failed_passes += 1
        self._queue.stop()
        for taken in running:
            session = taken.session
            if self._intake.sessions.get(session.key) is not session:  # closed in the meantime
                continue
            if not again:
                await self._closer.give_up(session, exc)
                continue
            await self._step([taken])
            while self._queue.running:  # a prompt in pieces
                await self._step([])

    async def _complete(self, shares: Sequence[Share], start_s: float) -> Ready:
        """Account for a pass; returns the rounds that can be judged now."""
        if not shares:  # all sessions were closed before the engine began, so that there was no pass
            return []
        verify_s = self._clock.time() - start_s
        found = [(self._queue.taken(share.request, share.result is not None), share) for share in shares]
        done = self._ledger.passed(found, verify_s)
        self._metrics.add_pass(done)
        self._observer.passed(done)
        ready, drafted = list[tuple[Session, Round]](), sum(len(share.request.draft) for share in shares)
        for taken, share in found:
            if taken is None or (round_ := (session := taken.session).current) is None:
                continue
            if self._intake.sessions.get(session.key) is not session:
                continue
            if not taken.whole or share.result is None:
                round_.pieces_s += verify_s
                self._queue.learn(session)
                continue
            round_.result, round_.batch_size, others = share.result, len(shares), drafted - len(share.request.draft)
            round_.queue_s = start_s - taken.pending.arrived_s - round_.pieces_s
            round_.verify_s, round_.choices, round_.others_drafted = verify_s + round_.pieces_s, choices(share), others
            if await self._readable(session, round_):
                ready += [(session, one) for one in rounds_of(round_, share.passes, start_s, verify_s)]
        return ready

    async def _readable(self, session: Session, round_: Round) -> bool:
        """Whether a round can be judged now; if not, it failed, or waits for its tokens or for hidden states."""
        assert round_.result is not None
        try:
            check_result(round_.result)
            if round_.choices is not None:
                self._long.set_aside([(session, round_)])
            elif (question := need_hidden(session, round_, self._clock.time())) is not None:
                self._intake.sessions.ask(session, asked_bytes(session, round_))
                await self._link.send(session.key[0], question)
            else:
                return True
        except EngineError as exc:
            await self._closer.give_up(session, exc)
        except Exception as exc:
            await self._closer.fail_all([(session, exc)])
        return False

    async def _go_on(self, session: Session, round_: Round) -> None:
        """Continue a round whose tokens are chosen now."""
        if await self._readable(session, round_):
            await self._decide([(session, round_)])

    # ------------------------------------------------------------ 6 judge

    async def _judge(self, ready: Ready) -> list[Judged]:
        """The tokens that stay in each round, all candidates judged at once."""
        start_s = self._clock.time()
        judged, failed = apart(ready, self._acceptance.decide)
        await self._closer.fail_all((session, exc) for (session, _), exc in failed)
        await self._runner.judged(self._acceptance.by_hidden(judged))
        judge_s = self._clock.time() - start_s
        for _, round_, _ in judged:
            round_.judge_s += 0.0 if round_.follows else judge_s
        return judged

    # ------------------------------------------------------------ 7 verdict

    async def _answer(self, judged: Sequence[Judged]) -> None:
        """Commit the tokens of each round and send its verdict; the target decodes on in sessions without drafts."""
        for session, round_, kept in judged:
            if self._intake.sessions.get(session.key) is not session:  # closed after an error
                continue
            try:
                answer = self._verdicts.settle(session, round_, kept)
            except Exception as exc:
                await self._closer.fail_all([(session, exc)])
                continue
            frames = encode(answer, {} if kept.target is None else {"target": kept.target})
            if answer.round == session.last_round:
                session.last_reply = frames
            await self._link.send(session.key[0], frames)
            if (begun := following(self._intake.sessions, session, round_, self._clock.time())) is not None:
                self.begin(session, begun)

    # ------------------------------------------------------------ sessions

    def admit(self, key: Key, message: Open) -> Busy | None:
        """The refusal of a session whose token speed cannot be guaranteed; None: it can."""
        busy = self._ledger.admit(key, message, self._clock.time(), self._closer.forget)
        if busy is not None and message.speed_tps is not None:
            self._metrics.add_refused(message.speed_tps)
        return busy
