"""One capacity run in virtual time: N UEs and a base station, with the pass times of an accelerator.

UEs and base station are those of every run (`deployment/virtual.py`); pass times come from the profile, tokens from
`capacity/ue.py`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from testbed.bs.scheduling.base import Scheduler
from testbed.bs.scheduling.registry import SchedulerSetting, scheduler
from testbed.bs.sessions import SessionTable
from testbed.channel.link_model import round_delay
from testbed.experiments.capacity.bs import OFFER, EachRound, PrefixCache, Reservation, TrafficRunner
from testbed.experiments.capacity.systems import (
    CARRY,
    FILLED,
    HINTED,
    MOST_UES,
    ROUND,
    CapacityConfig,
    System,
    hardware,
)
from testbed.experiments.capacity.tally import ALL, CapacityRun, Tally
from testbed.experiments.capacity.ue import LANGUAGE, VOCAB, Chance, TrafficDrafter, TrafficPace, policy
from testbed.experiments.deployment.load import LoadUe
from testbed.experiments.deployment.profiled import hinting
from testbed.experiments.deployment.virtual import VirtualDeployment
from testbed.optim.pass_time import Coefficients
from testbed.ue.records import RoundRecord
from testbed.virtual_time import run_virtually

UNBOUNDED = 10**12
"""Tokens of a cache that never evicts, since centralized requests reserve their memory."""


def run_capacity(
    config: CapacityConfig,
    system: System,
    classes: Sequence[float],
    seed: int,
    *,
    until: str = ALL,
    events: bool = False,
) -> CapacityRun:
    """One capacity run.

    Args:
        classes: token speed of each UE.
        until: `ALL`, `ANY` or `CLEAR`.
        events: record the times of all rounds and passes.
    """
    return run_virtually(_Traffic(config, system, classes, seed).run(until, events))


class _Traffic:
    """The parts of a run."""

    def __init__(self, config: CapacityConfig, system: System, classes: Sequence[float], seed: int) -> None:
        self._config, self._system, self._classes, self._seed = config, system, classes, seed
        self._deployment = VirtualDeployment()
        self._memory = Reservation(config.kv_tokens)
        profile = hardware(config)
        self._cache = _cache(config, system)
        self._runner = TrafficRunner(profile.verify, self._cache, self._deployment.clock, config.linger)
        self._bs = self._deployment.base_station(
            self._runner,
            OFFER,
            scheduler=_scheduler(config, system, profile.interactions.coefficients),
            sessions=SessionTable(total=2 * MOST_UES),
            windows=hinting(profile, max_requests=config.max_batch) if system.window == HINTED else None,
        )

    async def run(self, until: str, events: bool) -> CapacityRun:
        started_s = time.process_time()
        self._runner.keep_passes = events
        clock, config = self._deployment.clock, self._config
        tally = Tally(config, clock, sorted(set(self._classes)), until)
        ues = (self._ue(number, speed, tally) for number, speed in enumerate(self._classes))
        await self._deployment.run(tally.done.wait(), *ues)
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
            busy_share=self._bs.metrics()["busy_s"] / clock.time(),
            evicted_tokens=self._cache.evicted if self._cache else 0,
            virtual_s=clock.time(),
            cpu_s=time.process_time() - started_s,
            events=tally.events if events else None,
            passes=self._runner.passes if events else None,
        )

    async def _ue(self, number: int, speed_tps: float, tally: Tally) -> None:
        config, clock = self._config, self._deployment.clock
        work, dice = random.Random(f"work {self._seed} {number}"), f"{self._seed} {number}"
        chance = Chance(config, random.Random(f"chance {dice}").getrandbits(64))
        link_seed = random.Random(f"link {dice}").getrandbits(64)
        client = self._bs.connect(round_delay(config.network_ms / 1e3, config.network_spread, link_seed))
        rule = policy(config, self._system.window, chance)
        pace = TrafficPace(clock, 1 / config.draft_tps, rule)
        ue = LoadUe(client, TrafficDrafter(chance), rule, pace, speed_tps=speed_tps)
        await clock.sleep(work.uniform(0, config.warmup_s / 3))
        await client.connect("", VOCAB)
        prompt, length = self._drawn(work, lasting=True)
        done = int(work.random() * length)
        try:
            while True:
                await self._respond(ue, tally, prompt, length, done)
                await clock.sleep(config.think_s)
                prompt, length = self._drawn(work)
                done = 0
        finally:
            await client.close()

    def _drawn(self, work: random.Random, lasting: bool = False) -> tuple[int, int]:
        """Tokens of a prompt and its response; with `lasting`, of a response in progress at a random moment."""
        low, high = self._config.response
        length = work.randint(low, high)
        while lasting and work.random() * high >= length:
            length = work.randint(low, high)
        return work.randint(*self._config.prompt), length

    async def _respond(self, ue: LoadUe, tally: Tally, prompt: int, length: int, done: int) -> None:
        speed_tps = ue.speed_tps or 0.0
        ended = tally.begun(speed_tps, length) if not done else None
        ids: Any = LANGUAGE[: prompt + done]

        def progress(record: RoundRecord) -> None:
            tally.round(record, speed_tps)
            if ue.policy is not None:
                ue.policy.observe(record)

        whole = prompt + length if self._system.memory == "reserved" else 0
        async with self._memory.reserved(whole):
            await ue.decode(ids, length - done, progress)
        if ended:
            ended()


def _cache(config: CapacityConfig, system: System) -> PrefixCache | None:
    if system.memory == "none":
        return None
    if system.memory == "reserved":
        return PrefixCache(UNBOUNDED, tail=False)
    return PrefixCache(config.kv_tokens, config.evict == "tail")


def _scheduler(config: CapacityConfig, system: System, coefficients: Coefficients) -> Scheduler:
    setting = SchedulerSetting(
        config.max_batch,
        10**9,
        coefficients,
        kv_tokens=config.kv_tokens if system.memory == "cache" else None,
        protect=system.order != FILLED,
        cuts=system.order not in (ROUND, FILLED),
    )
    plan = scheduler(CARRY if system.order in (ROUND, FILLED) else system.order, setting)
    return EachRound(plan) if system.order in (ROUND, FILLED) else plan
