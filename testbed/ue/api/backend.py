"""Decoding backend of an endpoint: runs requests on drafter and target, in a thread beside the web server's."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tokenizers import Tokenizer

from testbed.errors import BadInput, TestbedError
from testbed.protocols.sampling import Sampling
from testbed.ue.api.drafting_thread import DraftingThread
from testbed.ue.api.stop_strings import Transcript
from testbed.ue.records import RoundRecord
from testbed.ue.run import JobRunner

PROBE_S = 2.0
"""Time that the BS has to answer a handshake of `/health`."""


class QueueFull(TestbedError):
    """The queue of waiting requests is full."""


class Closing(TestbedError):
    """The endpoint is shutting down."""


class OutputRequest(NamedTuple):
    """One requested output."""

    prompt: list[int]
    max_tokens: int
    sampling: Sampling
    seed: int
    """Seed of the random numbers, in [0, 2⁶⁴)."""
    stops: tuple[str, ...] = ()
    ignore_eos: bool = False
    """Whether end tokens do not end the output."""


class Text(NamedTuple):
    """Text that a round added to the output."""

    text: str


class Ended(NamedTuple):
    """Last event of a request: the finish reason, and totals over its rounds."""

    reason: str
    """`stop` or `length`."""
    tokens: int
    protocol: str
    rounds: int
    drafted: int
    accepted: int


class Over(NamedTuple):
    """A request's slot is free again."""

    error: BaseException | None


@dataclass(frozen=True)
class ConnectedPair:
    """Drafter and connection to the target; used in the drafting thread only.

    Attributes:
        greedy: method for requests at temperature 0.
        sampled: method for the others.
        context: number of positions for prompt and output together.
    """

    runner: JobRunner
    tokenizer: Tokenizer
    end_ids: tuple[int, ...]
    greedy: str
    sampled: str
    context: int


class Backend:
    """Runs requests: as many at once as the drafter has sequences; a bounded number of others wait.

    All methods except `decode` must be called in the web server's event loop.

    Attributes:
        waiting: number of waiting requests.
    """

    def __init__(self, device: DraftingThread, pair: ConnectedPair, sequences: int, queue: int) -> None:
        """`queue`: largest number of waiting requests."""
        self.device, self.pair = device, pair
        self._places, self._queue, self.waiting = asyncio.Semaphore(sequences), queue, 0
        self._most = sequences + queue
        self._probing, self._probed_s, self._trouble = asyncio.Lock(), -math.inf, ""
        self._jobs: set[DecodingJob] = set()
        self._closing = False

    def job(self, order: OutputRequest) -> DecodingJob:
        """A new job for a request."""
        return DecodingJob(self, order)

    def check_room(self, count: int) -> None:
        """Refuse outputs that are asked for at once and never find room together, however idle the endpoint is.

        Raises:
            BadInput: there are more than can be decoded and wait at once.
        """
        if count > self._most:
            most = f"at most {self._most} have room here; send fewer, or ask for a stream"
            raise BadInput(f"{count} prompts in one request: {most}")

    async def enter(self, job: DecodingJob) -> None:
        """Wait for a free slot.

        Raises:
            QueueFull: the queue is full.
            Closing: the endpoint is shutting down.
        """
        if self._places.locked() and self.waiting >= self._queue:
            raise QueueFull(f"all places are taken and {self.waiting} requests wait already; try again later")
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
        """Free a job's slot."""
        self._jobs.discard(job)
        self._places.release()

    @property
    def busy(self) -> int:
        """Number of requests being decoded."""
        return len(self._jobs)

    async def close(self) -> None:
        """Cancel all jobs, and wait until all slots are free."""
        self._closing = True
        jobs = list(self._jobs)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*(job.over.wait() for job in jobs))

    async def trouble(self) -> str:
        """Why the BS cannot be used, empty if it can, by a handshake within `PROBE_S`, at most once per `PROBE_S`."""
        async with self._probing:
            if time.monotonic() - self._probed_s >= PROBE_S:
                future = asyncio.run_coroutine_threadsafe(self.pair.runner.trouble(PROBE_S), self.device.loop)
                self._trouble = await asyncio.wrap_future(future)
                self._probed_s = time.monotonic()
            return self._trouble

    async def watch(self) -> None:
        """Ask the BS again and again, so that a lost link is noticed, and logged by the client, without any request."""
        while True:
            await self.trouble()
            await asyncio.sleep(PROBE_S)

    async def decode(self, order: OutputRequest, tell: Callable[[Text], None]) -> Ended:
        """Decode a request; called in the drafting thread."""
        runner, ends = self.pair.runner, () if order.ignore_eos else self.pair.end_ids
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
    """A stop string was found, so that no more rounds are needed."""


class DecodingJob:
    """One request: call `begin`, then `next` until it returns `Ended`, or `cancel` at any time."""

    def __init__(self, backend: Backend, order: OutputRequest) -> None:
        self._backend, self.order = backend, order
        self._events: asyncio.Queue[Text | Ended | Over] = asyncio.Queue()
        self._begun = False
        self._task: asyncio.Task[None] | None = None
        self.over = asyncio.Event()
        """Set when the drafter's sequence and the BS's session are free."""

    async def begin(self) -> None:
        """Wait for a slot, and start decoding."""
        await self._backend.enter(self)
        self._begun, self._loop = True, asyncio.get_running_loop()
        self._backend.device.loop.call_soon_threadsafe(self._start)

    async def next(self) -> Text | Ended:
        """The next event.

        Raises:
            Exception: the error that ended the decoding.
            Closing: the endpoint is shutting down.
        """
        event = await self._events.get()
        if not isinstance(event, Over):
            return event
        raise event.error or Closing("the endpoint is stopping")

    def cancel(self) -> None:
        """Stop decoding if it has begun; a second call does nothing."""
        if self._begun and not self.over.is_set():
            self._backend.device.loop.call_soon_threadsafe(self._stop)

    def _arrived(self, event: Text | Ended | Over) -> None:
        if isinstance(event, Over):
            self.over.set()
            self._backend.leave(self)
        self._events.put_nowait(event)

    # ------------------------------------------------------------ in the drafting thread

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
