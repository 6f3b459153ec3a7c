"""A load ramp in virtual time: the code that serves, a profile's times, drafts that are right as often as told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import numpy as np

from testbed.bs.intake import Intake, Offer
from testbed.bs.judging.base import StrictJudge
from testbed.bs.scheduling.base import Fcfs
from testbed.bs.scheduling.window_hints import window_config
from testbed.bs.server import BaseStation
from testbed.bs.sessions import SessionTable
from testbed.channel.virtual import VirtualServerLink
from testbed.errors import BadInput
from testbed.experiments.capacity.bs import Patient, PrefixCache, RoundDelay, TrafficRunner
from testbed.experiments.capacity.ue import LANGUAGE, MOST_POSITIONS, VOCAB
from testbed.experiments.inputs.profile import InteractionVerify, LinearDraft, load_profile
from testbed.experiments.latency.ramp import (
    HINTS,
    Fleet,
    RampConfig,
    RampRequest,
    RampRun,
    Told,
    Ue,
    arrivals,
    climb,
    counts,
    policy_of,
    throughput_rps,
)  # fmt: skip
from testbed.experiments.runs.virtual import ProfilePace, hinting
from testbed.ue.client import Client
from testbed.ue.drafters.controlled import ReplayDrafter
from testbed.virtual_time import VirtualClock, run_virtually

TIMEOUT_S = 1e6
ENOUGH = 10**12
"""Sessions, and tokens of the prefix cache: neither bounds a ramp."""
CEILING_REQUESTS = 120
AT_ONCE = 60
"""Under way where throughput is measured."""


class VirtualRamp:
    """Runs of one configuration.

    Raises:
        BadInput: a profile without eq. 19's coefficients.
    """

    def __init__(self, config: RampConfig, told: Told) -> None:
        self._config, self._told = config, told
        profile = load_profile(config.profile)
        if not isinstance(profile.verify, InteractionVerify):
            raise BadInput(f"profile {profile.name} has no coefficients of eq. 19; give one of kind interactions")
        self._verify = profile.verify
        if config.draft_ms is not None:
            profile = msgspec.structs.replace(profile, draft=LinearDraft(per_token_s=config.draft_ms / 1e3))
        self._profile = profile

    def loads(self) -> list[float]:
        """Even steps up to `reach` of the highest throughput of the fixed windows."""
        config = self._config
        ceilings = {}
        for policy in map(str, config.windows):
            requests = self._requests([(0, 0.0)] * CEILING_REQUESTS, 0)
            ceilings[policy] = run_virtually(self._ceiling(policy, requests))
            self._told(f"window {policy}: {ceilings[policy]:.3g} requests/s at most")
        top = config.reach * max(ceilings.values())
        return [float(f"{top * (i + 1) / config.steps:.3g}") for i in range(config.steps)]

    def run(self, policy: str, seed: int, loads: Sequence[float]) -> RampRun:
        """One ramp."""
        requests = self._requests(arrivals(loads, counts(self._config, loads), seed), seed)
        return run_virtually(self._climb(policy, requests, seed, loads))

    def _requests(self, due: Sequence[tuple[int, float]], seed: int) -> list[RampRequest]:
        """Prompts and outputs of random lengths, at steps and times."""
        config, random = self._config, np.random.default_rng([seed, 1])
        lengths = random.integers(*config.prompt, len(due), endpoint=True).tolist()
        outputs = random.integers(*config.response, len(due), endpoint=True).tolist()
        return [
            RampRequest(step, at_s, random.integers(0, VOCAB, length).tolist(), tokens)
            for (step, at_s), length, tokens in zip(due, lengths, outputs, strict=True)
        ]

    async def _climb(self, policy: str, requests: Sequence[RampRequest], seed: int, loads: Sequence[float]) -> RampRun:
        fleet, station, serving = await self._start(policy, requests, seed)
        try:
            answered = await climb(fleet, requests)
        finally:
            await _stop(fleet, serving)
        return RampRun(policy, seed, list(loads), answered, station.metrics().get("window_switches"))

    async def _ceiling(self, policy: str, requests: Sequence[RampRequest]) -> float:
        """Requests a second while so many are always under way, start and end left out."""
        fleet, _, serving = await self._start(policy, requests, 0)
        try:
            return await throughput_rps(fleet, requests, AT_ONCE)
        finally:
            await _stop(fleet, serving)

    async def _start(
        self, policy: str, requests: Sequence[RampRequest], seed: int
    ) -> tuple[Fleet, BaseStation, asyncio.Task[None]]:
        """A BS and its UEs."""
        config, clock, server = self._config, VirtualClock(), VirtualServerLink()
        hints = None
        if policy == HINTS:
            hints = hinting(self._profile, VOCAB, window_config(config.controller), config.max_batch)
        runner = TrafficRunner(self._verify, PrefixCache(ENOUGH, tail=False), clock, linger=False)
        intake = Intake(Offer("synthetic", "", VOCAB, 1, (), MOST_POSITIONS), SessionTable(ENOUGH, ENOUGH))
        plan = Fcfs(config.max_batch, ENOUGH)
        station = BaseStation(server, runner, intake, plan, StrictJudge(), clock, windows=hints)
        serving = asyncio.create_task(station.serve())
        ues = []
        for number in range(config.ues):
            up = RoundDelay(config.network_ms / 1e3, config.network_spread, 7919 * seed + number)
            down = RoundDelay(config.network_ms / 1e3, config.network_spread, 0, up)
            client = Client(Patient(server.attach(f"ue-{number}".encode(), up, down)), clock, 0, TIMEOUT_S)
            await client.connect("", VOCAB)
            ues.append(Ue(client, policy_of(policy, config.limit)))
        outputs = {tuple(r.prompt): LANGUAGE[len(r.prompt) :][: r.tokens].tolist() for r in requests}
        drafter = ReplayDrafter(outputs, vocab_size=VOCAB, alpha=config.alpha, context=MOST_POSITIONS, seed=seed)
        return Fleet(ues, drafter, ProfilePace(self._profile, clock), (), clock), station, serving


async def _stop(fleet: Fleet, serving: asyncio.Task[None]) -> None:
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    for ue in fleet.ues:
        await ue.client.close()
