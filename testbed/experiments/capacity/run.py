"""One capacity run in virtual time: N UEs and a BS, the code that serves for real, an accelerator's times.

Nothing here schedules, verifies or drafts: UEs are `ue.session.Session` and `ue.target_only.decode_remotely`, the BS is
`bs.server.BaseStation`; times come from the profile, tokens from `capacity_ue`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from testbed.bs.intake import Intake, Offer
from testbed.bs.judging.base import StrictJudge
from testbed.bs.scheduling.registry import scheduler
from testbed.bs.server import BaseStation
from testbed.bs.sessions import SessionTable
from testbed.channel.virtual import VirtualServerLink
from testbed.experiments.capacity.bs import EachRound, Patient, PrefixCache, Reservation, RoundDelay, TrafficRunner
from testbed.experiments.capacity.systems import (
    CARRY,
    FCFS,
    FILLED,
    HINTED,
    MOST_UES,
    NONE,
    ROUND,
    CapacityConfig,
    System,
    hardware,
)
from testbed.experiments.capacity.tally import ALL, CapacityRun, Tally
from testbed.experiments.capacity.ue import (
    LANGUAGE,
    MOST_POSITIONS,
    VOCAB,
    Chance,
    TrafficDrafter,
    TrafficPace,
    policy,
)  # fmt: skip
from testbed.experiments.inputs.profile import InteractionVerify
from testbed.experiments.runs.virtual import hinting
from testbed.optim.pass_time import Coefficients
from testbed.protocols import protocol
from testbed.ue.client import Client
from testbed.ue.records import RoundRecord
from testbed.ue.session import DecodingSession
from testbed.ue.target_only import decode_remotely
from testbed.virtual_time import VirtualClock, run_virtually

TIMEOUT_S = 1e6
UNBOUNDED = 10**12
"""Tokens: centralized requests have reserved their room, and nothing is evicted."""


def run_capacity(
    config: CapacityConfig,
    system: System,
    classes: Sequence[float],
    seed: int,
    *,
    until: str = ALL,
    events: bool = False,
) -> CapacityRun:
    """One UE for each entry of `classes`, which names its speed.

    Args:
        until: `ALL`, `ANY` or `CLEAR`.
        events: keep each round's times, and each pass.
    """
    return run_virtually(_Traffic(config, system, classes, seed).run(until, events))


class _Traffic:
    """A run's parts."""

    def __init__(self, config: CapacityConfig, system: System, classes: Sequence[float], seed: int) -> None:
        self._config, self._system, self._classes, self._seed = config, system, classes, seed
        self._clock = VirtualClock()
        self._memory = Reservation(config.kv_tokens)
        self._server = VirtualServerLink()
        profile = hardware(config)
        assert isinstance(profile.verify, InteractionVerify)
        cost = profile.verify
        cache = PrefixCache(config.kv_tokens, config.evict == "tail") if system.memory != "none" else None
        self._cache = None if system.memory != "cache" else cache
        if system.memory == "reserved":
            cache = PrefixCache(UNBOUNDED, tail=False)
        self._runner = runner = TrafficRunner(cost, cache, self._clock, config.linger)
        offer = Offer("synthetic", "", VOCAB, 1, (), MOST_POSITIONS)
        coefficients = Coefficients(cost.a_s, cost.b_compute_s, cost.b_read_s, cost.c_s)
        kv = config.kv_tokens if system.memory == "cache" else None
        kind = "fcfs" if system.order == FCFS else "slo"
        plan = scheduler(
            kind, config.max_batch, 10**9, coefficients, kv_tokens=kv, protect=system.order != FILLED,
            cuts=system.order == CARRY,
        )  # fmt: skip
        if system.order in (ROUND, FILLED):
            plan = EachRound(plan)
        intake = Intake(offer, SessionTable(total=2 * MOST_UES))
        self._station = BaseStation(
            self._server, runner, intake, plan, StrictJudge(), self._clock,
            windows=hinting(profile, max_requests=config.max_batch) if system.window == HINTED else None,
        )  # fmt: skip

    async def run(self, until: str, events: bool) -> CapacityRun:
        started_s = time.process_time()
        self._runner.keep_passes = events
        tally = Tally(self._config, self._clock, sorted(set(self._classes)), until)
        tasks = [asyncio.create_task(self._ue(i, speed, tally)) for i, speed in enumerate(self._classes)]
        tasks.append(asyncio.create_task(self._station.serve()))
        tasks.append(asyncio.create_task(tally.done.wait()))  # type: ignore[arg-type]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        counted = self._station.metrics()
        config = self._config
        return CapacityRun(
            system=self._system.name,
            ues=len(self._classes),
            seed=self._seed,
            classes={f"{speed:g}": count for speed, count in tally.classes.items()},
            complete=not any(count.open for count in tally.classes.values()),
            goodput_tps=tally.tokens / config.horizon_s,
            drafted=tally.drafted,
            accepted=tally.accepted,
            rounds=tally.rounds,
            batch_size=tally.batches / max(1, tally.rounds),
            busy_share=counted["busy_s"] / self._clock.time(),
            evicted_tokens=self._cache.evicted if self._cache else 0,
            virtual_s=self._clock.time(),
            cpu_s=time.process_time() - started_s,
            events=tally.events if events else None,
            passes=self._runner.passes if events else None,
        )

    async def _ue(self, number: int, speed_tps: float, tally: Tally) -> None:
        config, clock = self._config, self._clock
        work, dice = random.Random(f"work {self._seed} {number}"), f"{self._seed} {number}"
        chance = Chance(config, random.Random(f"chance {dice}").getrandbits(64))
        times = config.network_ms / 1e3, config.network_spread
        up = RoundDelay(*times, random.Random(f"link {dice}").getrandbits(64))
        link = Patient(self._server.attach(f"ue-{number}".encode(), up, RoundDelay(*times, 0, up)))
        client = Client(link, clock, 0, TIMEOUT_S)
        rule = policy(config, self._system.window, chance)
        ue = _VirtualUe(
            client, TrafficDrafter(chance), rule, TrafficPace(clock, 1 / config.draft_tps, rule), speed_tps, tally
        )
        await clock.sleep(work.uniform(0, config.warmup_s / 3))
        await client.connect("", VOCAB)
        prompt, length = self._drawn(work, lasting=True)
        done = int(work.random() * length)
        try:
            while True:
                await self._respond(ue, prompt, length, done)
                await clock.sleep(config.think_s)
                prompt, length = self._drawn(work)
                done = 0
        finally:
            await client.close()

    def _drawn(self, work: random.Random, lasting: bool = False) -> tuple[int, int]:
        """Tokens of a prompt and its response; of a response that is under way at some moment, where `lasting`."""
        low, high = self._config.response
        length = work.randint(low, high)
        while lasting and work.random() * high >= length:
            length = work.randint(low, high)
        return work.randint(*self._config.prompt), length

    async def _respond(self, ue: _VirtualUe, prompt: int, length: int, done: int) -> None:
        ended = ue.tally.begun(ue.speed_tps, length) if not done else None
        ids: Any = LANGUAGE[: prompt + done]

        def progress(record: RoundRecord) -> None:
            ue.tally.round(record, ue.speed_tps)
            ue.policy.observe(record)

        if self._system.window != NONE:
            session = DecodingSession(
                ue.client, ue.drafter, protocol("greedy"), ue.policy, pace=ue.pace, speed_tps=ue.speed_tps
            )
            await session.decode(ids, length - done, (), progress)
        else:
            await self._memory.take(prompt + length)
            try:
                await decode_remotely(ue.client, ids, length - done, (), progress, speed_tps=ue.speed_tps)
            finally:
                self._memory.give(prompt + length)
        if ended:
            ended()


class _VirtualUe(msgspec.Struct, frozen=True):
    """One UE's parts."""

    client: Client
    drafter: TrafficDrafter
    policy: Any
    pace: TrafficPace
    speed_tps: float
    tally: Tally
