"""Messages from UEs: received, checked, and answered at once or handed to the round; sessions opened and closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from testbed.bs.closing import SessionCloser
from testbed.bs.intake import Intake
from testbed.bs.judging.base import Judge
from testbed.bs.observer import Observer
from testbed.bs.pending import Round
from testbed.bs.room import Load
from testbed.bs.sessions import Key, Session
from testbed.bs.streams import NO_WINDOW, join, woken
from testbed.bs.verdict import reason
from testbed.channel.link import ServerLink
from testbed.clock import Clock
from testbed.errors import BadInput, ProtocolError
from testbed.protocols import PROTOCOLS
from testbed.protocols.codec import AnyArray, Packet, decode_uplink, encode
from testbed.protocols.messages import Busy, Close, Draft, Fault, Hello, Hidden, Message, Open, Ping, Pong

MOST_WAIT_S = 5.0
"""Longest time for which sessions of a UE whose key was revoked stay open."""
OTHER = "it serves another target, judge or head than at the greeting; restart the UE to use it"
"""Refusal of a UE that another base station welcomed, or this one before it was restarted with something else."""


class RoundHandler(Protocol):
    """The rounds that messages start and continue."""

    @property
    def load(self) -> Load:
        """Windows waiting for the engine."""

    def admit(self, key: Key, message: Open) -> Busy | None:
        """The refusal of a session whose token speed cannot be guaranteed; None: it can."""

    def begin(self, session: Session, round_: Round) -> None:
        """Queue a round for verification."""

    async def resume(self, session: Session, round_: Round, arrays: dict[str, AnyArray]) -> None:
        """Continue a round whose hidden states have arrived.

        Raises:
            ProtocolError: the arrays are not those that were asked for.
        """


class Dispatcher:
    """Receives all messages and expires idle sessions."""

    def __init__(
        self,
        link: ServerLink,
        intake: Intake,
        judge: Judge,
        clock: Clock,
        rounds: RoundHandler,
        closer: SessionCloser,
        target_bytes: Callable[[Session, Round], int],
        observer: Observer,
    ) -> None:
        """`target_bytes`: see `Round.target_bytes`."""
        self._link, self._intake, self._sessions = link, intake, intake.sessions
        self._judge, self._clock, self._rounds, self._closer = judge, clock, rounds, closer
        self._target_bytes, self._observer = target_bytes, observer

    async def receive(self) -> None:
        """Handle messages until cancelled; what breaks the protocol is answered with `Fault`."""
        while True:
            peer, frames = await self._link.recv()
            session = -1
            try:
                packet = decode_uplink(frames)
                session = getattr(packet.message, "session", -1)
                reply = await self._handle(peer, packet)
                self._sessions.hear((peer, session), self._clock.time())
            except (ProtocolError, BadInput) as exc:
                reply = Fault(session=session, reason=reason(exc))
            except Exception as exc:
                reply = self._closer.fail((peer, session), exc)
            if reply is not None:
                await self._link.send(peer, encode(reply))

    async def expire(self, idle_s: float) -> None:
        """Close sessions that were idle for too long, or of revoked keys; a `Resync` tells UEs that come back."""
        while True:
            await self._clock.sleep(min(idle_s / 4, MOST_WAIT_S))
            for session in self._sessions.expire(self._clock.time(), self._link.serves):
                self._closer.forget(session)

    async def _handle(self, peer: bytes, packet: Packet[Message]) -> Message | None:
        """Handle one message; returns the immediate answer, if any."""
        message = packet.message
        if isinstance(message, Open | Ping) and message.served not in ("", self._intake.welcome.digest):
            raise ProtocolError(OTHER)
        if isinstance(message, Draft):
            return await self._draft(peer, packet, message)
        if isinstance(message, Hidden):
            return await self._hidden(peer, packet, message)
        if isinstance(message, Open):
            return self._open(peer, packet, message)
        if isinstance(message, Close):
            if (closed := self._sessions.close((peer, message.session))) is not None:
                self._closer.forget(closed)
            return None
        if isinstance(message, Hello):
            # those of a killed run that is resumed under the same identity
            for left in () if message.again else self._sessions.leave(peer):
                self._closer.forget(left)
            return self._intake.hello(message)
        assert isinstance(message, Ping)
        return Pong(token=message.token, time_s=self._clock.time())

    def _open(self, peer: bytes, packet: Packet[Message], message: Open) -> Message:
        if message.threshold > 0 and (kind := PROTOCOLS.get(message.protocol)) and kind.judged:
            self._judge.check(message.drafter, message.hidden_size, message.hidden_bits, message.states)
        key = (peer, message.session)
        before = self._sessions.get(key)
        reply, session = self._intake.open(peer, message, packet.arrays, self._rounds.admit, self._closer.forget)
        if session is not None:
            session.free_s = self._clock.time()
            if before is not None:
                self._closer.forget(before)
        if session is not None and session.alone:
            first = Round(message.round, NO_WINDOW, None, self._clock.time(), base_len=session.length)
            self._rounds.begin(session, first)
        return reply

    async def _draft(self, peer: bytes, packet: Packet[Message], message: Draft) -> Message | None:
        arrived_s = self._clock.time()
        taken = self._intake.draft(peer, message, packet.arrays, self._rounds.load)
        if isinstance(taken, Message):
            return taken
        self._note_ahead(peer, packet, message)
        if isinstance(taken, list):
            await self._link.send(peer, taken)
        elif taken is not None:
            session, window, held = taken
            round_ = Round(message.round, window, message.csi, arrived_s)
            round_.draft_s, round_.network_s = message.draft_s, message.network_s
            round_.base_len, round_.guess = message.base_len, message.guess
            round_.target_bytes = self._target_bytes(session, round_)
            if session.stream:
                join(self._sessions, session, round_)
            elif held:
                self._sessions.hold(session, round_)
            else:
                self._rounds.begin(session, round_)
        self._wake(peer, message, arrived_s)
        return None

    def _note_ahead(self, peer: bytes, packet: Packet[Message], message: Draft) -> None:
        session = self._sessions.get((peer, message.session))
        if session is not None and (session.stream or message.guess is not None) and "ids" in packet.arrays:
            self._observer.came_ahead(session, packet.arrays["ids"].size, message.draft_s)

    def _wake(self, peer: bytes, message: Draft, now_s: float) -> None:
        """Go on with a stream that waited for a window."""
        session = self._sessions.get((peer, message.session))
        if session is not None and (begun := woken(self._sessions, session, now_s)) is not None:
            self._rounds.begin(session, begun)

    async def _hidden(self, peer: bytes, packet: Packet[Message], message: Hidden) -> Message | None:
        session = self._sessions.get((peer, message.session))
        if session is None:
            return self._intake.resync((peer, message.session))
        round_ = session.current
        if round_ and round_.number == message.round and round_.asking:
            await self._rounds.resume(session, round_, packet.arrays)
        return None
