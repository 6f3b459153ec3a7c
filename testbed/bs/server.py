"""The base station: steps 4 to 7 of a round (queue, verify, judge, verdict) for all sessions at once.

Two tasks share one event loop: `_receive` takes messages in and fills the queue; `_run_engine` takes whatever is
pending whenever the engine is free. The engine itself runs in a thread of its own, so that messages flow during a pass.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from testbed.bs.admission import Admission
from testbed.bs.desk import Desk
from testbed.bs.engine import VerifyRequest
from testbed.bs.estimator_online import OnlineEstimator
from testbed.bs.judge import Judge
from testbed.bs.keeper import Keeper
from testbed.bs.promises import Promises
from testbed.bs.queue import Queue, Taken
from testbed.bs.runner import EngineRunner
from testbed.bs.sampled import check_distributions
from testbed.bs.scheduler import Scheduler
from testbed.bs.sessions import Round, Session
from testbed.channel.link import ServerLink
from testbed.clock import Clock
from testbed.errors import BadInput, EngineError, ProtocolError
from testbed.protocols import PROTOCOLS
from testbed.protocols.base import expect_names, hidden_names, read_hidden
from testbed.protocols.codec import AnyArray, Packet, decode_uplink, encode, pack_positions
from testbed.protocols.messages import Close, Draft, Fault, Hello, Hidden, Message, NeedHidden, Open, Ping, Verdict

MAX_REASON = 500
"""Characters of a `Fault`'s reason."""


class BaseStation:
    """Serves rounds until cancelled. What the keyword arguments are for: see `Promises`."""

    def __init__(
        self,
        link: ServerLink,
        runner: EngineRunner,
        desk: Desk,
        scheduler: Scheduler,
        judge: Judge,
        clock: Clock,
        *,
        estimator: OnlineEstimator | None = None,
        admission: Admission | None = None,
        block_size: int = 1,
        cuts: bool = False,
        margin: float = 0.0,
    ) -> None:
        self._link, self._runner, self._desk = link, runner, desk
        self._judge, self._clock = judge, clock
        self._keeper = Keeper(judge, desk.offer.vocab_size)
        self._promises = Promises(desk.sessions, scheduler, estimator, admission, block_size, cuts, margin)
        self._queue = Queue()
        self._wake = asyncio.Event()

    @property
    def passes(self) -> int:
        """Passes so far."""
        return self._promises.metrics.passes

    @property
    def rounds(self) -> int:
        """Rounds verified so far."""
        return self._promises.metrics.rounds

    def metrics(self) -> dict[str, Any]:
        """What it has counted, and how it stands now."""
        return self._promises.snapshot()

    async def serve(self) -> None:
        """Serve until cancelled; raises what either task raises."""
        tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._run_engine())]
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
            except (ProtocolError, BadInput) as exc:
                reply = Fault(session=session, reason=str(exc)[:MAX_REASON])
            if reply is not None:
                await self._link.send(peer, encode(reply))

    async def _take(self, peer: bytes, packet: Packet[Message]) -> Message | None:
        """Handle one message; returns what is answered at once."""
        message = packet.message
        if isinstance(message, Draft):
            await self._take_draft(peer, packet, message)
            return None
        if isinstance(message, Hidden):
            await self._take_hidden(peer, packet, message)
            return None
        if isinstance(message, Open):
            if message.threshold > 0 and (known := PROTOCOLS.get(message.protocol)) and known.judged:
                self._judge.check(message.drafter, message.hidden_size)
            before = self._desk.sessions.get((peer, message.session))
            reply, session = self._desk.open(peer, message, packet.arrays, self._promises.admit)
            if session is not None and before is not None:
                self._forget(before)
            if session is not None and session.protocol is None:
                self._enqueue(session, Round(0, self._desk.no_window, None, self._clock.time()))
            return reply
        if isinstance(message, Close):
            closed = self._desk.sessions.close((peer, message.session))
            if closed is not None:
                self._forget(closed)
            return None
        if isinstance(message, Hello):
            return self._desk.hello(message)
        assert isinstance(message, Ping)
        return self._desk.ping(message)

    async def _take_draft(self, peer: bytes, packet: Packet[Message], message: Draft) -> None:
        arrived_s = self._clock.time()
        taken = self._desk.draft(peer, message, packet.arrays)
        if isinstance(taken, Message):
            await self._link.send(peer, encode(taken))
        elif isinstance(taken, Session):
            if taken.last_reply:
                await self._link.send(peer, taken.last_reply)
        else:
            session, window = taken
            round_ = Round(message.round, window, message.csi, arrived_s)
            round_.draft_s, round_.network_s = message.draft_s, message.network_s
            self._enqueue(session, round_)

    def _forget(self, session: Session) -> None:
        self._queue.drop(session)
        self._runner.release(session.name)

    # ------------------------------------------------------------ 4 queue

    def _enqueue(self, session: Session, round_: Round) -> None:
        session.current = round_
        logprobs = session.drawn and not session.sampling.greedy
        request = VerifyRequest(
            session.name, session.prefix, round_.window.ids, hidden=self._keeper.by_hidden(session), logprobs=logprobs
        )
        round_.pending = self._promises.pending(session, round_, request)
        self._queue.put(session, round_.pending)
        self._wake.set()

    async def _run_engine(self) -> None:
        while True:
            await self._wake.wait()
            batch = self._queue.take(self._promises.plan(self._queue.pending(), self._clock.time()))
            if batch:
                await self._run_pass(batch)
            if not self._queue:
                self._wake.clear()

    # ------------------------------------------------------------ 5 verify

    async def _run_pass(self, batch: list[Taken]) -> None:
        start_s = self._clock.time()
        try:
            results = await self._runner.verify([taken.pending.request for taken in batch])
            check_distributions(results)
        except (EngineError, BadInput) as exc:
            await self._fail(batch, exc)
            return
        verify_s = self._clock.time() - start_s
        self._promises.passed(batch, results, verify_s)
        ready = []
        for (session, pending, whole), result in zip(batch, results, strict=True):
            round_ = session.current
            if round_ is None or self._desk.sessions.get(session.key) is not session:
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

    async def _fail(self, batch: list[Taken], exc: Exception) -> None:
        """Give up the rounds of a pass that failed."""
        self._promises.metrics.failed_passes += 1
        for session, _, _ in batch:
            session.current = None
            self._queue.drop(session)
            reason = f"verification failed: {exc}"[:MAX_REASON]
            await self._reply(session, Fault(session=session.key[1], reason=reason))

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

    async def _take_hidden(self, peer: bytes, packet: Packet[Message], message: Hidden) -> None:
        session = self._desk.sessions.get((peer, message.session))
        round_ = session.current if session else None
        if not session or not round_ or round_.number != message.round or round_.asked_s is None:
            return
        expect_names(packet.arrays, *hidden_names(session.hidden_bits))
        rows = round_.candidates()
        shown = read_hidden(packet.arrays, len(rows), session.drafter_hidden, session.hidden_bits)
        hidden = np.zeros((len(round_.window.ids), session.drafter_hidden), shown.dtype)
        hidden[rows] = shown
        round_.waited_s = self._clock.time() - round_.asked_s
        round_.window = round_.window._replace(hidden=hidden)
        await self._settle([(session, round_)])

    # ------------------------------------------------------------ 6 judge, 7 verdict

    async def _settle(self, ready: list[tuple[Session, Round]]) -> None:
        """Judge the candidates of all rounds that are ready, commit, and answer."""
        start_s = self._clock.time()
        all_kept = self._keeper.keep(ready)
        await self._runner.judged(sum(len(r.candidates()) for s, r in ready if self._keeper.by_hidden(s)))
        judge_s = self._clock.time() - start_s
        for (session, round_), kept in zip(ready, all_kept, strict=True):
            assert round_.result is not None
            self._promises.settled(session, round_, kept, self._clock.time())
            session.append(round_.window.ids[: kept.accepted])
            if kept.token is not None:
                session.append(np.array([kept.token], np.int32))
            session.owed, session.current = kept.token is None, None
            candidates = round_.candidates()
            verdict = Verdict(
                session=session.key[1],
                round=round_.number,
                accepted=kept.accepted,
                token=-1 if kept.token is None else kept.token,
                candidates=len(candidates),
                queried=len(candidates) if round_.asked_s is not None else int(kept.target is not None),
                gap=round_.result.gap(kept.accepted),
                batch_size=round_.batch_size,
                queue_s=round_.queue_s,
                verify_s=round_.verify_s,
                judge_s=judge_s,
                bs_s=self._clock.time() - round_.arrived_s - round_.waited_s,
            )
            await self._reply(session, verdict, {} if kept.target is None else {"target": kept.target})
            if session.protocol is None and not self._desk.finished(session):
                self._enqueue(session, Round(round_.number + 1, self._desk.no_window, None, self._clock.time()))

    async def _reply(self, session: Session, message: Message, arrays: dict[str, AnyArray] | None = None) -> None:
        frames = encode(message, arrays)
        if isinstance(message, Verdict):
            session.last_reply = frames
        await self._link.send(session.key[0], frames)
