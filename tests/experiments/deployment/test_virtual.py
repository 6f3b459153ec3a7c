"""Several base stations and UEs under one virtual clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from testbed.bs.engines.base import Share
from testbed.bs.engines.runner import nobody
from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.intake import Offer
from testbed.channel.link_model import Direction, constant, round_delay
from testbed.experiments.deployment.load import LoadUe
from testbed.experiments.deployment.profiled import ProfilePace, ProfileRunner
from testbed.experiments.deployment.virtual import VirtualDeployment, VirtualStation
from testbed.experiments.inputs.profile import LinearDraft, LinearVerify, Profile
from testbed.tasks import together
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.records import RequestRecord
from testbed.ue.windows.fixed import FixedWindow
from testbed.virtual_time import run_virtually

VOCAB = 64
OFFER = Offer("synthetic", "", VOCAB, SyntheticEngine(vocab_size=VOCAB).hidden_size, (), 512)


def profile(verify_s: float) -> Profile:
    draft, verify = LinearDraft(per_token_s=0.01), LinearVerify(base_s=verify_s)
    return Profile(name="any", about="", source="", draft=draft, verify=verify)


def station(deployment: VirtualDeployment, verify_s: float) -> VirtualStation:
    engine = SyntheticEngine(vocab_size=VOCAB)
    return deployment.base_station(ProfileRunner(engine, profile(verify_s), deployment.clock), OFFER)


async def decode(bs: VirtualStation, one_way_s: float, seed: int = 0) -> RequestRecord:
    """One request by a UE with a link of its own."""
    way = constant(delay_s=one_way_s)
    client = bs.connect((Direction(way), Direction(way)))
    await client.connect("", VOCAB)
    drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.8, seed=seed)
    ue = LoadUe(client, drafter, FixedWindow(4), ProfilePace(profile(0.1), client.clock))
    record = await ue.decode([1, 2, 3], 12)
    await client.close()
    return record


def test_each_ue_has_its_own_link_and_each_base_station_its_own_times() -> None:
    deployment = VirtualDeployment()
    slow, fast = station(deployment, 0.5), station(deployment, 0.1)
    near, far, other = run_virtually(
        deployment.run(together([decode(slow, 0.01), decode(slow, 0.2), decode(fast, 0.01)]))
    )
    assert [r.token_ids for r in (near, far)] == [other.token_ids] * 2
    for record, one_way_s, verify_s in ((near, 0.01, 0.5), (far, 0.2, 0.5), (other, 0.01, 0.1)):
        assert {round(r.link_s, 6) for r in record.rounds} == {2 * one_way_s}  # the BS tells times in single precision
        assert {round(r.verify_s, 6) for r in record.rounds} == {verify_s}


def test_the_same_seeds_give_the_same_run() -> None:
    async def latencies(bs: VirtualStation) -> list[float]:
        clients = [bs.connect(round_delay(0.04, 0.5, seed)) for seed in range(3)]
        pings = []
        for client in clients:
            await client.connect("", VOCAB)
            pings += await client.rtt_s(4)
        return pings

    def found() -> list[float]:
        deployment = VirtualDeployment()
        return run_virtually(deployment.run(latencies(station(deployment, 0.1))))

    assert found() == found()
    assert len(set(found())) == 12


def test_a_base_station_that_fails_ends_the_run() -> None:
    class Broken(ProfileRunner):
        async def step(self, waiting: Callable[[], bool] = nobody) -> list[Share]:
            raise ValueError("broken engine")

    deployment = VirtualDeployment()
    bs = deployment.base_station(Broken(SyntheticEngine(vocab_size=VOCAB), profile(0.1), deployment.clock), OFFER)
    with pytest.raises(ValueError, match="broken engine"):
        run_virtually(deployment.run(decode(bs, 0.01)))
