"""What an endpoint stands on: orders, decoded by drafter and target together in a thread beside the web server's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from tokenizers import Tokenizer

from testbed.errors import TestbedError
from testbed.protocols.sampling import Sampling
from testbed.ue.api.stop_strings import Transcript
from testbed.ue.records import RoundRecord
from testbed.ue.run import JobRunner

T = TypeVar("T")


class Crowded(TestbedError):
    """As many orders wait already as may."""


class Closing(TestbedError):
    """The endpoint is being stopped."""


class OutputOrder(NamedTuple):
    """One output that is asked for."""

    prompt: list[int]
    max_tokens: int
    sampling: Sampling
    seed: int
    """In [0, 2⁶⁴)."""
    stops: tuple[str, ...] = ()
    to_the_end: bool = False
    """Whether an end token ends nothing."""


class Text(NamedTuple):
    """Text that a round settled."""

    text: str


class Ended(NamedTuple):
    """The last of an order's events: why, and what it took."""

    reason: str
    """`stop` or `length`."""
    tokens: int
    protocol: str
    rounds: int
    drafted: int
    accepted: int


class Over(NamedTuple):
    """An order's place is free again."""

    error: BaseException | None


@dataclass(frozen=True)
class ConnectedPair:
    """Drafter and target, connected; used in the device's thread alone.

    Attributes:
        greedy: method for orders at temperature 0.
        sampled: method for the others.
        context: positions that prompt and output may take together.
    """

    runner: JobRunner
    tokenizer: Tokenizer
    end_ids: tuple[int, ...]
    greedy: str
    sampled: str
    context: int


class DraftingThread:
    """A thread with an event loop, in which drafting may hold up whatever it likes."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="device", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something there and wait for it; an interrupt of the wait cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        finally:
            future.cancel()

    def close(self) -> None:
        """End the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Backend:
    """Takes orders: as many at once as the drafter has sequences, and a bounded number that wait for a place.

    Everything but `decode` belongs to the web server's event loop.

    Attributes:
        waiting: orders that wait.
    """

    def __init__(self, device: DraftingThread, pair: ConnectedPair, sequences: int, queue: int) -> None:
        """`queue`: orders that may wait."""
        self.device, self.pair = device, pair
        self._places, self._queue, self.waiting = asyncio.Semaphore(sequences), queue, 0
        self._choosing = asyncio.Lock()
        self._jobs: set[DecodingJob] = set()
        self._closing = False

    def job(self, order: OutputOrder) -> DecodingJob:
        """A job for an order, not begun."""
        return DecodingJob(self, order)

    async def enter(self, job: DecodingJob) -> None:
        """Wait for a place.

        Raises:
            Crowded: too many wait already.
            Closing: no more orders are taken.
        """
        if self._places.locked() and self.waiting >= self._queue:
            raise Crowded(f"all places are taken and {self.waiting} requests wait already; try again later")
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        if self._closing:
            self._places.release()
            raise Closing("the endpoint is stopping")
        self._jobs.add(job)

    def leave(self, job: DecodingJob) -> None:
        """A job's place is free."""
        self._jobs.discard(job)
        self._places.release()

    @property
    def busy(self) -> int:
        """Orders under way."""
        return len(self._jobs)

    async def close(self) -> None:
        """Cancel all jobs, and wait until the last has left."""
        self._closing = True
        jobs = list(self._jobs)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*(job.over.wait() for job in jobs))

    async def decode(self, order: OutputOrder, tell: Callable[[Text], None]) -> Ended:
        """Decode an order; in the device's thread."""
        runner, ends = self.pair.runner, () if order.to_the_end else self.pair.end_ids
        async with self._choosing:  # RTT handshakes of several at once would take each other's answers
            method = self.pair.greedy if order.sampling.greedy else self.pair.sampled
            session = await runner.session(method, order.sampling, order.seed)
        transcript = Transcript(self.pair.tokenizer, order.prompt, order.stops, ends)
        rounds: list[RoundRecord] = []

        def settle(record: RoundRecord) -> None:
            runner.observe(record)
            rounds.append(record)
            if text := transcript.push(session.committed[-record.committed :]):
                tell(Text(text))
            if transcript.stopped:
                raise _Enough

        try:
            reason = (await session.decode(order.prompt, order.max_tokens, ends, settle)).finish_reason
        except _Enough:
            reason = "stop"
        if text := transcript.flush():
            tell(Text(text))
        return Ended(
            "stop" if transcript.stopped else reason,
            transcript.tokens,
            rounds[0].protocol,
            len(rounds),
            sum(r.drafted for r in rounds),
            sum(r.accepted for r in rounds),
        )


class _Enough(Exception):
    """A stop string came: no more rounds."""


class DecodingJob:
    """One order: `begin`, then `next` until `Ended`; `cancel` whenever nobody waits for the rest."""

    def __init__(self, backend: Backend, order: OutputOrder) -> None:
        self._backend, self.order = backend, order
        self._events: asyncio.Queue[Text | Ended | Over] = asyncio.Queue()
        self._begun = False
        self._task: asyncio.Task[None] | None = None
        self.over = asyncio.Event()
        """Whether the drafter's sequence and the BS's session are free."""

    async def begin(self) -> None:
        """Wait for a place, and start."""
        await self._backend.enter(self)
        self._begun, self._loop = True, asyncio.get_running_loop()
        self._backend.device.loop.call_soon_threadsafe(self._start)

    async def next(self) -> Text | Ended:
        """What comes next.

        Raises:
            Exception: whatever ended the decoding.
            Closing: the endpoint was stopped.
        """
        event = await self._events.get()
        if not isinstance(event, Over):
            return event
        raise event.error or Closing("the endpoint is stopping")

    def cancel(self) -> None:
        """Stop, if it is under way; a second call does nothing."""
        if self._begun and not self.over.is_set():
            self._backend.device.loop.call_soon_threadsafe(self._stop)

    def _arrived(self, event: Text | Ended | Over) -> None:
        if isinstance(event, Over):
            self.over.set()
            self._backend.leave(self)
        self._events.put_nowait(event)

    # ------------------------------------------------------------ in the device's thread

    def _start(self) -> None:
        self._task = self._backend.device.loop.create_task(self._decode())
        self._task.add_done_callback(self._done)

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _decode(self) -> None:
        self._tell(await self._backend.decode(self.order, self._tell))

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tell(Over(None if task.cancelled() else task.exception()))

    def _tell(self, event: Text | Ended | Over) -> None:
        self._loop.call_soon_threadsafe(self._arrived, event)
