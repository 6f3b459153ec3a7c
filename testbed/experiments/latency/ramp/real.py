"""A load ramp in real time: a BS process for every run, and one process with all UEs, whose drafts are replayed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testbed.config import RunConfig
from testbed.experiments.deployment.load import Fleet, LoadRequest, LoadUe, throughput_rps
from testbed.experiments.latency.load_config import LoadConfig
from testbed.experiments.latency.ramp.climb import (
    Answered,
    RampRun,
    Told,
    arrivals,
    climb,
    counts,
    even_loads,
    policy_of,
)  # fmt: skip
from testbed.experiments.latency.ramp.config import HINTS, RampConfig
from testbed.experiments.latency.station import DRAFT_MS, late_share, outputs_of, with_station, workload_of
from testbed.experiments.runs.prepare import Workload
from testbed.experiments.runs.processes import counted_in
from testbed.ue.client import Client
from testbed.ue.drafters.controlled import ReplayDrafter
from testbed.ue.pace import ConstantPace

AT_ONCE = 32
"""Requests in progress while throughput is measured."""
CEILING_REQUESTS = 4 * AT_ONCE
WARM_UP = 8
"""Requests before a run, because a BS's first passes are slower."""


class RealRamp:
    """Runs of one configuration."""

    def __init__(self, config: RampConfig, out: Path, told: Told) -> None:
        self._config, self._out, self._told = config, out, told
        self._load = LoadConfig(
            engine=config.engine, model=config.model, dtype=config.dtype, windows=(1,), alphas=(config.alpha,),
            at_once=AT_ONCE, pace=config.pace, max_tokens=config.max_tokens, dataset=config.dataset,
        )  # fmt: skip

    def loads(self) -> list[float]:
        """See `even_loads`."""
        return even_loads(self._config, self._ceiling_rps, self._told)

    def run(self, policy: str, seed: int, loads: Sequence[float]) -> RampRun:
        """One ramp with a new BS, whose prefix cache has none of the prompts."""
        numbers = counts(self._config, loads)
        first = self._config.seeds.index(seed) * sum(numbers)
        work = self._work(len(self._config.seeds) * sum(numbers))
        due = arrivals(loads, numbers, seed)
        prompts = work.prompts[first : first + len(due)]
        requests = [
            LoadRequest(prompt.ids, self._config.max_tokens, at_s, step)
            for (step, at_s), prompt in zip(due, prompts, strict=True)
        ]
        metrics = self._out / f"run-{policy}-seed{seed}.metrics"
        answered = self._climb(policy, work, requests, metrics)
        switches = counted_in(metrics).get("window_switches")
        return RampRun(policy, seed, list(loads), answered, switches, late_share(metrics))

    def _work(self, count: int) -> Workload:
        dataset, tokens = self._config.dataset, self._config.max_tokens
        return workload_of(RunConfig(dataset=dataset, limit=count, max_tokens=tokens, warmup=WARM_UP))

    def _known(self, work: Workload, name: str) -> ReplayDrafter:
        """A drafter that replays the target's outputs to these prompts."""
        place = self._out / name
        place.mkdir(exist_ok=True)
        known = outputs_of(self._load, work, place, self._told)
        assert work.prompter is not None
        context = max(map(len, known)) + self._config.max_tokens + self._config.limit + max(self._config.windows) + 1
        return ReplayDrafter(
            known, vocab_size=work.prompter.vocab_size, alpha=self._config.alpha, context=context, seed=0
        )

    def _more(self, policy: str) -> dict[str, Any]:
        """Further options of the BS."""
        controller = self._config.controller if policy == HINTS else None
        return {"max_batch": self._config.max_batch, "window_controller": controller}

    def _climb(self, policy: str, work: Workload, requests: Sequence[LoadRequest], metrics: Path) -> list[Answered]:
        drafter = self._known(work, "outputs")

        async def use(clients: Sequence[Client]) -> list[Answered]:
            fleet = self._fleet(policy, clients, drafter)
            for number, prompt in enumerate(work.warmup):
                await fleet.decode(number, LoadRequest(prompt.ids, self._config.max_tokens))
            return await climb(fleet, requests)

        return with_station(self._load, work, use, metrics, self._config.ues, **self._more(policy))

    def _fleet(self, policy: str, clients: Sequence[Client], drafter: ReplayDrafter) -> Fleet:
        welcome, clock = clients[0].welcome, clients[0].clock
        assert welcome is not None
        draft_ms = DRAFT_MS if self._config.draft_ms is None else self._config.draft_ms
        pace = ConstantPace(clock, draft_ms / 1e3)
        limit = self._config.limit
        return Fleet([LoadUe(c, drafter, policy_of(policy, limit), pace, welcome.end_ids) for c in clients], clock)

    def _ceiling_rps(self, policy: str) -> float:
        work = self._work(CEILING_REQUESTS)
        drafter = self._known(work, "ceiling")

        async def use(clients: Sequence[Client]) -> float:
            fleet = self._fleet(policy, clients, drafter)
            requests = [LoadRequest(prompt.ids, self._config.max_tokens) for prompt in work.prompts]
            return await throughput_rps(fleet, requests, AT_ONCE, AT_ONCE // 2)

        metrics = self._out / "ceiling" / f"{policy}.metrics"
        return with_station(self._load, work, use, metrics, self._config.ues, **self._more(policy))
