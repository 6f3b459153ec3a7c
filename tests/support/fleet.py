"""Many UEs and one base station in virtual time: the real server code on the synthetic pair, with a profile's times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.intake import Offer
from testbed.bs.scheduling.base import Scheduler
from testbed.channel.link_model import Direction, constant
from testbed.experiments.deployment.load import LoadUe
from testbed.experiments.deployment.profiled import ProfilePace, ProfileRunner
from testbed.experiments.deployment.virtual import VirtualDeployment, VirtualStation
from testbed.experiments.inputs.profile import InteractionVerify, LinearDraft, Profile
from testbed.tasks import together
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.records import RequestRecord
from testbed.ue.windows.fixed import FixedWindow
from testbed.virtual_time import run_virtually

VOCAB = 512
A100 = InteractionVerify(a_s=3.314e-5, b_compute_s=3.450e-8, b_read_s=4.620e-6, c_s=1.486e-2)
"""WISP, Table 12."""


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """What all UEs have in common: models, times, and lengths of prompts and outputs.

    `prompt` and `output` are bounds of uniform draws; UEs begin within `spread_s` after `begin_s`, and decode one
    response after the other until `until_s`.
    """

    verify: InteractionVerify = A100
    draft_s: float = 0.02
    network_s: float = 0.04
    window: int = 5
    alpha: float = 0.758
    prompt: tuple[int, int] = (50, 250)
    output: tuple[int, int] = (20, 580)
    begin_s: float = 0.0
    spread_s: float = 5.0
    until_s: float = 30.0
    seed: int = 0
    accept_slower: bool = False


class Response(NamedTuple):
    """One decoded prompt."""

    ue: int
    speed_tps: float | None
    prompt: list[int]
    record: RequestRecord
    ended_s: float

    @property
    def slow(self) -> bool:
        """Whether it was slower than its class."""
        return self.speed_tps is not None and len(self.record.token_ids) / self.record.latency_s < self.speed_tps


@dataclass
class Served:
    """Results of a simulated fleet."""

    responses: list[Response] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    failures: list[tuple[int, Exception]] = field(default_factory=list)

    def violations(self) -> dict[float | None, float]:
        """Share of responses that were too slow, by class."""
        seen: dict[float | None, list[bool]] = {}
        for response in self.responses:
            seen.setdefault(response.speed_tps, []).append(response.slow)
        return {speed: float(np.mean(slow)) for speed, slow in seen.items()}


def serve_fleet(fleet: Fleet, speeds: Sequence[float | None], scheduler: Scheduler, **station: Any) -> Served:
    """One UE for every speed; `chunk_tokens` goes to the runner, and the rest of `station` to `BaseStation`."""
    return serve_visits([(fleet, speed) for speed in speeds], scheduler, **station)


def serve_visits(visits: Sequence[tuple[Fleet, float | None]], scheduler: Scheduler, **station: Any) -> Served:
    """As `serve_fleet`, with different times per UE; drafting and pass times are those of the first."""
    return run_virtually(_serve(visits, scheduler, station))


async def _serve(visits: Sequence[tuple[Fleet, float | None]], scheduler: Scheduler, station: dict[str, Any]) -> Served:
    fleet, deployment, served = visits[0][0], VirtualDeployment(), Served()
    engine = SyntheticEngine(vocab_size=VOCAB)
    profile = Profile(
        name="fleet", about="", source="", draft=LinearDraft(per_token_s=fleet.draft_s), verify=fleet.verify
    )
    offer = Offer("synthetic", "", VOCAB, engine.hidden_size, (), engine.max_positions)
    runner = ProfileRunner(engine, profile, deployment.clock, station.pop("chunk_tokens", None))
    bs = deployment.base_station(runner, offer, scheduler=scheduler, **station)
    await deployment.run(together(_ue(own, i, speed, bs, profile, served) for i, (own, speed) in enumerate(visits)))
    served.metrics = bs.metrics()
    return served


async def _ue(
    fleet: Fleet, number: int, speed_tps: float | None, bs: VirtualStation, profile: Profile, served: Served
) -> None:
    rng = np.random.default_rng([fleet.seed, number])
    drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=fleet.alpha, seed=number)
    way = constant(delay_s=fleet.network_s / 2)
    client = bs.connect((Direction(way), Direction(way)))
    clock = client.clock
    pace = ProfilePace(profile, clock)
    ue = LoadUe(
        client, drafter, FixedWindow(fleet.window), pace, speed_tps=speed_tps, accept_slower=fleet.accept_slower
    )  # fmt: skip
    await clock.sleep(fleet.begin_s + float(rng.uniform(0, fleet.spread_s)))
    await client.connect("", VOCAB)
    try:
        while clock.time() < fleet.until_s:
            prompt = rng.integers(0, VOCAB, int(rng.integers(*fleet.prompt, endpoint=True))).tolist()
            record = await ue.decode(prompt, int(rng.integers(*fleet.output, endpoint=True)))
            served.responses.append(Response(number, speed_tps, prompt, record, clock.time()))
    except Exception as exc:
        served.failures.append((number, exc))
    finally:
        await client.close()
