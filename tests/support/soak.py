"""A soak: UEs decode the same jobs over and over through relays, while faults happen to them and a BS is watched.

Every job was decoded once before the first fault; from then on every output is held against that one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zmq
import zmq.asyncio

from testbed.channel.link import ZmqLink, new_identity
from testbed.channel.path import Direction, constant
from testbed.channel.proxy import Proxy
from testbed.clock import WallClock
from testbed.protocols import PROTOCOLS, TARGET_ONLY, protocol
from testbed.protocols.messages import Draft, NeedHidden, Open
from testbed.protocols.sampling import Sampling
from testbed.synthetic import next_token
from testbed.ue.client import Client
from testbed.ue.pace import Steady
from testbed.ue.remote import decode_remotely
from testbed.ue.session import Session
from testbed.ue.synthetic import SyntheticDrafter
from testbed.ue.window import FixedWindow
from tests.support.hostile import Liar

VOCAB = 512
DELAY_S = 0.002
"""Of each way through a relay."""
TIMEOUT_S = 90.0
TRICKS = {"reset": 5, "kill": 2, "silent": 2, "garbage": 2}
"""Faults, and how often each comes."""
GARBAGE = 30
"""Messages of one liar."""
WARM_UP = 0.25
"""Share of the time before memory must be flat."""


@dataclass(frozen=True)
class Plan:
    """How long, how many, how hard."""

    seconds: float
    ues: int = 32
    seed: int = 0
    jobs: int = 24
    fault_every_s: float = 0.5
    draft_s: float = 0.02
    """Of a drafted token."""
    sample_s: float = 0.5


class Job(NamedTuple):
    """What a UE decodes."""

    kind: str
    prompt: tuple[int, ...]
    tokens: int
    seed: int


class Sample(NamedTuple):
    """The BS at one moment."""

    t_s: float
    rss_mb: float
    files: int
    sessions: int
    waiting: int


@dataclass
class Seen:
    """What came of it."""

    prompts: int = 0
    differing: int = 0
    failures: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    """Each counted once it is known to have taken effect."""
    samples: list[Sample] = field(default_factory=list)
    files_before: int = 0
    after: Sample | None = None
    """When everybody has gone."""

    def later(self, name: str) -> tuple[float, float]:
        """Medians of the first and of the last third of the time after the warm-up."""
        end_s = self.samples[-1].t_s
        begin_s = WARM_UP * end_s
        third_s = (end_s - begin_s) / 3
        values = [(s.t_s, float(getattr(s, name))) for s in self.samples]
        first = [v for t, v in values if begin_s <= t < begin_s + third_s]
        last = [v for t, v in values if t >= end_s - third_s]
        return statistics.median(first), statistics.median(last)

    def document(self, plan: Plan) -> dict[str, Any]:
        """As JSON has it."""
        assert self.after is not None
        trends = {name: self.later(name) for name in Sample._fields[1:]}
        return {
            "seconds": plan.seconds, "ues": plan.ues, "seed": plan.seed, "prompts": self.prompts,
            "differing": self.differing, "failures": self.failures, "faults": dict(self.faults),
            "trends": {name: {"first": a, "last": b} for name, (a, b) in trends.items()},
            "most": {name: max(getattr(s, name) for s in self.samples) for name in trends},
            "files_before": self.files_before, "after": self.after._asdict(),
            "samples": [list(sample) for sample in self.samples],
        }  # fmt: skip


def table(document: dict[str, Any]) -> str:
    """The report's few lines."""
    faults = ", ".join(f"{count} {kind}" for kind, count in sorted(document["faults"].items()))
    lines = [
        f"{document['ues']} UEs for {document['seconds']:g} s, seed {document['seed']}; faults: {faults}",
        f"{document['prompts']} outputs, {document['differing']} differing, {len(document['failures'])} failed",
        f"{'':10}{'first third':>13}{'last third':>13}{'most':>10}{'after':>10}",
    ]
    for name, trend in document["trends"].items():
        most, after = document["most"][name], document["after"][name]
        lines.append(f"{name:10}{trend['first']:13.1f}{trend['last']:13.1f}{most:10.1f}{after:10.1f}")
    return "\n".join(lines)


def make_jobs(plan: Plan) -> list[Job]:
    """Of every method, with prompts and outputs of many lengths."""
    rng, kinds = random.Random(f"soak/jobs/{plan.seed}"), (*PROTOCOLS, TARGET_ONLY)
    return [
        Job(kinds[i % len(kinds)], tuple(rng.randrange(VOCAB) for _ in range(rng.randint(2, 120))),
            rng.randint(10, 50), i)
        for i in range(plan.jobs)
    ]  # fmt: skip


async def decode(client: Client, job: Job, draft_s: float) -> list[int]:
    """One job's output."""
    if job.kind == TARGET_ONLY:
        return (await decode_remotely(client, job.prompt, job.tokens, ())).token_ids
    sampled = PROTOCOLS[job.kind].sampled
    session = Session(
        client, SyntheticDrafter(vocab_size=VOCAB, alpha=0.7), protocol(job.kind), FixedWindow(4), threshold=0.5,
        pace=Steady(client.clock, draft_s), seed=job.seed, **({"sampling": Sampling(0.8)} if sampled else {}),
    )  # fmt: skip
    return (await session.decode(job.prompt, job.tokens, ())).token_ids


def own(job: Job) -> list[int] | None:
    """The target's own greedy output; None where tokens are drawn."""
    if job.kind in PROTOCOLS and PROTOCOLS[job.kind].sampled:
        return None
    ids = list(job.prompt)
    for _ in range(job.tokens):
        ids.append(next_token(ids, VOCAB, 0))
    return ids[len(job.prompt) :]


class Soak:
    """UEs, faults and the watch over one BS process."""

    def __init__(self, plan: Plan, bind: str, pid: int, metrics: Path) -> None:
        self.plan, self.bind, self._pid, self._metrics = plan, bind, pid, metrics
        self.rng = random.Random(f"soak/faults/{plan.seed}")
        self.jobs, self.outputs, self.seen = make_jobs(plan), list[list[int]](), Seen()
        self.ending = asyncio.Event()
        self._guests: set[asyncio.Task[None]] = set()

    async def run(self) -> Seen:
        """The whole of it."""
        async with connected(self.bind, new_identity()) as client:
            self.outputs = list(await asyncio.gather(*(decode(client, job, 0.0) for job in self.jobs)))
        for job, output in zip(self.jobs, self.outputs, strict=True):
            assert own(job) in (None, output)
        await asyncio.sleep(1.5)
        self.seen.files_before = self._sample(0.0).files
        ues = [Ue(number, self) for number in range(self.plan.ues)]
        for ue in ues:
            await ue.start()
        begun_s = time.monotonic()
        watching, first = asyncio.create_task(self._watch(begun_s)), list(TRICKS)
        while (left_s := begun_s + self.plan.seconds - time.monotonic()) > 0:
            await asyncio.sleep(min(left_s, self.rng.expovariate(1 / self.plan.fault_every_s)))
            kind = first.pop() if first else self.rng.choices(list(TRICKS), list(TRICKS.values()))[0]
            await self._trick(kind, self.rng.choice(ues))
        self.ending.set()
        await asyncio.gather(*(ue.ended() for ue in ues))
        watching.cancel()
        await asyncio.gather(watching, *self._guests, return_exceptions=True)
        self.seen.after = await self._at_rest()
        return self.seen

    async def _trick(self, kind: str, ue: Ue) -> None:
        if kind == "reset":
            self.seen.faults["reset"] += ue.proxy.reset()
        elif kind == "kill":
            await ue.kill(same=self.rng.random() < 0.5)
        else:
            guest = asyncio.create_task(
                self._silent() if kind == "silent" else self._garbage(self.rng.randrange(2**32))
            )
            self._guests.add(guest)
            guest.add_done_callback(self._guests.discard)

    async def _silent(self) -> None:
        """A UE that is asked for hidden states and says nothing more."""
        async with connected(self.bind, new_identity()) as client:
            number, ids = client.new_session(), np.array([1, 2, 3], np.int32)
            await client.send(Open(session=number, protocol="sh", threshold=0.5, hidden_size=4), {"ids": ids})
            await client.receive(number, TIMEOUT_S)
            wrong = (next_token([1, 2, 3], VOCAB, 0) + 1) % VOCAB
            await client.send(Draft(session=number, round=0, base_len=3), {"ids": np.array([wrong], np.int32)})
            if isinstance((await client.receive(number, TIMEOUT_S)).message, NeedHidden):
                self.seen.faults["silent"] += 1
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.ending.wait(), 3)

    async def _garbage(self, seed: int) -> None:
        """A peer that lies."""
        liar, context = Liar(seed, range(8), VOCAB), zmq.asyncio.Context()
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(self.bind)
        try:
            for _ in range(GARBAGE):
                await socket.send_multipart(liar.frames())
                await asyncio.sleep(0.02)
            if await socket.poll(1000 * int(TIMEOUT_S)):
                self.seen.faults["garbage"] += 1
        finally:
            socket.close(0)
            context.term()

    # ------------------------------------------------------------ the watch

    async def _watch(self, begun_s: float) -> None:
        while True:
            self.seen.samples.append(self._sample(time.monotonic() - begun_s))
            await asyncio.sleep(self.plan.sample_s)

    def _sample(self, t_s: float) -> Sample:
        status = Path(f"/proc/{self._pid}/status").read_text()
        rss_mb = int(status.partition("VmRSS:")[2].split()[0]) / 1024
        counted = last_line(self._metrics)
        files = len(os.listdir(f"/proc/{self._pid}/fd"))
        return Sample(t_s, rss_mb, files, counted["sessions"], counted["waiting"])

    async def _at_rest(self) -> Sample:
        """When sessions have expired and connections are gone, or after a while."""
        for _ in range(100):
            sample = self._sample(self.plan.seconds)
            if not sample.sessions and sample.files <= self.seen.files_before:
                break
            await asyncio.sleep(0.3)
        return sample


def last_line(path: Path) -> dict[str, Any]:
    """What the BS last counted."""
    if not path.exists() or not path.stat().st_size:
        return {"sessions": 0, "waiting": 0}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2**16))
        found: dict[str, Any] = json.loads(file.read().rpartition(b"\n")[0].rpartition(b"\n")[2])
    return found


@contextlib.asynccontextmanager
async def connected(bind: str, identity: bytes) -> AsyncIterator[Client]:
    """A client that has said Hello."""
    client = Client(ZmqLink(bind, identity), WallClock(), 0, TIMEOUT_S)
    try:
        await client.connect("", VOCAB)
        yield client
    finally:
        await client.close()


class Ue:
    """One UE behind a relay of its own; it may be killed, and begins anew then."""

    def __init__(self, number: int, soak: Soak) -> None:
        self._soak, self._rng = soak, random.Random(f"soak/ue/{soak.plan.seed}/{number}")
        host, port = soak.bind.removeprefix("tcp://").rsplit(":", 1)
        ways = [Direction(constant(delay_s=DELAY_S)) for _ in range(2)]
        self.proxy = Proxy((host, int(port)), lambda _: (ways[0], ways[1]))
        self._identity = new_identity()
        self._link: ZmqLink | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the relay, and begin."""
        self._port = await self.proxy.start("127.0.0.1", 0)
        self._begin()

    def _begin(self) -> None:
        self._link = ZmqLink(f"tcp://127.0.0.1:{self._port}", self._identity)
        self._task = asyncio.create_task(self._live(self._link))

    async def kill(self, same: bool) -> None:
        """End it as SIGKILL would, without a word to the BS; it comes back under the same identity, or another."""
        assert self._link is not None and self._task is not None
        self._link.close()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._soak.seen.faults["kill"] += 1
        if not same:
            self._identity = new_identity()
        self._begin()

    async def ended(self) -> None:
        """Wait for its last output."""
        assert self._task is not None
        await asyncio.gather(self._task, return_exceptions=True)
        await self.proxy.close()

    async def _live(self, link: ZmqLink) -> None:
        soak, rng = self._soak, self._rng
        client = Client(link, WallClock(), rng.randrange(2**31), TIMEOUT_S)
        try:
            await client.connect("", VOCAB)
            while not soak.ending.is_set():
                which = rng.randrange(len(soak.jobs))
                output = await decode(client, soak.jobs[which], soak.plan.draft_s)
                soak.seen.prompts += 1
                soak.seen.differing += output != soak.outputs[which]
        except Exception as exc:
            if link is self._link and not isinstance(exc, zmq.ZMQError):  # else it was killed
                soak.seen.failures.append(f"{type(exc).__name__}: {exc}")
        finally:
            with contextlib.suppress(zmq.ZMQError):
                await client.close()
