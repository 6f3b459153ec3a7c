"""A base station without sockets: messages are put into its inbox by hand, so that a failure can be repeated."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from testbed.bs.engines.base import Share, VerifyRequest
from testbed.bs.engines.runner import EngineRunner, nobody
from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.intake import Intake, Offer
from testbed.bs.judging.base import Judge
from testbed.bs.server import BaseStation
from testbed.bs.sessions import SessionTable
from testbed.channel.frames import Frames
from testbed.channel.link import Received
from testbed.clock import WallClock, within
from testbed.errors import LinkTimeout
from testbed.protocols.codec import Packet, decode_downlink
from testbed.synthetic import VOCAB
from testbed.tasks import cancel
from testbed.ue.client import Client

T = TypeVar("T")
POSITIONS = 160
CHUNK_TOKENS = 64
"""Tokens of a prompt that a pass computes; longer ones take several passes."""
PASS = 6
"""Turns of the loop that a pass takes, and the answers to it."""
Sent = tuple[bytes, list[bytes]]


class Straight(EngineRunner):
    """Passes at once."""

    def __init__(self, engine: SyntheticEngine) -> None:
        self._engine = engine

    def submit(self, request: VerifyRequest) -> None:
        """Add a round to the next pass."""
        self._engine.submit(request)

    async def step(self, waiting: Callable[[], bool] = nobody) -> list[Share]:
        """Result of one pass; messages are received during it."""
        await asyncio.sleep(0)
        return self._engine.step()

    def cached(self, request: VerifyRequest) -> None:
        """Nothing is known of a prefix cache."""

    async def judged(self, positions: int) -> None:
        """Nothing."""

    async def beside(self, work: Callable[[], T]) -> T:
        """Run the work in another thread."""
        return await asyncio.to_thread(work)

    def release(self, session: str) -> None:
        """Release a session of the engine."""
        self._engine.release(session)


class Wire:
    """A server link, and the UEs' ends of it.

    Args:
        trace: takes the messages of UEs.

    Attributes:
        to: what each UE has been sent and not yet read.
    """

    def __init__(self, trace: deque[Sent] | None = None) -> None:
        self._mail: asyncio.Queue[Sent] = asyncio.Queue()
        self._trace: deque[Sent] = deque(maxlen=0) if trace is None else trace
        self.to: defaultdict[bytes, asyncio.Queue[list[bytes]]] = defaultdict(asyncio.Queue)

    async def quiet(self) -> None:
        """Wait until the base station has taken everything, and has had time for a pass."""
        while not self._mail.empty():
            await asyncio.sleep(0)
        for _ in range(PASS):
            await asyncio.sleep(0)

    def put(self, peer: bytes, frames: list[bytes]) -> None:
        """A message from a UE."""
        self._trace.append((peer, frames))
        self._mail.put_nowait((peer, frames))

    async def recv(self) -> Sent:
        """Next message for the base station."""
        return await self._mail.get()

    async def send(self, peer: bytes, frames: Frames) -> None:
        """A message to a UE."""
        self.to[peer].put_nowait([bytes(frame) for frame in frames])

    def serves(self, peer: bytes) -> bool:
        """No key is revoked."""
        return True

    def heard(self, peer: bytes, decode: Callable[[Frames], Packet[Any]] = decode_downlink) -> list[Packet[Any]]:
        """Messages that arrived for a peer meanwhile."""
        found = []
        while not self.to[peer].empty():
            found.append(decode(self.to[peer].get_nowait()))
        return found

    def close(self) -> None:
        """Nothing to close."""


class End:
    """A UE's end of a `Wire`: a link."""

    def __init__(self, wire: Wire, name: bytes) -> None:
        self._wire, self._name = wire, name

    async def send(self, frames: Frames) -> int:
        """Send one message."""
        self._wire.put(self._name, [bytes(frame) for frame in frames])
        return sum(map(len, frames))

    async def recv(self, timeout_s: float) -> Received:
        """Next message."""
        try:
            frames = await within(timeout_s, self._wire.to[self._name].get())
        except asyncio.TimeoutError as exc:
            raise LinkTimeout("nothing came") from exc
        return Received(frames, sum(map(len, frames)))

    def close(self) -> None:
        """Nothing to close."""


@contextlib.asynccontextmanager
async def serving(
    judge: Judge, trace: deque[Sent] | None = None, **options: Any
) -> AsyncIterator[tuple[BaseStation, Wire]]:
    """A base station that serves a wire; its end before that of the `async with` is an error."""
    wire, engine = Wire(trace), SyntheticEngine(vocab_size=VOCAB, max_model_len=POSITIONS, chunk_tokens=CHUNK_TOKENS)
    intake = Intake(
        Offer("synthetic", "", VOCAB, engine.hidden_size, (), POSITIONS, max_window=64),
        SessionTable(per_peer=8, total=40, pending=32, tokens=4000, ue_share=0.5, idle_s=5.0),
    )
    bs = BaseStation(wire, Straight(engine), intake, judge=judge, clock=WallClock(), **options)
    running = asyncio.create_task(bs.serve())
    try:
        yield bs, wire
    finally:
        ended = running.done()
        await cancel(running)
        assert not ended, f"the base station has ended: {running.exception()!r}"


@contextlib.asynccontextmanager
async def connected(wire: Wire, name: bytes) -> AsyncIterator[Client]:
    """A client on a wire."""
    client = Client(End(wire, name), WallClock(), 1, 60.0)
    try:
        await client.connect("", VOCAB)
        yield client
    finally:
        await client.close()


def errors(bs: BaseStation) -> int:
    """Internal errors so far."""
    found = bs.metrics()
    return int(found["failed_sessions"] + found["failed_updates"])


async def replayed(trace: Sequence[Sent], judge: Judge, **options: Any) -> bool:
    """Whether messages bring about an internal error, or the base station's end."""
    try:
        async with serving(judge, **options) as (bs, wire):
            for peer, frames in trace:
                wire.put(peer, frames)
                await wire.quiet()
            return errors(bs) > 0
    except AssertionError:
        return True


def shrunk(trace: Sequence[Sent], fails: Callable[[Sequence[Sent]], bool]) -> list[Sent]:
    """A part of a trace that still fails and of which no single message can be left out (ddmin, Zeller 1999)."""
    left, size = list(trace), max(1, len(trace) // 2)
    while True:
        at, before = 0, len(left)
        while at < len(left):
            rest = left[:at] + left[at + size :]
            if rest and fails(rest):
                left = rest
            else:
                at += size
        if size == 1 and len(left) == before:
            return left
        size = max(1, size // 2)
