"""A relay of whole messages between UEs and their BS that can drop, duplicate, delay and reorder them.

TCP loses, duplicates and reorders nothing. The postman receives every message on one ZeroMQ connection and sends it on
another, with injected faults; each UE keeps its identity towards the BS. It records the faults, and the time from each
one to the session's next verdict.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import zmq
import zmq.asyncio

from testbed.channel.frames import parts, whole
from testbed.protocols import TARGET_ONLY
from testbed.protocols.codec import decode_downlink, decode_uplink
from testbed.protocols.messages import Close, Hello, Message, Open, Verdict

FLUSH_S = 5.0
"""Time after which a message is forwarded even if none overtook it."""
Session = tuple[bytes, int]


class Letter(NamedTuple):
    """A message in the relay."""

    ue: bytes
    up: bool
    message: Message
    frames: list[bytes]

    @property
    def kind(self) -> str:
        """Type of the message."""
        return type(self.message).__name__

    @property
    def session(self) -> Session:
        """Session of the message; -1 for messages without one."""
        return self.ue, getattr(self.message, "session", -1)


class Order(NamedTuple):
    """Treatment of a message."""

    copies: int = 1
    """Number of copies to forward; 0: drop."""
    delay_s: float = 0.0
    """Delay of the message and of all that follow."""
    behind: int = 0
    """Number of later messages of its session and direction that overtake it (with two copies, the second one)."""
    counted: bool = True
    """Whether it counts as a fault of its own rather than as part of another."""


AS_IT_IS = Order()
Decide = Callable[[Letter], Order]


@dataclass
class Fault:
    """A fault of a session, and the time of its next verdict."""

    kind: str
    """Type of the message or, for faults of processes, the phase."""
    session: Session
    since_s: float = 0.0
    until_s: float | None = None
    happened: bool = True
    """Whether it took effect, since a message may not have been overtaken as ordered."""

    @property
    def recovery_s(self) -> float | None:
        """Time until the next verdict; None: no recovery was needed, as after a lost `Close`."""
        return None if self.until_s is None else self.until_s - self.since_s


@dataclass
class _Held:
    letter: Letter
    left: int
    fault: Fault
    timer: asyncio.TimerHandle | None = None


@dataclass
class _Way:
    """One direction of one UE."""

    queue: asyncio.Queue[tuple[Letter, float]] = field(default_factory=asyncio.Queue)
    held: list[_Held] = field(default_factory=list)


class Postman:
    """Relays while its `async with` lasts; see `postman`.

    Attributes:
        decide: called for every message before it is forwarded.
        faults: faults in order.
        live: open sessions with their protocols; streams count as target-only.
        carried: number of forwarded messages, by UE and direction.
        reading: by UE, whether messages of the BS to it are read from the connection.
        unread: by UE, number of messages that arrived while they were not read.
    """

    def __init__(self, address: str) -> None:
        self._bs = address
        self._context = zmq.asyncio.Context()
        self._front = self._context.socket(zmq.ROUTER)
        self._backs: dict[bytes, zmq.asyncio.Socket] = {}
        self._listening: dict[bytes, asyncio.Task[None]] = {}
        self._ways: dict[tuple[bytes, bool], _Way] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._watched: dict[Session, list[Fault]] = defaultdict(list)
        self._moving: dict[bytes, list[Fault]] = defaultdict(list)
        self.decide: Decide = lambda letter: AS_IT_IS
        self.reading: dict[bytes, asyncio.Event] = {}
        self.unread: dict[bytes, int] = defaultdict(int)
        self.faults: list[Fault] = []
        self.live: dict[Session, str] = {}
        self.carried: dict[tuple[bytes, bool], int] = defaultdict(int)
        for option, value in ((zmq.LINGER, 0), (zmq.ROUTER_HANDOVER, 1), (zmq.SNDHWM, 0), (zmq.RCVHWM, 0)):
            self._front.setsockopt(option, value)
        self._front.bind("tcp://127.0.0.1:*")
        self.address = self._front.getsockopt_string(zmq.LAST_ENDPOINT)

    # ------------------------------------------------------------ for those who plan faults

    def watch(self, kind: str, session: Session) -> Fault:
        """Write a fault down that ends now, and take its session's next verdict as the end of its recovery."""
        fault = Fault(kind, session)
        self.faults.append(fault)
        self._await(fault)
        return fault

    def sessions_of(self, ue: bytes | None = None) -> list[Session]:
        """Open sessions, of one UE or of all."""
        return [session for session in self.live if ue in (None, session[0])]

    @property
    def ues(self) -> list[bytes]:
        """Identities of those who have said something."""
        return list(self._backs)

    # ------------------------------------------------------------ the relay

    async def run(self) -> None:
        """Take in what UEs send."""
        while True:
            ue, *received = await self._front.recv_multipart(copy=False)
            frames = whole(received)
            if ue.bytes not in self._backs:
                self._welcome(ue.bytes)
            self._take(Letter(ue.bytes, True, decode_uplink(frames).message, frames))

    def _welcome(self, ue: bytes) -> None:
        self.reading[ue] = asyncio.Event()
        self.reading[ue].set()
        for up in (True, False):
            self._ways[ue, up] = way = _Way()
            self._tasks.append(asyncio.create_task(self._carry(way)))
        self._connect(ue, ue, self._bs)

    def _connect(self, ue: bytes, identity: bytes, address: str) -> None:
        self._backs[ue] = back = self._context.socket(zmq.DEALER)
        for option, value in ((zmq.LINGER, 0), (zmq.ROUTING_ID, identity), (zmq.RCVHWM, 16), (zmq.RECONNECT_IVL, 50)):
            back.setsockopt(option, value)
        back.connect(address)
        self._listening[ue] = asyncio.create_task(self._listen(ue, back))

    def reconnect(self, ue: bytes, identity: bytes, address: str) -> None:
        """Give up a UE's connection to the BS, and reach it anew, under an identity and at an address."""
        self._listening[ue].cancel()
        self._backs[ue].close(0)
        self._connect(ue, identity, address)

    async def _listen(self, ue: bytes, back: zmq.asyncio.Socket) -> None:
        while True:
            await self.reading[ue].wait()
            frames = await back.recv_multipart()
            if not self.reading[ue].is_set():
                self.unread[ue] += 1
                await self.reading[ue].wait()
            self._take(Letter(ue, False, decode_downlink(frames).message, frames))

    def _take(self, letter: Letter) -> None:
        if letter.up and isinstance(letter.message, Open):
            self.live[letter.session] = TARGET_ONLY if letter.message.stream else letter.message.protocol
            for before in self._moving.pop(letter.ue, []):  # the session that it was in has ended
                self._await(before, letter.session)
        order, fault = self.decide(letter), None
        if order != AS_IT_IS and order.counted:
            fault = Fault(letter.kind, letter.session, time.monotonic(), happened=not order.behind)
            self.faults.append(fault)
        way = self._ways[letter.ue, letter.up]
        straight = order.copies - (order.behind > 0)
        for _ in range(straight):
            way.queue.put_nowait((letter, time.monotonic() + order.delay_s))
        if order.behind and fault is not None:
            self._hold(way, letter, order.behind, fault)
        elif fault is not None:
            self._await(fault, since_s=fault.since_s)
        if letter.up and isinstance(letter.message, Close):
            self.live.pop(letter.session, None)
            self._moving[letter.ue] += self._watched.pop(letter.session, [])

    async def _carry(self, way: _Way) -> None:
        while True:
            letter, at_s = await way.queue.get()
            await asyncio.sleep(max(0.0, at_s - time.monotonic()))
            await self._deliver(letter)
            for held in [h for h in way.held if _overtakes(letter, h.letter)]:
                held.left -= 1
                held.fault.happened = True
                if held.left <= 0:
                    await self._release(way, held)

    def _hold(self, way: _Way, letter: Letter, behind: int, fault: Fault) -> None:
        held = _Held(letter, behind, fault)
        way.held.append(held)
        loop = asyncio.get_running_loop()
        held.timer = loop.call_later(FLUSH_S, lambda: self._tasks.append(loop.create_task(self._release(way, held))))

    async def _release(self, way: _Way, held: _Held) -> None:
        if held in way.held:
            way.held.remove(held)
            if held.timer is not None:
                held.timer.cancel()
            await self._deliver(held.letter)
            self._await(held.fault)

    async def _deliver(self, letter: Letter) -> None:
        self.carried[letter.ue, letter.up] += 1
        if letter.up:
            await self._backs[letter.ue].send_multipart(parts(letter.frames))
        else:
            await self._front.send_multipart([letter.ue, *letter.frames])
            if isinstance(letter.message, Verdict):
                for fault in self._watched.pop(letter.session, []):
                    fault.until_s = time.monotonic()

    def _await(self, fault: Fault, session: Session | None = None, since_s: float | None = None) -> None:
        """Take a session's next verdict as the end of a fault's recovery; of what is no session's, the next one's."""
        if session is None:
            fault.since_s = since_s or time.monotonic()
        ue, number = session or fault.session
        (self._watched[ue, number] if number >= 0 else self._moving[ue]).append(fault)

    async def close(self) -> None:
        """Stop.

        Raises:
            Exception: what ended one of its tasks early.
        """
        tasks = [*self._tasks, *self._listening.values()]
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for socket in (self._front, *self._backs.values()):
            socket.close(0)
        self._context.term()
        for error in ended:
            if isinstance(error, Exception):
                raise error


def _overtakes(later: Letter, held: Letter) -> bool:
    """Whether a letter counts as one that overtakes another: of its session, or any after a greeting."""
    return later is not held and (later.session == held.session or isinstance(held.message, Hello))


@contextlib.asynccontextmanager
async def postman(address: str) -> AsyncIterator[Postman]:
    """A relay before a BS at `address`."""
    found = Postman(address)
    running = asyncio.create_task(found.run())
    try:
        yield found
        if running.done():
            running.result()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await found.close()
