"""Base stations divided among groups: whatever the number of groups and processes, the results are the same bits."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from testbed.channel.radio.config import RadioConfig
from testbed.channel.radio.handover import A3Events, Handover
from testbed.channel.radio.model import ModelSource
from testbed.channel.radio.network import NetworkChannels
from testbed.errors import BadInput, EngineError
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.grid import sweep
from testbed.experiments.cell.grid.sweep import CellSweepConfig, sweep_cell
from testbed.experiments.cell.parts.counting import CellRun
from testbed.experiments.cell.rows import document, ue_rows
from testbed.experiments.cell.run import run_cell
from testbed.experiments.cell.several.group import Group
from testbed.experiments.cell.several.network import Network, divided
from testbed.experiments.cell.several.told import CHUNK, Record, Told
from testbed.experiments.cell.several.ue import RoamingPort
from testbed.experiments.cell.several.virtual_ue import VirtualUe
from testbed.experiments.cell.several.workers import InProcess, OnRay, Spread
from testbed.experiments.cell.stations import CellsConfig, Migration, Station

STATIONS = (
    Station("west", (0.0, 0.0)),
    Station("east", (200.0, 0.0), (90.0, 270.0)),
    Station("north", (100.0, 150.0), down_s=(1.5, 2.6)),
)
PATH_M = ((10.0, 10.0), (190.0, 10.0), (100.0, 140.0))
FAST = UeGroup(name="fast", count=4, path_m=PATH_M, speed_mps=60.0, prompt=(50, 250), response=(4, 30))
UES = (
    replace(FAST, protocol="fh", lookahead=1, class_tps=6.0),
    replace(FAST, name="informed", count=3, csi="report,noise_db=1", rate_rps=0.8),
    replace(FAST, name="alone", count=2, protocol="target-only", csi="none"),
    replace(FAST, name="judged", count=2, protocol="sh", judge_keeps=0.3),
    UeGroup(name="bytes", count=2, traffic="bytes", every_s=0.01, path_m=PATH_M, speed_mps=60.0),
)
RADIO = RadioConfig(bandwidth_hz=10e6, duplex="tdd", scheduler="proportional-fair", wired_ms=2.0, source=ModelSource())
HANDOVER = Handover(time_to_trigger_ms=80.0, t310_ms=200.0)
CONFIG = CellConfig(seconds=4.0, warmup_s=0.5, radio=RADIO, ues=UES, cells=CellsConfig(STATIONS, HANDOVER))
MOVING = Migration("move", backhaul_bps=1e9)


def everything(config: CellConfig, run: CellRun) -> tuple[Any, ...]:
    return document(config, run), ue_rows(config, run), run.series


def in_groups(config: CellConfig, count: int) -> tuple[Any, ...]:
    return everything(config, Network(config, config.seconds, workers=InProcess(count)).run())


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the UEs that another group took over."""
    found, follow = list[int](), VirtualUe.follow

    def logged(self: VirtualUe, *arguments: Any) -> None:
        found.append(self.number)
        follow(self, *arguments)

    monkeypatch.setattr(VirtualUe, "follow", logged)
    return found


@pytest.mark.parametrize("cells", [{}, {"migration": MOVING}, {"interference_ms": 0.0}])
def test_any_number_of_groups_gives_the_same_bits(cells: dict[str, Any], followed: list[int]) -> None:
    config = replace(CONFIG, cells=CellsConfig(STATIONS, HANDOVER, **cells))
    alone = in_groups(config, 1)
    assert not followed
    assert alone[0]["rows"][0]["handovers_per_ue"] > 1
    assert sum(row["responses"] or 0 for row in alone[0]["rows"]) >= 3
    for count in (2, 3):
        followed.clear()
        assert in_groups(config, count) == alone
        assert len(followed) > len(set(followed)) > 5  # many go to other groups, and some come back


def test_processes_give_the_same_bits() -> None:
    config = replace(CONFIG, seconds=2.0)
    spread = run_cell(config, spread=Spread("local", 2))
    assert everything(config, spread) == everything(config, run_cell(config))


def test_runs_of_a_sweep_are_divided_among_processes_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = CellSweepConfig(cell=replace(CONFIG, seconds=2.0), repeats=1)
    rows = sweep_cell(config, tmp_path, 1, lambda done, of: None, Spread("local", 2))
    monkeypatch.setattr(sweep, "run_cell", None)
    assert sweep_cell(config, tmp_path, 1, lambda done, of: None) == rows  # read from what is kept
    monkeypatch.undo()
    assert sweep_cell(config, None, 1, lambda done, of: None) == rows


@pytest.mark.parametrize("part", [(NetworkChannels, "take"), (A3Events, "restore"), (RoamingPort, "restore")])
def test_without_what_is_exchanged_the_results_are_others(
    part: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = in_groups(CONFIG, 1)
    monkeypatch.setattr(*part, lambda self, *given: None)
    assert in_groups(CONFIG, 2) != alone


def test_the_copy_of_a_ue_that_does_something_else_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With another seed in the second group, UEs do not do again what they did in the first."""
    begin = Group.__init__

    def other(self: Group, config: CellConfig, channels_s: float, share: Any, *more: Any) -> None:
        begin(self, replace(config, seed=config.seed + share.number), channels_s, share, *more)

    monkeypatch.setattr(Group, "__init__", other)
    with pytest.raises(EngineError, match="does not do again"):
        in_groups(CONFIG, 2)


def test_a_failure_in_a_process_is_raised() -> None:
    with pytest.raises(BadInput, match="nowhere"):
        run_cell(replace(CONFIG, ues=(replace(FAST, profile="nowhere"),)), spread=Spread("local", 2))


def test_groups_are_neighbours() -> None:
    assert CONFIG.cells is not None
    assert divided(CONFIG.cells, 1) == ((0, 1, 2),)
    assert divided(CONFIG.cells, 2) == ((0,), (1, 2))
    assert divided(CONFIG.cells, 3) == ((0,), (2,), (1,))


def test_what_groups_cannot_do_is_refused() -> None:
    one = replace(CONFIG, cells=None, ues=(UeGroup(name="a"),))
    together = replace(CONFIG, ues=(replace(FAST, together=True),))
    short = replace(CONFIG, cells=CellsConfig(STATIONS, Handover(interruption_ms=12.0)))
    for config, spread, words in (
        (one, Spread("local", 2), "cells"),
        (one, Spread("ray", 1), "cells"),
        (together, Spread("local", 2), "one process"),
        (short, Spread("local", 2), "interruption_ms is 12"),
        (CONFIG, Spread("local", 4), "3 base stations"),
        (CONFIG, Spread("local", 0), "at least 1"),
        (CONFIG, Spread("slurm", 2), "known: local, ray"),
    ):
        with pytest.raises(BadInput, match=words):
            run_cell(config, spread=spread)


def test_a_cluster_with_too_few_cores_is_refused() -> None:
    with pytest.raises(BadInput, match="2 workers need as many cores; the Ray cluster has 1"):
        OnRay(SimpleNamespace(cluster_resources=lambda: {"CPU": 1.0}), 2)


def test_a_group_is_told_what_it_has_not_had() -> None:
    records = [Record() for _ in range(3)]
    entries = [Told(number, number / 8, "received", (number, [b"frame"], 5)) for number in range(3 * CHUNK)]
    found: list[list[Told]] = []
    way = ((0, 1, CHUNK + 9), (1, 0, 1), (0, 2, CHUNK), (2, 1, 0), (1, 2, 3))
    left = iter(entries)
    for own, other, count in way:
        for _ in range(count):
            records[own].add(next(left))
        found.append(records[other].take(*records[own].for_group(own, other)))
    assert [len(one) for one in found] == [CHUNK + 9, 1, 2 * CHUNK + 10, CHUNK, 3]
    assert found[2] == entries[: 2 * CHUNK + 10]
