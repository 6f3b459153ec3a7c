"""Soak test: UEs decode the same jobs repeatedly through relays with faults, while the BS is observed.

Every job is decoded once before the first fault; later outputs are compared with that one.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine
from pathlib import Path

from testbed.channel.link import new_identity
from tests.support.soak.guests import garbage, silent
from tests.support.soak.plan import TRICKS, Plan, make_jobs
from tests.support.soak.seen import Seen
from tests.support.soak.ue import Ue, Work, connected, decode
from tests.support.soak.watch import Watch


class Soak:
    """UEs, faults and observation of one BS process."""

    def __init__(self, plan: Plan, bind: str, pid: int, metrics: Path) -> None:
        self._plan, self._bind, self._watch = plan, bind, Watch(pid, metrics)
        self._rng = random.Random(f"soak/faults/{plan.seed}")
        self._seen, self._ending = Seen(), asyncio.Event()
        self._guests: set[asyncio.Task[None]] = set()

    async def run(self) -> Seen:
        """Run the soak test."""
        work = await self._undisturbed()
        await asyncio.sleep(1.5)
        self._seen.files_before = self._watch.sample(0.0).files
        ues = [Ue(number, work) for number in range(self._plan.ues)]
        for ue in ues:
            await ue.start()
        begun_s = time.monotonic()
        watching = asyncio.create_task(self._watch.run(self._plan.sample_s, begun_s, self._seen.samples.append))
        await self._disturb(ues, begun_s + self._plan.seconds)
        self._ending.set()
        await asyncio.gather(*(ue.ended() for ue in ues))
        watching.cancel()
        await asyncio.gather(watching, *self._guests, return_exceptions=True)
        self._seen.after = await self._watch.at_rest(self._plan.seconds, self._seen.files_before)
        return self._seen

    async def _undisturbed(self) -> Work:
        """Decode every job once; unless tokens are sampled, the output must be the target's own."""
        jobs = make_jobs(self._plan)
        async with connected(self._bind, new_identity()) as client:
            outputs = await asyncio.gather(*(decode(client, job, 0.0) for job in jobs))
        for job, output in zip(jobs, outputs, strict=True):
            assert job.own in (None, output)
        return Work(self._plan, self._bind, jobs, outputs, self._seen, self._ending)

    async def _disturb(self, ues: list[Ue], end_s: float) -> None:
        """Inject faults at random times, one of each kind first."""
        first = list(TRICKS)
        while (left_s := end_s - time.monotonic()) > 0:
            await asyncio.sleep(min(left_s, self._rng.expovariate(1 / self._plan.fault_every_s)))
            kind = first.pop() if first else self._rng.choices(list(TRICKS), list(TRICKS.values()))[0]
            ue = self._rng.choice(ues)
            if kind == "reset":
                self._seen.faults[kind] += ue.proxy.reset()
            elif kind == "kill":
                await ue.kill(same=self._rng.random() < 0.5)
            elif kind == "silent":
                self._invite(kind, silent(self._bind, self._ending))
            else:
                self._invite(kind, garbage(self._bind, self._rng.randrange(2**32)))

    def _invite(self, kind: str, guest: Coroutine[None, None, bool]) -> None:
        async def visit() -> None:
            try:
                self._seen.faults[kind] += await guest
            except Exception as exc:
                self._seen.failures.append(f"{kind}: {type(exc).__name__}: {exc}")

        task = asyncio.create_task(visit())
        self._guests.add(task)
        task.add_done_callback(self._guests.discard)
