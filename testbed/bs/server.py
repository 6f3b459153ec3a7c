"""The base station: steps 4 to 7 of a round (queue, verify, judge, verdict) for all sessions at once.

Two tasks share one event loop: `_receive` takes messages in and fills the queue; `_run_engine` takes whatever is
pending whenever the engine is free. The engine itself runs in a thread of its own, so that messages flow during a pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np

from testbed.bs.desk import Desk
from testbed.bs.engine import VerifyEngine, VerifyRequest, VerifyResult
from testbed.bs.judge import Candidates, Judge
from testbed.bs.sampled import check_distributions, drawn
from testbed.bs.scheduler import Pending, Scheduler
from testbed.bs.sessions import Round, Session
from testbed.channel.link import ServerLink
from testbed.clock import Clock
from testbed.errors import BadInput, EngineError, ProtocolError
from testbed.protocols.base import expect_names, read_hidden
from testbed.protocols.codec import AnyArray, Packet, decode_uplink, encode, pack_positions
from testbed.protocols.messages import Close, Draft, Fault, Hello, Hidden, Message, NeedHidden, Open, Ping, Verdict
from testbed.protocols.sampling import Kept

MAX_REASON = 500
"""Characters of a `Fault`'s reason."""


class EngineRunner(Protocol):
    """How a pass is run without holding up the event loop."""

    async def verify(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
        """Results of one pass, in order."""

    def release(self, session: str) -> None:
        """Let the engine forget a session, soon."""


class ThreadRunner:
    """Runs passes in the one thread that owns the engine."""

    def __init__(self, engine: VerifyEngine, thread: ThreadPoolExecutor) -> None:
        self._engine, self._thread = engine, thread

    async def verify(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
        """Results of one pass, in order."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._engine.verify, batch)

    def release(self, session: str) -> None:
        """Let the engine forget a session, after the pass that is under way."""
        self._thread.submit(self._engine.release, session)


class BaseStation:
    """Serves rounds until cancelled."""

    def __init__(
        self, link: ServerLink, runner: EngineRunner, desk: Desk, scheduler: Scheduler, judge: Judge, clock: Clock
    ) -> None:
        self._link, self._runner, self._desk = link, runner, desk
        self._scheduler, self._judge, self._clock = scheduler, judge, clock
        self._pending: dict[str, tuple[Session, Pending]] = {}
        self._wake = asyncio.Event()
        self.passes = 0
        self.rounds = 0

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
            reply, session = self._desk.open(peer, message, packet.arrays)
            if session is not None and session.protocol is None:
                self._enqueue(session, Round(0, self._desk.no_window, None, self._clock.time()))
            return reply
        if isinstance(message, Close):
            closed = self._desk.sessions.close((peer, message.session))
            if closed is not None:
                self._pending.pop(closed.name, None)
                self._runner.release(closed.name)
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
            self._enqueue(session, Round(message.round, window, message.csi, arrived_s))

    # ------------------------------------------------------------ 4 queue

    def _enqueue(self, session: Session, round_: Round) -> None:
        session.current = round_
        hidden = self._judge.needs_hidden and session.protocol is not None and session.protocol.judged
        logprobs = session.drawn and not session.sampling.greedy
        request = VerifyRequest(session.name, session.prefix, round_.window.ids, hidden=hidden, logprobs=logprobs)
        self._pending[session.name] = (session, Pending(request, round_.arrived_s, session.computed))
        self._wake.set()

    async def _run_engine(self) -> None:
        while True:
            await self._wake.wait()
            planned = self._scheduler.plan([p for _, p in self._pending.values()], self._clock.time())
            batch = [(self._pending.pop(p.request.session)[0], p) for p in planned]
            if not self._pending:
                self._wake.clear()
            if batch:
                await self._run_pass(batch)

    # ------------------------------------------------------------ 5 verify

    async def _run_pass(self, batch: list[tuple[Session, Pending]]) -> None:
        start_s = self._clock.time()
        try:
            results = await self._runner.verify([p.request for _, p in batch])
            check_distributions(results)
        except (EngineError, BadInput) as exc:
            for session, _ in batch:
                session.current = None
                await self._reply(
                    session, Fault(session=session.key[1], reason=f"verification failed: {exc}"[:MAX_REASON])
                )
            return
        verify_s = self._clock.time() - start_s
        self.passes += 1
        self.rounds += len(batch)
        ready = []
        for (session, pending), result in zip(batch, results, strict=True):
            round_ = session.current
            if round_ is None or self._desk.sessions.get(session.key) is not session:
                continue
            round_.result, round_.verify_s, round_.batch_size = result, verify_s, len(batch)
            round_.queue_s = start_s - pending.arrived_s
            session.computed = session.length
            if not await self._asked(session, round_):
                ready.append((session, round_))
        await self._settle(ready)

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
        expect_names(packet.arrays, "hidden")
        rows = round_.candidates()
        hidden = np.zeros((len(round_.window.ids), session.drafter_hidden), np.float16)
        hidden[rows] = read_hidden(packet.arrays, len(rows), hidden.shape[1])
        round_.waited_s = self._clock.time() - round_.asked_s
        round_.window = round_.window._replace(hidden=hidden)
        await self._settle([(session, round_)])

    # ------------------------------------------------------------ 6 judge, 7 verdict

    async def _settle(self, ready: list[tuple[Session, Round]]) -> None:
        """Judge the candidates of all rounds that are ready, commit, and answer."""
        start_s = self._clock.time()
        all_kept = self._keep(ready)
        judge_s = self._clock.time() - start_s
        for (session, round_), kept in zip(ready, all_kept, strict=True):
            assert round_.result is not None
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

    def _keep(self, ready: list[tuple[Session, Round]]) -> list[Kept]:
        """What stays of each round, and the token that follows."""
        judged = [i for i, (s, r) in enumerate(ready) if s.protocol and s.protocol.judged and r.candidates()]
        asked = [self._candidates(*ready[i]) for i in judged]
        keeps = dict(zip(judged, self._judge.judge(asked), strict=True)) if asked else {}
        found = []
        for i, (session, round_) in enumerate(ready):
            if session.drawn:
                found.append(drawn(session, round_, self._desk.offer.vocab_size))
                continue
            assert round_.result is not None
            positions = round_.candidates()
            keep = keeps.get(i, np.zeros(len(positions), np.bool_))
            stays = next((p for p, kept in zip(positions, keep, strict=True) if not kept), len(round_.window.ids))
            found.append(Kept(stays, int(round_.result.argmax[stays])))
        return found

    def _candidates(self, session: Session, round_: Round) -> Candidates:
        rows = round_.candidates()
        result, hidden = round_.result, round_.window.hidden
        assert result is not None and hidden is not None
        return Candidates(
            draft_ids=round_.window.ids[rows],
            target_ids=result.argmax[rows],
            drafter_hidden=hidden[rows],
            target_hidden=None if result.hidden is None else result.hidden[rows],
            csi=round_.csi,
            threshold=session.threshold,
        )

    async def _reply(self, session: Session, message: Message, arrays: dict[str, AnyArray] | None = None) -> None:
        frames = encode(message, arrays)
        if isinstance(message, Verdict):
            session.last_reply = frames
        await self._link.send(session.key[0], frames)
