"""UEs that move between base stations: when, what it costs, and that no token is lost."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from typing import Any

import msgspec
import pytest

from testbed.channel.radio.config import RadioConfig
from testbed.channel.radio.handover import Handover
from testbed.channel.radio.model import ModelSource
from testbed.errors import BadInput
from testbed.experiments.cell.config import CellConfig, CellControl, UeGroup
from testbed.experiments.cell.csi import WatchedChannel
from testbed.experiments.cell.parts.counting import CellRun
from testbed.experiments.cell.planning import ue_name
from testbed.experiments.cell.rows import document
from testbed.experiments.cell.run import run_cell
from testbed.experiments.cell.several.network import Network
from testbed.experiments.cell.stations import CellsConfig, Station
from testbed.experiments.deployment.traffic_bs import TrafficRunner
from testbed.experiments.deployment.traffic_ue import LANGUAGE

RADIO = RadioConfig(source=ModelSource(shadowing_db=0.0, fading="none"))
TWO = (Station("west", (0.0, 0.0)), Station("east", (200.0, 0.0)))
WALKER = UeGroup(
    name="walker",
    path_m=((10.0, 0.0), (190.0, 0.0)),
    speed_mps=20.0,
    protocol="fh",
    prompt=(50, 50),
    response=(200, 200),
)


def cells(*ues: UeGroup, stations: tuple[Station, ...] = TWO, **handover: float) -> CellConfig:
    return CellConfig(
        seconds=20.0, warmup_s=0.0, radio=RADIO, ues=ues, cells=CellsConfig(stations, Handover(**handover))
    )


def played(config: CellConfig) -> tuple[Network, CellRun]:
    network = Network(config, config.seconds)
    return network, network.run()


@pytest.mark.parametrize(("y_m", "offset_db"), [(0.0, 3.0), (30.0, 0.0)])
def test_a_ue_on_a_line_is_handed_over_where_path_loss_says(y_m: float, offset_db: float) -> None:
    """East is 1 + offset dB better where (x² + y²) / ((200 - x)² + y²) is 10 to the power of that over 17.65."""
    group = msgspec.structs.replace(WALKER, path_m=((10.0, y_m), (190.0, y_m)))
    network, _ = played(cells(group, a3_offset_db=offset_db, filter_coefficient=0.0))
    r = 10 ** ((offset_db + 1.0) / 17.65)
    a, b, c = 1 - r, 400 * r, y_m**2 - r * (200**2 + y_m**2)
    x_m = (-b + math.sqrt(b * b - 4 * a * c)) / (2 * a)
    there_s, back_s = (x_m - 10) / 20 + 0.16, 9 + (x_m - 10) / 20 + 0.16
    assert [log[1:] for log in network.group.roaming.log] == [(0, 0, 1), (0, 1, 0)]
    for (at_s, *_), expected_s in zip(network.group.roaming.log, (there_s, back_s), strict=True):
        assert expected_s <= at_s <= expected_s + 0.04 + 0.5 / 20 + 1e-6  # a measurement, and a step of places


@pytest.mark.parametrize("method", ["greedy", "fh", "sh", "target-only", "coupled"])
@pytest.mark.parametrize("lookahead", [0, 1, None])
def test_responses_across_handovers_are_the_targets_own(method: str, lookahead: int | None) -> None:
    """The run itself compares every response; UEs of both directions change cells within responses."""
    if method == "target-only" and lookahead != 0:
        return
    group = msgspec.structs.replace(WALKER, count=3, protocol=method, lookahead=lookahead)
    found = document(config := cells(group, time_to_trigger_ms=40.0), run_cell(config))
    row = found["rows"][0]
    assert row["handovers_per_ue"] >= 1.5
    assert row["responses"] >= 3
    assert row["interruption_s"] >= 0.05
    assert sum(cell["handovers"] for cell in found["cells"]) == 3 * row["handovers_per_ue"]


def test_tokens_of_the_cells_are_those_of_the_groups() -> None:
    still = UeGroup(name="still", count=3, distance_m=(5.0, 50.0))
    found = document(config := cells(msgspec.structs.replace(WALKER, count=2), still), run_cell(config))
    assert sum(cell["goodput_tps"] for cell in found["cells"]) == pytest.approx(found["cell"]["goodput_tps"])
    assert sum(cell["passes"] for cell in found["cells"]) == found["cell"]["passes"]
    assert found["rows"][1]["handovers_per_ue"] == found["rows"][1]["prefilled_again"] == 0


def test_tokens_prefilled_again_are_those_that_the_passes_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a log of all passes: positions of a session that one base station had computed when the UE left, and another
    computed again.
    """
    passes: list[tuple[float, str, int, int, int]] = []
    step = TrafficRunner.step

    async def logged(self: TrafficRunner, *waiting: Any) -> Any:
        found = await step(self, *waiting)
        for request, _, cached, *_ in found:
            length, drafted = len(request.prefix), len(request.draft)
            agree = request.draft == LANGUAGE[length : length + drafted]
            kept = drafted if agree.all() else int(agree.argmin())
            passes.append((self._clock.time(), request.session, cached, length, kept))
        return found

    monkeypatch.setattr(TrafficRunner, "step", logged)
    network, run = played(config := cells(msgspec.structs.replace(WALKER, count=4)))
    left_s: dict[bytes, list[float]] = defaultdict(list)
    for at_s, ue, *_ in network.group.roaming.log:
        left_s[ue_name(ue)].append(at_s)
    rounds: dict[tuple[bytes, str], list[tuple[bytes, int, int, int]]] = defaultdict(list)
    for at_s, session, *work in passes:
        name, number, _ = session.split("/")
        ue, _, arrival = bytes.fromhex(name).partition(b"@")
        if at_s <= [*left_s[ue], math.inf][int(arrival) - 1]:
            rounds[ue, number].append((arrival, *work))
    again = 0
    for found in rounds.values():
        for (before, _, length, kept), (now, cached, new_length, new_kept) in itertools.pairwise(found):
            if now == before:
                assert cached == min(length + kept, new_length - 1)  # nothing is computed twice
            else:
                assert cached == 0
                again += min(length + kept, new_length + new_kept)
    assert document(config, run)["rows"][0]["prefilled_again"] == again > 1000


def test_the_interruption_lasts_as_configured_and_messages_in_the_old_cell_are_lost() -> None:
    sender = UeGroup(
        name="bytes", traffic="bytes", message_bytes=1000, every_s=0.01, path_m=WALKER.path_m, speed_mps=20.0
    )
    rows = [
        document(config := cells(sender, interruption_ms=ms), run_cell(config))["rows"][0] for ms in (100.0, 1000.0)
    ]
    assert [row["handovers_per_ue"] for row in rows] == [2, 2]
    for row, seconds in zip(rows, (0.2, 2.0), strict=True):
        assert row["undelivered"] * 0.01 == pytest.approx(seconds, abs=0.041)
        assert row["messages"] + row["undelivered"] == pytest.approx(2000, abs=2)


def test_a_ue_knows_the_channel_to_the_cell_that_serves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In either direction between x and 200 - x, the rate of the nearer cell, as the oracle says it."""
    known: list[tuple[float, float]] = []
    now = WatchedChannel.now

    def watched(self: WatchedChannel) -> Any:
        csi = now(self)
        assert csi is not None
        known.append((self._truth._clock.time(), csi.uplink_mbps))
        return csi

    monkeypatch.setattr(WatchedChannel, "now", watched)
    config = cells(msgspec.structs.replace(WALKER, csi="oracle", speed_mps=10.0))
    row = document(config, run_cell(config))["rows"][0]
    assert row["csi_error_db"] == 0
    rates = {round(at_s): mbps for at_s, mbps in known}
    assert rates[1] > rates[8] < rates[17]  # 20 m, 90 m; 20 m from the other one
    assert rates[17] == pytest.approx(rates[1], rel=0.1)


@pytest.mark.parametrize("csi", ["handshake", "passive", "report,noise_db=2"])
def test_what_ues_know_of_their_channels_survives_handovers(csi: str) -> None:
    config = cells(msgspec.structs.replace(WALKER, csi=csi, count=2), time_to_trigger_ms=40.0)
    row = document(config, run_cell(config))["rows"][0]
    assert row["handovers_per_ue"] >= 1.5
    assert row["responses"] >= 2
    assert 0 < row["csi_error_db"] < 20


def test_the_same_seed_gives_the_same_run() -> None:
    config = cells(msgspec.structs.replace(WALKER, count=2), UeGroup(name="ring", count=2, speed_mps=10.0))
    config = msgspec.structs.replace(config, seconds=8.0)
    assert document(config, run_cell(config)) == document(config, run_cell(config))


@pytest.mark.parametrize(
    ("points", "name", "words"),
    [
        (100_000, "walker", "group walker: path_m has 100000 points; at most 1000"),
        (2, "w" * 100_000, "the name of a group of UEs has 100000 characters; at most 100"),
    ],
)
def test_long_paths_and_names_of_groups_are_refused_in_a_short_line(points: int, name: str, words: str) -> None:
    with pytest.raises(BadInput) as refused:
        UeGroup(name=name, path_m=tuple((float(x), 0.0) for x in range(points)))
    assert str(refused.value) == words
    assert UeGroup(name="w" * 100, path_m=tuple((float(x), 0.0) for x in range(1000))).name


def test_long_names_of_base_stations_are_refused_in_a_short_line() -> None:
    with pytest.raises(BadInput) as refused:
        Station("s" * 100_000, (0.0, 0.0), tuple(float(azimuth) for azimuth in range(13)))
    assert str(refused.value) == "the name of a base station has 100000 characters; at most 100"


def test_what_is_for_one_cell_is_refused() -> None:
    config = cells(WALKER)
    for change in (
        {"cells": None},
        {"radio": RadioConfig()},
        {"radio": RadioConfig(source=ModelSource(load=0.5))},
        {"ues": (msgspec.structs.replace(WALKER, window_rule="hinted"),), "control": CellControl(windows="joint")},
    ):
        with pytest.raises(BadInput, match="cells"):
            msgspec.structs.replace(config, **change).__post_init__()
    with pytest.raises(BadInput, match=r"2\.\."):
        CellsConfig((TWO[0],))
    with pytest.raises(BadInput, match="places"):
        CellsConfig((TWO[0], Station("other", (0.0, 0.0))))
