"""A base station and its UEs in virtual time, for loads and ramps: a profile's compute times, drafts of a given
acceptance rate.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from testbed.bs.scheduling.base import Fcfs
from testbed.bs.scheduling.estimator_online import OnlineEstimator
from testbed.bs.scheduling.window_hints import Windows
from testbed.bs.sessions import SessionTable
from testbed.channel.link_model import OneWay, round_delay
from testbed.channel.radio.model import RadioUe
from testbed.channel.spec import ChannelSpec
from testbed.experiments.deployment.links import VirtualRadio, payload_sizes, radio_section
from testbed.experiments.deployment.load import Fleet, LoadRequest, LoadUe
from testbed.experiments.deployment.profiled import ProfilePace
from testbed.experiments.deployment.traffic_bs import OFFER, PrefixCache, TrafficRunner
from testbed.experiments.deployment.traffic_ue import LANGUAGE, MOST_POSITIONS, VOCAB
from testbed.experiments.deployment.virtual import VirtualDeployment, VirtualStation
from testbed.experiments.inputs.coefficients import pass_coefficients
from testbed.experiments.inputs.profile import LinearDraft, load_profile
from testbed.experiments.latency.virtual_config import VirtualLoadConfig
from testbed.intervals import independent_seed
from testbed.optim.draft_window.controller import WindowConfig
from testbed.optim.pass_time import Coefficients
from testbed.ue.drafters.controlled import ReplayDrafter
from testbed.ue.windows.base import WindowPolicy
from testbed.virtual_time import run_virtually

T = TypeVar("T")
LEAST_RADIO_S = 60.0
"""Time that computed channels of a radio cover at least."""
ENOUGH = 10**12
"""Sessions, and tokens of the prefix cache: neither limits a load."""


class VirtualBs:
    """Base stations of one configuration, a new one for each run.

    Args:
        draft_ms: drafting time per token; None: the profile's.
        max_batch: requests of one pass.

    Raises:
        BadInput: a profile without eq. 19's coefficients, or a trace that cannot be read.
    """

    def __init__(self, config: VirtualLoadConfig, draft_ms: float | None, max_batch: int) -> None:
        self._config, self._max_batch = config, max_batch
        profile = load_profile(config.profile)
        self._verify = profile.interactions
        if draft_ms is not None:
            profile = msgspec.structs.replace(profile, draft=LinearDraft(per_token_s=draft_ms / 1e3))
        self._profile = profile
        trace = None if config.link is None else ChannelSpec(kind="trace", file=config.link, via="virtual").trace()
        self._lap_s = 0.0 if trace is None else trace.duration_s

    def requests(self, due: Sequence[tuple[int, float]], seed: int) -> list[LoadRequest]:
        """Requests of random lengths, at steps and times."""
        config, random = self._config, np.random.default_rng([seed, 1])
        lengths = random.integers(*config.prompt, len(due), endpoint=True).tolist()
        outputs = random.integers(*config.response, len(due), endpoint=True).tolist()
        return [
            LoadRequest(random.integers(0, VOCAB, length).tolist(), tokens, at_s, step)
            for (step, at_s), length, tokens in zip(due, lengths, outputs, strict=True)
        ]

    def served(
        self,
        policy: Callable[[], WindowPolicy | None],
        alpha: float,
        seed: int,
        requests: Sequence[LoadRequest],
        use: Callable[[Fleet], Awaitable[T]],
        windows: tuple[WindowConfig, float] | None = None,
    ) -> tuple[T, dict[str, Any]]:
        """Result of `use` with a base station and UEs of its own, and the base station's metrics.

        Args:
            policy: creates the window policy of a UE.
            alpha: acceptance rate of drafts.
            windows: settings of the controller of draft windows, and the factor on the true pass-time coefficients
                from which it starts to learn them; None: no hints.
        """
        deployment = VirtualDeployment()
        estimator = None if windows is None else OnlineEstimator(self._scaled(windows[1]))
        hints = None
        if windows is not None and estimator is not None:
            hints = Windows(windows[0], lambda: estimator.coefficients, self._max_batch, VOCAB)
        bs = deployment.base_station(
            TrafficRunner(self._verify, PrefixCache(ENOUGH, tail=False), deployment.clock, linger=False),
            OFFER,
            scheduler=Fcfs(self._max_batch, ENOUGH),
            sessions=SessionTable(ENOUGH, ENOUGH),
            windows=hints,
            estimator=estimator,
        )
        outputs = {tuple(r.prompt): LANGUAGE[len(r.prompt) :][: r.tokens].tolist() for r in requests}
        drafter = ReplayDrafter(outputs, vocab_size=VOCAB, alpha=alpha, context=MOST_POSITIONS, seed=seed)

        radio = self._radio(requests[-1].at_s, seed)

        async def main() -> tuple[T, dict[str, Any]]:
            ues = [await self._ue(bs, deployment, drafter, policy(), seed, i, radio) for i in range(self._config.ues)]
            return await use(Fleet(ues, deployment.clock)), bs.metrics()

        return run_virtually(deployment.run(main()))

    def _scaled(self, factor: float) -> Coefficients:
        return Coefficients(*(factor * value for value in pass_coefficients(self._profile.verify).values))

    async def _ue(
        self,
        bs: VirtualStation,
        deployment: VirtualDeployment,
        drafter: ReplayDrafter,
        policy: WindowPolicy | None,
        seed: int,
        number: int,
        radio: VirtualRadio | None,
    ) -> LoadUe:
        drafting, link = (self._factor(seed, use, number) for use in ("drafting", "link"))
        ways = self._ways(seed, number, link) if radio is None else radio.ways(number)
        client, pace = (
            bs.connect(ways, payload_sizes(self._config.payload)),
            ProfilePace(self._profile, deployment.clock, factor=drafting),
        )
        await client.connect("", VOCAB)
        return LoadUe(client, drafter, policy, pace, protocol=self._config.protocol)

    def _radio(self, last_s: float, seed: int) -> VirtualRadio | None:
        """A radio that all UEs share, with channels for a load whose last request arrives at `last_s`."""
        config = self._config
        if config.radio is None:
            return None
        seed = independent_seed(seed, "radio")
        return VirtualRadio(radio_section(config.radio), [RadioUe(0)] * config.ues, last_s + LEAST_RADIO_S, seed)

    def _factor(self, seed: int, use: str, number: int) -> float:
        """Factor on a UE's times: evenly spaced over the UEs, in random order."""
        ues, mixed = self._config.ues, self._config.mixed
        place = np.random.default_rng(independent_seed(seed, "mixed", use)).permutation(ues)[number]
        return 1 + mixed * ((2 * float(place) + 1) / ues - 1)

    def _ways(self, seed: int, number: int, factor: float) -> tuple[OneWay, OneWay]:
        config = self._config
        if config.link is None:
            return round_delay(factor * config.network_ms / 1e3, config.network_spread, 7919 * seed + number)
        spec = ChannelSpec(kind="trace", file=config.link, via="virtual", seed=seed)
        return spec.path(number, -self._lap_s * number / config.ues)
