"""UE of a soak test: decodes jobs through its own relay until the end, and is killed at times."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import zmq

from testbed.channel.link import ZmqLink, new_identity
from testbed.channel.link_model import Direction, constant
from testbed.channel.proxy import Proxy
from testbed.clock import WallClock
from testbed.protocols import PROTOCOLS, TARGET_ONLY, protocol
from testbed.protocols.sampling import Sampling
from testbed.ue.client import Client
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.pace import ConstantPace
from testbed.ue.session import DecodingSession
from testbed.ue.target_only import decode_remotely
from testbed.ue.windows.fixed import FixedWindow
from tests.support.soak.plan import TIMEOUT_S, VOCAB, Job, Plan
from tests.support.soak.seen import Seen

DELAY_S = 0.002
"""Delay of each direction through a relay."""


@contextlib.asynccontextmanager
async def connected(bind: str, identity: bytes) -> AsyncIterator[Client]:
    """A connected client."""
    client = Client(ZmqLink(bind, identity), WallClock(), 0, TIMEOUT_S)
    try:
        await client.connect("", VOCAB)
        yield client
    finally:
        await client.close()


async def decode(client: Client, job: Job, draft_s: float) -> list[int]:
    """Output of one job."""
    if job.kind == TARGET_ONLY:
        return (await decode_remotely(client, job.prompt, job.tokens, ())).token_ids
    sampled, skips = PROTOCOLS[job.kind].sampled, PROTOCOLS[job.kind].skips
    session = DecodingSession(
        client, SyntheticDrafter(vocab_size=VOCAB, alpha=0.7), protocol(job.kind), FixedWindow(4),
        threshold=0.0 if skips else 0.5, pace=ConstantPace(client.clock, draft_s), seed=job.seed,
        lookahead=job.seed % 2,
        **({"sampling": Sampling(0.8)} if sampled else {}),
    )  # fmt: skip
    return (await session.decode(job.prompt, job.tokens, ())).token_ids


@dataclass(frozen=True)
class Work:
    """State that all UEs share: jobs, their outputs without faults, results, and the end of the test."""

    plan: Plan
    bind: str
    jobs: Sequence[Job]
    outputs: Sequence[list[int]]
    seen: Seen
    ending: asyncio.Event


class Ue:
    """One UE with its own relay; it may be killed and then restarts."""

    def __init__(self, number: int, work: Work) -> None:
        self._work, self._rng = work, random.Random(f"soak/ue/{work.plan.seed}/{number}")
        host, port = work.bind.removeprefix("tcp://").rsplit(":", 1)
        ways = [Direction(constant(delay_s=DELAY_S)) for _ in range(2)]
        self.proxy = Proxy((host, int(port)), lambda _: (ways[0], ways[1]))
        self._identity = new_identity()
        self._link: ZmqLink | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the relay and start decoding."""
        self._port = await self.proxy.start("127.0.0.1", 0)
        self._begin()

    def _begin(self) -> None:
        self._link = ZmqLink(f"tcp://127.0.0.1:{self._port}", self._identity)
        self._task = asyncio.create_task(self._live(self._link))

    async def kill(self, same: bool) -> None:
        """Stop it without notice to the BS, as SIGKILL would; it restarts under the same or another identity."""
        assert self._link is not None and self._task is not None
        self._link.close()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._work.seen.faults["kill"] += 1
        if not same:
            self._identity = new_identity()
        self._begin()

    async def ended(self) -> None:
        """Wait for the last output."""
        assert self._task is not None
        await asyncio.gather(self._task, return_exceptions=True)
        await self.proxy.close()

    async def _live(self, link: ZmqLink) -> None:
        work, rng = self._work, self._rng
        client = Client(link, WallClock(), rng.randrange(2**31), TIMEOUT_S)
        try:
            await client.connect("", VOCAB)
            while not work.ending.is_set():
                which = rng.randrange(len(work.jobs))
                output = await decode(client, work.jobs[which], work.plan.draft_s)
                work.seen.prompts += 1
                work.seen.differing += output != work.outputs[which]
        except Exception as exc:
            if link is self._link and not isinstance(exc, zmq.ZMQError):  # else it was killed
                work.seen.failures.append(f"{type(exc).__name__}: {exc}")
        finally:
            with contextlib.suppress(zmq.ZMQError):
                await client.close()
