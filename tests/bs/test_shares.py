"""A UE with many sessions beside another one with a single session, on an A100's passes in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest

from testbed.bs.scheduling.registry import SchedulerSetting, scheduler
from testbed.bs.sessions import SessionTable
from testbed.channel.link_model import Direction, constant
from testbed.experiments.deployment.load import LoadUe
from testbed.experiments.deployment.profiled import ProfilePace
from testbed.experiments.deployment.traffic_bs import OFFER, PrefixCache, TrafficRunner
from testbed.experiments.deployment.traffic_ue import LANGUAGE, VOCAB, Chance, DraftChances, TrafficDrafter
from testbed.experiments.deployment.virtual import VirtualDeployment, VirtualStation
from testbed.experiments.inputs.coefficients import pass_coefficients
from testbed.experiments.inputs.profile import load_profile
from testbed.tasks import together
from testbed.ue.pace import REAL_TIME
from testbed.ue.records import RequestRecord, RoundRecord
from testbed.ue.windows.registry import window_policy
from testbed.virtual_time import run_virtually
from tests.support.devices import A100

PROFILE, ENOUGH = load_profile("a100-qwen3-32b-appendix"), 10**9
LONG, SESSIONS = 3900, 64


class Asked(NamedTuple):
    """What each session of a UE asks for."""

    speed_tps: float | None = None
    window: int = 8
    prompt: int = LONG
    at_once: bool = False
    """Whether drafting takes no time."""


ASKED = Asked()


class Waits(NamedTuple):
    """What two UEs saw."""

    first_s: float
    """Time at the base station of the first round of the UE with one session, its prompt included."""
    mean_s: float
    """Mean of its later rounds."""
    others: int
    """Rounds of the other one per second."""


def waits(
    kind: str,
    crowd: int,
    output: int,
    own_tokens: int | None = 512,
    prompt: int = 100,
    asked: Asked = ASKED,
) -> Waits:
    """A UE with one session beside one that has `crowd` sessions with prompts of 3,900 tokens, or as asked, and
    responses of `output`, one after the other.

    Args:
        prompt: tokens of the first one's prompt.
        asked: what the other one's sessions are.
    """
    rounds = list[RoundRecord]()
    deployment = VirtualDeployment()
    bs = deployment.base_station(
        TrafficRunner(PROFILE.verify, PrefixCache(ENOUGH, tail=True), deployment.clock, linger=False),
        OFFER,
        scheduler=scheduler(
            kind,
            SchedulerSetting(256, 8192, pass_coefficients(PROFILE.verify), chunk_tokens=512, own_tokens=own_tokens,
                             cuts=True),
        ),
        sessions=SessionTable(ENOUGH, ENOUGH),
    )  # fmt: skip

    async def main() -> RequestRecord:
        many, one = await _ues(bs, deployment, crowd, asked), (await _ues(bs, deployment, 1))[0]
        lives = [partial(_ask_on, ue, asked.prompt, output, rounds.append) for ue in many]
        found: list[RequestRecord] = []

        async def honest() -> None:
            await deployment.clock.sleep(5.0)
            found.append(await one.decode(LANGUAGE[:prompt].tolist(), 100))
            raise _Ended

        with pytest.raises(_Ended):
            await together([honest(), *(life() for life in lives)])
        return found[0]

    record = run_virtually(deployment.run(main()))
    first_s, *later_s = (one.queue_s + one.verify_s for one in record.rounds)
    return Waits(first_s, float(np.mean(later_s)), round(len(rounds) / (5.0 + record.latency_s)))


class _Ended(Exception):
    """The measured UE has its response."""


async def _ues(bs: VirtualStation, deployment: VirtualDeployment, sessions: int, asked: Asked = ASKED) -> list[LoadUe]:
    """Sessions of one UE."""
    client = bs.connect((Direction(constant(delay_s=0.005)), Direction(constant(delay_s=0.005))))
    await client.connect("", VOCAB)
    return [
        LoadUe(
            client,
            TrafficDrafter(Chance(DraftChances(), seed)),
            window_policy("fixed", asked.window),
            REAL_TIME if asked.at_once else ProfilePace(PROFILE, deployment.clock),
            speed_tps=asked.speed_tps,
        )
        for seed in range(sessions)
    ]


async def _ask_on(ue: LoadUe, prompt: int, output: int, seen: Callable[[RoundRecord], None]) -> None:
    while True:
        await ue.decode(LANGUAGE[:prompt].tolist(), output, seen)


@pytest.mark.parametrize("speed_tps", [0.001, 1.0])
@pytest.mark.parametrize(("window", "prompt"), [(256, 100), (8, LONG)], ids=["long windows", "long contexts"])
def test_who_names_a_low_speed_has_no_more_of_a_pass_than_others(speed_tps: float, window: int, prompt: int) -> None:
    """64 sessions with such a promise filled whole passes: rounds of others took 0.6 to 2 s."""
    guaranteed, plain = (
        waits("slo", SESSIONS, 2000, asked=Asked(speed, window, prompt, window > 8)) for speed in (speed_tps, None)
    )
    assert guaranteed.mean_s < max(0.2, 1.5 * plain.mean_s) and guaranteed.others > 0


@pytest.mark.parametrize("kind", ["fcfs", "slo"])
@pytest.mark.parametrize("output", [400, 1], ids=["long contexts", "long prompts"])
def test_one_ue_with_many_sessions_delays_no_other_for_long(kind: str, output: int) -> None:
    """Without a share: 0.6 to 1.2 s."""
    alone, beside, unbound = (
        waits(kind, *given) for given in ((0, output), (SESSIONS, output), (SESSIONS, output, None))
    )
    assert alone.mean_s == pytest.approx(A100.c, abs=0.01)
    assert beside.mean_s < 0.2 and unbound.mean_s > 2 * beside.mean_s
    assert beside.others > 0


@pytest.mark.parametrize("kind", ["fcfs", "slo"])
@pytest.mark.parametrize("own_tokens", [16, 512])
def test_a_long_prompt_is_computed_beside_many_sessions_of_another_ue(kind: str, own_tokens: int) -> None:
    """Under `slo` it waited for 43 s: reading what was computed of it took more than the UE's share of a pass."""
    found = waits(kind, SESSIONS, 1, own_tokens, prompt=LONG)
    assert found.first_s < (2.5 if own_tokens == 512 else 8.0)
