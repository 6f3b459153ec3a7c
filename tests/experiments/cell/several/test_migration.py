"""Keys and values that travel, and base stations that fail: what is computed again, and how long UEs wait."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import pytest
from msgspec.structs import replace

from testbed.channel.radio.config import RadioConfig
from testbed.channel.radio.handover import Handover
from testbed.channel.radio.model import ModelSource
from testbed.errors import BadInput
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.rows import document
from testbed.experiments.cell.run import run_cell
from testbed.experiments.cell.several.cache import Moved, RoamingCache, session_of
from testbed.experiments.cell.several.tally import RoamingTally
from testbed.experiments.cell.stations import CellsConfig, Migration, Station
from testbed.experiments.deployment.traffic_bs import TrafficRunner
from testbed.ue.records import RoundRecord
from testbed.virtual_time import VirtualClock, run_virtually

RADIO = RadioConfig(source=ModelSource(shadowing_db=0.0, fading="none"))
WEST, EAST = Station("west", (0.0, 0.0)), Station("east", (200.0, 0.0))
WALKER = UeGroup(
    name="walker", count=4, path_m=((10.0, 0.0), (190.0, 0.0)), speed_mps=20.0, prompt=(400, 400), response=(200, 200)
)
STILL = UeGroup(name="still", path_m=((20.0, 0.0), (20.0, 1.0)), prompt=(50, 50), response=(200, 200))


def cells(group: UeGroup, *stations: Station, **settings: Any) -> CellConfig:
    return CellConfig(seconds=20.0, warmup_s=0.0, radio=RADIO, ues=(group,), cells=CellsConfig(stations, **settings))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[bytes, str], list[tuple[float, bytes, int, int]]]:
    """Passes by UE and session: time, the UE's arrival, cached tokens, length of the prefix."""
    found: dict[tuple[bytes, str], list[tuple[float, bytes, int, int]]] = defaultdict(list)
    work = TrafficRunner._work

    def logged(self: TrafficRunner, request: Any) -> Any:
        made = work(self, request)
        name, number, _ = request.session.split("/")
        ue, _, arrival = bytes.fromhex(name).partition(b"@")
        found[ue, number].append((self._clock.time(), arrival, made.cached, len(request.prefix)))
        return made

    monkeypatch.setattr(TrafficRunner, "_work", logged)
    return found


def test_moved_keys_and_values_are_not_computed_again(passes: Any) -> None:
    config = cells(WALKER, WEST, EAST, migration=Migration("move"))
    row = document(config, run_cell(config))["rows"][0]
    assert row["handovers_per_ue"] >= 1.5
    assert row["prefilled_again"] == 0
    crossings = 0
    for rounds in passes.values():
        for (_, before, _, length), (_, now, cached, new_length) in itertools.pairwise(rounds):
            if now != before:
                crossings += 1
                assert length <= cached <= new_length - 1 or cached == length - 1
    assert crossings >= 4
    assert row["moved_bytes"] >= crossings * 400 * 262144


@pytest.mark.parametrize("gigabits", [0.5, 2.0])
def test_a_ue_waits_until_its_keys_and_values_have_been_moved(gigabits: float) -> None:
    """b bytes take 8b over the rate, if that is longer than the interruption of 50 ms."""
    config = cells(replace(WALKER, count=1), WEST, EAST, migration=Migration("move", backhaul_bps=gigabits * 1e9))
    row = document(config, run_cell(config))["rows"][0]
    moving_s = 8 * row["moved_bytes"] / row["handovers_per_ue"] / (gigabits * 1e9)
    assert moving_s > 0.4
    assert moving_s < row["interruption_s"] < moving_s + 0.35  # a window, a pass and a verdict follow


def test_a_base_station_that_fails_hands_its_ues_to_the_next_one_and_nothing_is_lost(passes: Any) -> None:
    """The run compares every response. The UE is silent from 5 s for T310 and the interruption, 0.45 s."""
    handover = Handover(t310_ms=400.0)
    config = cells(STILL, replace(WEST, down_s=(5.0, 12.0)), EAST, handover=handover, migration=Migration("move"))
    found = document(config, run_cell(config))
    row, (west, east) = found["rows"][0], found["cells"]
    assert row["failures_per_ue"] == 1
    assert row["handovers_per_ue"] == 1  # back to the nearer one, once it has returned
    assert 0.45 < row["interruption_s"] * 2 < 1.2  # with the short one of the return
    assert row["responses"] >= 2
    assert west["goodput_tps"] > 0 < east["goodput_tps"]
    assert west["handovers"] == 1
    times_s = [at_s for rounds in passes.values() for at_s, arrival, *_ in rounds if arrival == b"2"]
    assert 5.45 <= min(times_s) < 5.8
    assert 12.0 <= max(times_s) < 12.4
    assert row["prefilled_again"] > 50  # what the failed one had is computed again
    assert row["moved_bytes"] > 0  # what the other one had comes back with the UE


def test_without_any_base_station_a_ue_waits() -> None:
    config = cells(STILL, replace(WEST, down_s=(5.0, 8.0)), replace(EAST, down_s=(4.0, 9.0)))
    found = document(config, run_cell(config))
    assert found["rows"][0]["failures_per_ue"] == 1
    assert found["rows"][0]["responses"] >= 2
    assert found["cells"][1]["goodput_tps"] == 0


def test_tokens_of_a_session_that_moves_on_before_its_first_pass_are_not_forgotten() -> None:
    again: list[int] = []
    caches, owner = [RoamingCache(10_000) for _ in range(3)], session_of(b"ue", 0)
    caches[0].hold(f"{owner}/1", 100)
    caches[1].come(owner, caches[0].leave(owner)._replace(here=False))
    moved = caches[1].leave(owner)
    assert moved == Moved(100, False)
    caches[2].come(owner, moved._replace(again=again.append))
    assert caches[2].cached(f"{owner}/7") == 0
    caches[2].hold(f"{owner}/7", 130)
    assert again == [100]
    assert caches[2].leave(owner) == Moved(130, True)


@pytest.mark.parametrize("down_s", [(0.0, 3.0), (4.0, 4.0), (4.0, 3.0)])
def test_times_of_failure_are_in_order(down_s: tuple[float, float]) -> None:
    with pytest.raises(BadInput, match="down_s"):
        Station("west", (0.0, 0.0), down_s=down_s)


def test_a_handover_back_within_a_second_is_a_ping_pong() -> None:
    async def run() -> int:
        clock = VirtualClock()
        tally = RoamingTally(clock, 0.0, 100.0)
        for stay_s, cell in ((5.0, 0), (0.9, 1), (0.9, 0), (0.5, 2), (1.1, 1), (3.0, 2), (0.5, 2)):
            tally.arrived(cell, handover=True)
            await clock.sleep(stay_s)
        return tally.ping_pongs

    assert run_virtually(run()) == 1  # at 5.9 s; from 2 to 2 over 1 it took 1.1 s


def record() -> RoundRecord:
    return RoundRecord(
        round=0, protocol="greedy", base_len=1, drafted=1, accepted=1, committed=2, candidates=0, queried=0,
        batch_size=1, draft_s=0.0, link_s=0.0, queue_s=0.0, verify_s=0.0, judge_s=0.0, overhead_s=0.0, uplink_bytes=1,
        downlink_bytes=1, gap=0.0,
    )  # fmt: skip


def test_an_interruption_lasts_over_two_handovers_without_tokens_in_between() -> None:
    async def run() -> list[float]:
        clock = VirtualClock()
        tally = RoamingTally(clock, 0.0, 100.0)
        for left_s in (1.0, 1.5):
            await clock.sleep(left_s - clock.time())
            tally.left(decoding=True)
            tally.arrived(1, handover=True)
        await clock.sleep(0.5)
        tally.round(record())
        tally.left(decoding=False)
        tally.round(record())
        return tally.interruptions_s

    assert run_virtually(run()) == [1.0]
