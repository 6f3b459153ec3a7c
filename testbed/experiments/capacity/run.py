"""One capacity run in virtual time: N UEs and a base station, with the pass times of an accelerator.

UEs and base station are those of every run (`deployment/virtual.py`); pass times come from the profile, tokens from
`deployment/traffic_ue.py`.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from typing import Any

from testbed.bs.scheduling.registry import SCHEDULERS, SchedulerSetting, scheduler
from testbed.bs.scheduling.slo_rules import Rules
from testbed.bs.sessions import SessionTable
from testbed.channel.link_model import OneWay, round_delay
from testbed.channel.radio.model import RadioUe
from testbed.experiments.capacity.bs import Observed, Reservation
from testbed.experiments.capacity.config import MOST_UES, CapacityConfig, hardware
from testbed.experiments.capacity.systems import System
from testbed.experiments.capacity.tally import ALL, CapacityRun, Tally
from testbed.experiments.deployment.links import VirtualRadio, payload_sizes, radio_section
from testbed.experiments.deployment.load import LoadUe
from testbed.experiments.deployment.profiled import hinting
from testbed.experiments.deployment.traffic_bs import OFFER, PrefixCache, TrafficRunner
from testbed.experiments.deployment.traffic_ue import LANGUAGE, VOCAB, Chance, TrafficDrafter, policy
from testbed.experiments.deployment.virtual import VirtualDeployment
from testbed.intervals import independent_seed
from testbed.optim.pass_time import Coefficients
from testbed.ue.pace import ConstantPace
from testbed.ue.records import RoundRecord
from testbed.ue.windows.base import WindowPolicy
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
    """The parts of a run. The seed and the number of UEs give its random numbers, the same for all systems."""

    def __init__(self, config: CapacityConfig, system: System, classes: Sequence[float], seed: int) -> None:
        self._config, self._system, self._classes, self._seed = config, system, classes, seed
        self._dice = independent_seed(seed, len(classes))
        self._deployment = VirtualDeployment()
        self._memory = Reservation(config.kv_tokens)
        profile = hardware(config)
        self._cache = _cache(config, system)
        self._runner = TrafficRunner(profile.verify, self._cache, self._deployment.clock, config.linger)
        self._scheduler = _scheduler(config, system, profile.interactions.coefficients, self._dice)
        self._radio = None if config.radio is None else _radio(config, config.radio, len(classes), self._dice)
        self._bs = self._deployment.base_station(
            self._runner,
            OFFER,
            scheduler=self._scheduler,
            sessions=SessionTable(total=2 * MOST_UES),
            windows=hinting(profile, max_requests=config.max_batch) if system.window and system.window.hinted else None,
        )

    async def run(self, until: str, events: bool) -> CapacityRun:
        started_s = time.process_time()
        self._runner.keep_passes = events
        clock, config = self._deployment.clock, self._config
        tally = Tally(config, clock, self._classes, until)
        ues = (self._ue(number, speed, tally) for number, speed in enumerate(self._classes))
        await self._deployment.run(tally.done.wait(), *ues)
        tally.finish()
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
            empty=tally.empty,
            batch_size=tally.batches / max(1, tally.rounds),
            busy_share=self._bs.metrics()["busy_s"] / clock.time(),
            uplink_share=self._radio.uplink_share if self._radio else None,
            evicted_tokens=self._cache.evicted if self._cache else 0,
            memory_bound=self._scheduler.bound / max(1, self._scheduler.plans),
            virtual_s=clock.time(),
            cpu_s=time.process_time() - started_s,
            events=tally.events if events else None,
            passes=self._runner.passes if events else None,
        )

    async def _ue(self, number: int, speed_tps: float, tally: Tally) -> None:
        config, clock = self._config, self._deployment.clock
        work, chance_seed, link_seed = (
            independent_seed(self._dice, part, number) for part in ("work", "chance", "link")
        )
        dice, chance = random.Random(work), Chance(config.chances, chance_seed)
        client = self._bs.connect(self._ways(number, link_seed), payload_sizes(config.payload))
        rule, pace = _policy(config, self._system), ConstantPace(clock, 1 / config.draft_tps)
        ue = LoadUe(client, TrafficDrafter(chance), rule, pace, speed_tps=speed_tps, protocol=config.protocol)
        await clock.sleep(dice.uniform(0, config.warmup_s / 3))
        await client.connect("", VOCAB)
        prompt, length = self._drawn(dice, lasting=True)
        done = int(dice.random() * length)
        try:
            while True:
                await self._respond(ue, tally, prompt, length, done)
                await clock.sleep(config.think_s)
                prompt, length = self._drawn(dice)
                done = 0
        finally:
            await client.close()

    def _ways(self, number: int, seed: int) -> tuple[OneWay, OneWay]:
        config = self._config
        if self._radio is not None:
            return self._radio.ways(number)
        rates_mbps = config.uplink_mbps or math.inf, config.downlink_mbps or math.inf
        return round_delay(config.network_ms / 1e3, config.network_spread, seed, rates_mbps)

    def _drawn(self, dice: random.Random, lasting: bool = False) -> tuple[int, int]:
        """Tokens of a prompt and its response; with `lasting`, of a response in progress at a random moment."""
        low, high = self._config.response
        length = dice.randint(low, high)
        while lasting and dice.random() * high >= length:
            length = dice.randint(low, high)
        return dice.randint(*self._config.prompt), length

    async def _respond(self, ue: LoadUe, tally: Tally, prompt: int, length: int, done: int) -> None:
        speed_tps = ue.speed_tps or 0.0
        ended = tally.begun(speed_tps, length - done, whole=not done)
        ids: Any = LANGUAGE[: prompt + done]

        def progress(record: RoundRecord) -> None:
            tally.round(record, speed_tps)

        whole = prompt + length if self._system.memory.reserved else 0
        async with self._memory.reserved(whole):
            await ue.decode(ids, length - done, progress)
        ended()


def _radio(config: CapacityConfig, file: str, ues: int, seed: int) -> VirtualRadio:
    seconds = config.warmup_s + config.horizon_s
    return VirtualRadio(radio_section(file), [RadioUe(0)] * ues, seconds, independent_seed(seed, "radio"))


def _policy(config: CapacityConfig, system: System) -> WindowPolicy | None:
    """A UE's window policy; None: the target decodes alone."""
    return system.window and policy(config.chances, system.window, config.window, config.shortest)


def _cache(config: CapacityConfig, system: System) -> PrefixCache | None:
    if not system.memory.kept:
        return None
    if system.memory.reserved:
        return PrefixCache(UNBOUNDED, tail=False)
    return PrefixCache(config.kv_tokens, config.evict == "tail")


def _scheduler(config: CapacityConfig, system: System, coefficients: Coefficients, seed: int) -> Observed:
    evicting = system.memory.kept and not system.memory.reserved
    kv_tokens = config.kv_tokens if evicting else None
    setting = SchedulerSetting(
        config.max_batch,
        10**9,
        coefficients,
        kv_tokens=kv_tokens,
        chunk_tokens=config.chunk_tokens if evicting else None,
        protect=system.order.protect,
        rules=Rules(config.late, config.own_token, config.filling),
        guard_s=None if config.guard_ms is None else config.guard_ms / 1e3,
        committed=config.committed,
    )
    chosen = SCHEDULERS.choose(system.order.kind)
    known = coefficients if chosen.needs_coefficients else None
    errors = config.estimate_bias, config.estimate_noise
    return Observed(scheduler(chosen.kind, setting), known, system.order.each_round, *errors, seed, kv_tokens)
