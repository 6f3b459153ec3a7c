"""The base station: steps 4 to 7 of a round (queue, verify, judge, verdict) for all sessions at once.

Two tasks share one event loop: `_receive` takes messages in and fills the queue; `_run_engine` takes whatever is
pending whenever the engine is free. The engine itself runs in a thread of its own, so that messages flow during a pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from testbed.bs.engines.base import VerifyRequest, VerifyResult
from testbed.bs.engines.runner import EngineRunner
from testbed.bs.intake import Intake
from testbed.bs.judging.acceptance import Acceptance, shown
from testbed.bs.judging.base import Judge
from testbed.bs.judging.distributions import check_distributions
from testbed.bs.observer import Observer, Unobserved
from testbed.bs.queue import Queue, Taken
from testbed.bs.scheduling.admission import Admission
from testbed.bs.scheduling.base import Scheduler
from testbed.bs.scheduling.estimator_online import OnlineEstimator
from testbed.bs.scheduling.pass_ledger import PassLedger
from testbed.bs.scheduling.window_hints import Windows
from testbed.bs.sessions import Round, Session
from testbed.bs.verdict import reason, verdict
from testbed.channel.link import ServerLink
from testbed.clock import Clock
from testbed.errors import BadInput, EngineError, ProtocolError
from testbed.protocols import PROTOCOLS
from testbed.protocols.codec import AnyArray, Packet, decode_uplink, encode, pack_positions
from testbed.protocols.messages import (
    NO_HINT,
    Close,
    Draft,
    Fault,
    Hello,
    Hidden,
    Message,
    NeedHidden,
    Open,
    Ping,
    Verdict,
)  # fmt: skip


class BaseStation:
    """Serves rounds until cancelled. What the keyword arguments are for: see `PassLedger`; `windows` hints UEs how much
    to draft, None: not at all; `observer` is told of what happens.
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
        cuts: bool = False,
        margin: float = 0.0,
        windows: Windows | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._link, self._runner, self._intake = link, runner, intake
        self._judge, self._clock = judge, clock
        self._acceptance = Acceptance(judge, intake.offer.vocab_size)
        self._ledger = PassLedger(intake.sessions, scheduler, estimator, admission, block_size, cuts, margin, observer)
        self._windows, self._observer = windows, observer or Unobserved()
        self._queue = Queue()
        self._wake = asyncio.Event()

    @property
    def passes(self) -> int:
        """Passes so far."""
        return self._ledger.metrics.passes

    @property
    def rounds(self) -> int:
        """Rounds verified so far."""
        return self._ledger.metrics.rounds

    def metrics(self) -> dict[str, Any]:
        """What it has counted, and how it stands now."""
        return self._ledger.snapshot() | (self._windows.snapshot() if self._windows else {})

    async def serve(self) -> None:
        """Serve until cancelled; raises what either task raises."""
        tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._run_engine())]
        if self._intake.sessions.idle_s is not None:
            tasks.append(asyncio.create_task(self._expire(self._intake.sessions.idle_s)))
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------ messages in

    async def _receive(self) -> None:
        while True:
            peer, frames = await self._link.recv()
            session = -1
            try:
                packet = decode_uplink(frames)
                session = getattr(packet.message, "session", -1)
                reply = await self._take(peer, packet)
                self._intake.sessions.hear((peer, session), self._clock.time())
            except (ProtocolError, BadInput) as exc:
                reply = Fault(session=session, reason=reason(exc))
            if reply is not None:
                await self._link.send(peer, encode(reply))

    async def _take(self, peer: bytes, packet: Packet[Message]) -> Message | None:
        """Handle one message; returns what is answered at once."""
        message = packet.message
        if isinstance(message, Draft):
            await self._take_draft(peer, packet, message)
            return None
        if isinstance(message, Hidden):
            return await self._take_hidden(peer, packet, message)
        if isinstance(message, Open):
            if message.threshold > 0 and (kind := PROTOCOLS.get(message.protocol)) and kind.judged:
                self._judge.check(message.drafter, message.hidden_size, message.hidden_bits)
            before = self._intake.sessions.get((peer, message.session))
            reply, session = self._intake.open(peer, message, packet.arrays, self._ledger.admit)
            if session is not None and before is not None:
                self._forget(before)
            if session is not None and session.alone:
                self._enqueue(session, Round(message.round, self._intake.no_window, None, self._clock.time()))
            return reply
        if isinstance(message, Close):
            closed = self._intake.sessions.close((peer, message.session))
            if closed is not None:
                self._forget(closed)
            return None
        if isinstance(message, Hello):
            for left in self._intake.sessions.leave(peer):  # of a run that died and goes on under its identity
                self._forget(left)
            return self._intake.hello(message)
        assert isinstance(message, Ping)
        return self._intake.ping(message, self._clock.time())

    async def _take_draft(self, peer: bytes, packet: Packet[Message], message: Draft) -> None:
        arrived_s = self._clock.time()
        taken = self._intake.draft(peer, message, packet.arrays, self._queue.load)
        if isinstance(taken, Message):
            await self._link.send(peer, encode(taken))
        elif isinstance(taken, tuple):
            session, window = taken
            round_ = Round(message.round, window, message.csi, arrived_s)
            round_.draft_s, round_.network_s = message.draft_s, message.network_s
            self._enqueue(session, round_)
        elif taken is not None and taken.last_reply:
            await self._link.send(peer, taken.last_reply)

    def _forget(self, session: Session) -> None:
        if self._windows:
            self._windows.ended(session)
        self._queue.drop(session)
        self._observer.ended(session)
        self._runner.release(session.name)

    async def _expire(self, idle_s: float) -> None:
        """Forget sessions that fall idle; whoever comes back is told so by `Resync`."""
        while True:
            await self._clock.sleep(idle_s / 4)
            for session in self._intake.sessions.expire(self._clock.time()):
                self._forget(session)

    # ------------------------------------------------------------ 4 queue

    def _enqueue(self, session: Session, round_: Round) -> None:
        session.current = round_
        logprobs = session.drawn and not session.sampling.greedy
        hidden = len(round_.window.ids) > 0 and self._acceptance.by_hidden(session)
        request = VerifyRequest(session.name, session.prefix, round_.window.ids, hidden=hidden, logprobs=logprobs)
        round_.pending = self._ledger.pending(session, round_, request)
        self._queue.put(session, round_.pending)
        self._wake.set()

    async def _run_engine(self) -> None:
        while True:
            await self._wake.wait()
            batch = self._queue.take(self._ledger.plan(self._queue.pending(), self._clock.time()))
            if batch:
                await self._run_pass(batch)
            if not self._queue:
                self._learn()
                self._wake.clear()

    # ------------------------------------------------------------ 5 verify

    async def _run_pass(self, batch: list[Taken], again: bool = True) -> None:
        """One pass; where it fails, every round gets another by itself, so that what fails alone fails alone."""
        start_s = self._clock.time()
        try:
            results = await self._verified(batch)
            check_distributions(results)
        except (EngineError, BadInput) as exc:
            self._ledger.metrics.failed_passes += 1
            for taken in batch:
                if self._intake.sessions.get(taken.session.key) is taken.session:  # else it closed meanwhile
                    await (self._run_pass([taken], again=False) if again else self._fail(taken.session, exc))
            return
        verify_s = self._clock.time() - start_s
        self._ledger.passed(batch, results, verify_s)
        ready = []
        for (session, pending, whole), result in zip(batch, results, strict=True):
            round_ = session.current
            if round_ is None or self._intake.sessions.get(session.key) is not session:
                continue
            if not whole:
                round_.pieces_s += verify_s
                self._queue.learn(session)
                continue
            round_.result, round_.batch_size = result, len(batch)
            round_.queue_s = start_s - pending.arrived_s - round_.pieces_s
            round_.verify_s = verify_s + round_.pieces_s
            if not await self._asked(session, round_):
                ready.append((session, round_))
        await self._settle(ready)

    async def _verified(self, batch: Sequence[Taken]) -> list[VerifyResult]:
        """The engine's pass. Half-way through it computes, and there is time to learn from the passes before it."""
        half_s = self._ledger.expected_s(batch) / 2
        asyncio.get_running_loop().call_later(half_s, self._learn)
        return await self._runner.verify([taken.pending.request for taken in batch])

    def _learn(self) -> None:
        self._ledger.learn()
        if self._windows is not None:
            self._windows.learn(self._ledger.overhead)

    async def _fail(self, session: Session, exc: Exception) -> None:
        """Give up a round; who sends it again is told so again."""
        session.current = None
        self._queue.drop(session)
        fault = Fault(session=session.key[1], reason=f"verification failed: {reason(exc)}")
        session.last_reply = encode(fault)
        await self._link.send(session.key[0], session.last_reply)

    async def _asked(self, session: Session, round_: Round) -> bool:
        """Ask the UE for hidden states where the protocol needs them for judging."""
        if session.protocol is None:
            return False
        positions = session.protocol.asks_for(round_.candidates())
        if not positions:
            return False
        round_.asked_s = self._clock.time()
        packed = pack_positions(positions, len(round_.window.ids))
        ask = NeedHidden(session=session.key[1], round=round_.number, count=len(positions))
        session.last_reply = encode(ask, {"positions": packed})
        await self._link.send(session.key[0], session.last_reply)
        return True

    async def _take_hidden(self, peer: bytes, packet: Packet[Message], message: Hidden) -> Message | None:
        session = self._intake.sessions.get((peer, message.session))
        if session is None:
            return self._intake.resync((peer, message.session))
        round_ = session.current
        if not round_ or round_.number != message.round or round_.asked_s is None:
            return None
        shown(session, round_, packet.arrays)
        round_.waited_s = self._clock.time() - round_.asked_s
        await self._settle([(session, round_)])
        return None

    # ------------------------------------------------------------ 6 judge, 7 verdict

    async def _settle(self, ready: list[tuple[Session, Round]]) -> None:
        """Judge the candidates of all rounds that are ready, commit, and answer."""
        start_s = self._clock.time()
        all_kept = self._acceptance.keep(ready)
        await self._runner.judged(sum(len(r.candidates()) for s, r in ready if self._acceptance.by_hidden(s)))
        judge_s = self._clock.time() - start_s
        for (session, round_), kept in zip(ready, all_kept, strict=True):
            self._ledger.settled(session, round_, kept, self._clock.time())
            session.append(round_.window.ids[: kept.accepted])
            if kept.token is not None:
                session.append(np.array([kept.token], np.int32))
            session.owed, session.current = kept.token is None, None
            window = self._hint(session, round_, kept.accepted)
            answer = verdict(session, round_, kept, window, judge_s, self._clock.time())
            self._observer.round(session, round_, answer)
            await self._reply(session, answer, {} if kept.target is None else {"target": kept.target})
            if session.alone and not self._intake.finished(session):
                self._enqueue(session, Round(round_.number + 1, self._intake.no_window, None, self._clock.time()))

    def _hint(self, session: Session, round_: Round, accepted: int) -> int:
        """The window for a session's next round, 0: the target goes on alone."""
        if self._windows is None:
            return NO_HINT
        window = self._windows.hint(session, round_, accepted, self._clock.time())
        if window != NO_HINT:
            session.alone = window == 0
        return window

    async def _reply(self, session: Session, message: Message, arrays: dict[str, AnyArray] | None = None) -> None:
        frames = encode(message, arrays)
        if isinstance(message, Verdict) and message.round == session.last_round:
            session.last_reply = frames
        await self._link.send(session.key[0], frames)
