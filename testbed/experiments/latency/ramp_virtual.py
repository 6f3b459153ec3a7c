"""A load ramp in virtual time, with a profile's compute times and drafts of a given acceptance rate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from testbed.bs.scheduling.base import Fcfs
from testbed.bs.scheduling.window_hints import Windows, window_config
from testbed.bs.sessions import SessionTable
from testbed.channel.link_model import round_delay
from testbed.clock import Clock
from testbed.experiments.capacity.bs import OFFER, PrefixCache, TrafficRunner
from testbed.experiments.capacity.ue import LANGUAGE, MOST_POSITIONS, VOCAB
from testbed.experiments.deployment.load import Fleet, LoadRequest, LoadUe, throughput_rps
from testbed.experiments.deployment.profiled import ProfilePace, hinting
from testbed.experiments.deployment.virtual import VirtualDeployment, VirtualStation
from testbed.experiments.inputs.profile import LinearDraft, load_profile
from testbed.experiments.latency.ramp import RampRun, Told, arrivals, climb, counts, even_loads, policy_of
from testbed.experiments.latency.ramp_config import HINTS, RampConfig
from testbed.ue.drafters.controlled import ReplayDrafter
from testbed.virtual_time import run_virtually

T = TypeVar("T")
ENOUGH = 10**12
"""Sessions, and tokens of the prefix cache: neither limits a ramp."""
CEILING_REQUESTS = 120
AT_ONCE = 60
"""Requests in progress while throughput is measured."""


class VirtualRamp:
    """Runs of one configuration.

    Raises:
        BadInput: a profile without eq. 19's coefficients.
    """

    def __init__(self, config: RampConfig, told: Told) -> None:
        self._config, self._told = config, told
        profile = load_profile(config.profile)
        self._verify = profile.interactions
        if config.draft_ms is not None:
            profile = msgspec.structs.replace(profile, draft=LinearDraft(per_token_s=config.draft_ms / 1e3))
        self._profile = profile

    def loads(self) -> list[float]:
        """See `even_loads`."""
        return even_loads(self._config, self._ceiling_rps, self._told)

    def run(self, policy: str, seed: int, loads: Sequence[float]) -> RampRun:
        """One ramp."""
        requests = self._requests(arrivals(loads, counts(self._config, loads), seed), seed)
        answered, metrics = self._served(policy, seed, requests, lambda fleet: climb(fleet, requests))
        return RampRun(policy, seed, list(loads), answered, metrics.get("window_switches"))

    def _ceiling_rps(self, policy: str) -> float:
        requests = self._requests([(0, 0.0)] * CEILING_REQUESTS, 0)
        rate, _ = self._served(
            policy, 0, requests, lambda fleet: throughput_rps(fleet, requests, AT_ONCE, AT_ONCE // 2)
        )  # fmt: skip
        return rate

    def _requests(self, due: Sequence[tuple[int, float]], seed: int) -> list[LoadRequest]:
        """Prompts and outputs of random lengths, at steps and times."""
        config, random = self._config, np.random.default_rng([seed, 1])
        lengths = random.integers(*config.prompt, len(due), endpoint=True).tolist()
        outputs = random.integers(*config.response, len(due), endpoint=True).tolist()
        return [
            LoadRequest(random.integers(0, VOCAB, length).tolist(), tokens, at_s, step)
            for (step, at_s), length, tokens in zip(due, lengths, outputs, strict=True)
        ]

    def _served(
        self, policy: str, seed: int, requests: Sequence[LoadRequest], use: Callable[[Fleet], Awaitable[T]]
    ) -> tuple[T, dict[str, Any]]:
        """The result of `use` with UEs and a base station of its own, and the base station's metrics."""
        deployment = VirtualDeployment()
        bs = deployment.base_station(
            TrafficRunner(self._verify, PrefixCache(ENOUGH, tail=False), deployment.clock, linger=False),
            OFFER,
            scheduler=Fcfs(self._config.max_batch, ENOUGH),
            sessions=SessionTable(ENOUGH, ENOUGH),
            windows=self._hints() if policy == HINTS else None,
        )

        async def main() -> tuple[T, dict[str, Any]]:
            fleet = await self._fleet(bs, deployment.clock, policy, seed, requests)
            return await use(fleet), bs.metrics()

        return run_virtually(deployment.run(main()))

    def _hints(self) -> Windows:
        return hinting(self._profile, VOCAB, window_config(self._config.controller), self._config.max_batch)

    async def _fleet(
        self, bs: VirtualStation, clock: Clock, policy: str, seed: int, requests: Sequence[LoadRequest]
    ) -> Fleet:
        config = self._config
        outputs = {tuple(r.prompt): LANGUAGE[len(r.prompt) :][: r.tokens].tolist() for r in requests}
        drafter = ReplayDrafter(outputs, vocab_size=VOCAB, alpha=config.alpha, context=MOST_POSITIONS, seed=seed)
        pace, ues = ProfilePace(self._profile, clock), []
        for number in range(config.ues):
            client = bs.connect(round_delay(config.network_ms / 1e3, config.network_spread, 7919 * seed + number))
            await client.connect("", VOCAB)
            ues.append(LoadUe(client, drafter, policy_of(policy, config.limit), pace))
        return Fleet(ues, clock)
