"""Clock offsets, estimated for known offsets over known virtual links."""

from __future__ import annotations

import asyncio

import pytest

from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.intake import Intake, Offer
from testbed.bs.judging.base import StrictJudge
from testbed.bs.scheduling.base import Fcfs
from testbed.bs.server import BaseStation
from testbed.bs.sessions import SessionTable
from testbed.channel.link_model import Direction, constant
from testbed.channel.measuring.offset import Handshake, Offset, clock_offset
from testbed.channel.virtual import VirtualServerLink
from testbed.errors import BadInput
from testbed.experiments.deployment.profiled import ProfileRunner
from testbed.experiments.inputs.profile import LinearDraft, LinearVerify, Profile
from testbed.experiments.links.measure import handshake
from testbed.virtual_time import VirtualClock, run_virtually
from tests.support.refusals import refuse

AHEAD_S = 1234.5
ANY = Profile(name="any", about="", source="", draft=LinearDraft(per_token_s=0.1), verify=LinearVerify(base_s=0.1))


class Ahead(VirtualClock):
    """The BS's clock, which is ahead."""

    def time(self) -> float:
        return super().time() + AHEAD_S


async def estimated(up_s: float, down_s: float, jitter_s: float, count: int = 40) -> Offset:
    """A UE's estimate over a link with these delays."""
    server, engine = VirtualServerLink(), SyntheticEngine(vocab_size=64)
    link = server.attach(
        b"ue", Direction(constant(delay_s=up_s), jitter_s, (1,)), Direction(constant(delay_s=down_s), jitter_s, (2,))
    )
    clock = Ahead()
    intake = Intake(Offer("synthetic", "", 64, engine.hidden_size, (), 512), SessionTable())
    station = BaseStation(server, ProfileRunner(engine, ANY, clock), intake, Fcfs(), StrictJudge(), clock)
    serving = asyncio.create_task(station.serve())
    found = [await handshake(link, VirtualClock(), token, 10.0) for token in range(count)]
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    return clock_offset(found)


@pytest.mark.parametrize(
    ("up_s", "down_s", "jitter_s"),
    [(0.01, 0.01, 0.0), (0.03, 0.01, 0.0), (0.0, 0.02, 0.0), (0.01, 0.01, 0.01), (0.05, 0.02, 0.02)],
)
def test_a_known_offset_is_found_within_its_own_error(up_s: float, down_s: float, jitter_s: float) -> None:
    found = run_virtually(estimated(up_s, down_s, jitter_s))
    assert abs(found.offset_s - AHEAD_S) <= found.error_s + 1e-9
    assert found.n == 40
    if jitter_s == 0.0:
        assert found.offset_s - AHEAD_S == pytest.approx((up_s - down_s) / 2)  # what no handshake can see
        assert found.error_s == pytest.approx((up_s + down_s) / 2)


def test_queues_do_not_move_it() -> None:
    even = [Handshake(0.0, 7.01, 0.02), Handshake(1.0, 8.81, 1.82), Handshake(2.0, 9.011, 2.4)]
    assert clock_offset(even).offset_s == pytest.approx(7.0)
    assert clock_offset(even).ours(8.0) == pytest.approx(1.0)


def test_nothing_comes_of_nothing() -> None:
    refuse(lambda: clock_offset([]), BadInput, "handshakes")
    refuse(lambda: clock_offset([Handshake(2.0, 1.0, 1.0)]), BadInput, "follow")
    refuse(lambda: clock_offset([Handshake(0.0, float("nan"), 1.0)]), BadInput, "follow")
