"""A load ramp in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from testbed.bs.scheduling.window_hints import window_config
from testbed.experiments.deployment.load import Fleet, LoadRequest, throughput_rps
from testbed.experiments.latency.ramp.climb import RampRun, Told, arrivals, climb, counts, even_loads, policy_of
from testbed.experiments.latency.ramp.config import HINTS, RampConfig
from testbed.experiments.latency.virtual import VirtualBs

T = TypeVar("T")
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
        self._bs = VirtualBs(config, config.draft_ms, config.max_batch)

    def loads(self) -> list[float]:
        """See `even_loads`."""
        return even_loads(self._config, self._ceiling_rps, self._told)

    def run(self, policy: str, seed: int, loads: Sequence[float]) -> RampRun:
        """One ramp."""
        requests = self._bs.requests(arrivals(loads, counts(self._config, loads), seed), seed)
        answered, metrics = self._served(policy, seed, requests, lambda fleet: climb(fleet, requests))
        return RampRun(policy, seed, list(loads), answered, metrics.get("window_switches"))

    def _ceiling_rps(self, policy: str) -> float:
        requests = self._bs.requests([(0, 0.0)] * CEILING_REQUESTS, 0)
        rate, _ = self._served(
            policy, 0, requests, lambda fleet: throughput_rps(fleet, requests, AT_ONCE, AT_ONCE // 2)
        )  # fmt: skip
        return rate

    def _served(
        self, policy: str, seed: int, requests: Sequence[LoadRequest], use: Callable[[Fleet], Awaitable[T]]
    ) -> tuple[T, dict[str, Any]]:
        config = self._config
        windows = (window_config(config.controller), config.learn_from) if policy == HINTS else None
        return self._bs.served(
            lambda: policy_of(policy, config.limit), config.alpha, seed, requests, use, windows
        )  # fmt: skip
