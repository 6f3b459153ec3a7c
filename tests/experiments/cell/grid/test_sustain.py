"""UEs that a cell sustains: searches against runs of every number, varied fields, kept runs."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from testbed.channel.radio.config import RadioConfig
from testbed.errors import BadInput
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.grid import sustain as searched
from testbed.experiments.cell.grid.judged import CellOutcome, judged_run
from testbed.experiments.cell.grid.points import CellPoint, Row, combinations, varied
from testbed.experiments.cell.grid.sustain import SustainConfig, _kept_classes, crowded, sustain
from testbed.experiments.plots.cell import write_plot
from testbed.intervals import independent_seed
from tests.support.refusals import refuse

FH = UeGroup(name="fh", protocol="fh", class_tps=6.0, alpha=0.8, response=(8, 16))
CELL = CellConfig(seconds=12.0, radio=RadioConfig(bandwidth_hz=1.5e6), ues=(FH,))


def test_the_search_finds_the_number_beyond_which_responses_are_late() -> None:
    (row,) = sustain(SustainConfig(cell=CELL, repeats=2), None, 1, lambda done, total: None)
    for seed, ues in enumerate(row["ues_by_seed"]):
        for count, verdict in ((ues, "kept"), (ues + 1, "violated")):
            cell = msgspec.structs.replace(CELL, seed=independent_seed(seed, count))
            assert judged_run(crowded(cell, count), 0.05).verdict == verdict
    assert row["ues_low"] <= row["ues"] <= row["ues_high"]
    assert row["bound_by"] == "radio"


def test_more_bandwidth_sustains_more_until_something_else_binds(tmp_path: Path) -> None:
    config = SustainConfig(cell=CELL, vary={"radio.bandwidth_hz": (1e6, 3e6)}, ues=(2, 8), repeats=1)
    rows = sustain(config, tmp_path / "runs", 1, lambda done, total: None)
    assert [(row["radio.bandwidth_hz"], row["ues"]) for row in rows] == [(1e6, 2), (1e6, 8), (3e6, 2), (3e6, 8)]
    assert rows[0]["uplink_utilisation"] > rows[2]["uplink_utilisation"]
    assert rows[1]["kept"] == 0 and rows[2]["kept"] == 1
    assert write_plot(rows, ["radio.bandwidth_hz"], tmp_path / "map.png").stat().st_size > 5000


def test_rows_are_compared_with_the_first_value_of_the_last_field(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within each value of the other fields, and paired by seed."""
    found = {(1e6, "greedy"): [5, 9, 7], (1e6, "sh"): [6, 10, 8], (3e6, "greedy"): [9, 9, 9], (3e6, "sh"): [8, 9, 10]}

    def rows(config: SustainConfig, point: CellPoint, out: Path | None) -> list[Row]:
        return [point.labels | {"ues_by_seed": found[tuple(point.labels.values())]}]

    monkeypatch.setattr(searched, "point_rows", rows)
    vary = {"radio.bandwidth_hz": (1e6, 3e6), "ues.*.protocol": ("greedy", "sh")}
    one, ahead, other, same = sustain(SustainConfig(cell=CELL, vary=vary), None, 1, lambda done, total: None)
    assert "difference" not in one and "difference" not in other
    assert (ahead["difference"], ahead["difference_low"], ahead["verdict"]) == (1.0, 1.0, "ahead")
    assert (same["difference"], same["verdict"]) == (0.0, "undecided")


def test_finished_runs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = SustainConfig(cell=CELL, ues=(2, 3), repeats=2)
    first = sustain(config, tmp_path, 1, lambda done, total: None)
    assert len(list(tmp_path.iterdir())) == 4

    def never(cell: CellConfig, epsilon: float, whole: bool) -> CellOutcome:
        raise AssertionError("run again")

    monkeypatch.setattr(searched, "judged_run", never)
    assert sustain(config, tmp_path, 1, lambda done, total: None) == first
    one, other, *_ = sorted(tmp_path.iterdir())
    kept = json.loads(one.read_text())
    other.write_text(json.dumps(kept))
    refuse(lambda: sustain(config, tmp_path, 1, lambda done, total: None), BadInput, "is of another run", "remove it")
    for name, value in {
        "ues": -1, "verdict": "maybe", "seconds": -1.0, "bound_by": "x", "uplink_utilisation": 7.0, "busy_share": -0.1,
        "goodput_tps": 1e308, "jain": -9.0, "late": {"fast": [-1, 2]},
    }.items():  # fmt: skip
        one.write_text(json.dumps(kept | {"result": kept["result"] | {name: value}}))
        refuse(lambda: sustain(config, tmp_path, 1, lambda done, total: None), BadInput, "is damaged", "remove it")


def test_searches_of_later_seeds_begin_at_what_the_others_found(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def outcome(cell: CellConfig, epsilon: float, whole: bool) -> CellOutcome:
        ues = sum(group.count for group in cell.ues)
        asked.append(ues)
        return CellOutcome(ues, "kept" if ues <= 400 else "violated", 1.0, "radio", 1.0, 0.0, 0.0, 1.0, {})

    monkeypatch.setattr(searched, "judged_run", outcome)
    (row,) = sustain(SustainConfig(cell=CELL, repeats=3), None, 1, lambda done, total: None)
    assert all(392 < ues <= 400 for ues in row["ues_by_seed"])
    assert len(asked) - asked.index(row["ues_by_seed"][0]) < 16 and asked[-1] > 300
    asked.clear()
    exact = sustain(SustainConfig(cell=CELL, repeats=1, resolution=0.0), None, 1, lambda done, total: None)
    assert exact[0]["ues_by_seed"] == [400]


def test_fields_are_varied_by_path() -> None:
    cell = msgspec.structs.replace(CELL, ues=(FH, msgspec.structs.replace(FH, name="sh")))
    found = varied(cell, {"radio.bandwidth_hz": 5e6, "ues.sh.protocol": "sh", "ues.*.window": 4})
    assert found.radio.bandwidth_hz == 5e6
    assert [(group.protocol, group.window) for group in found.ues] == [("fh", 4), ("sh", 4)]
    refuse(lambda: varied(cell, {"ues.nobody.window": 4}), BadInput, "no field ues.nobody.window")
    refuse(lambda: varied(cell, {"radio.bandwith_hz": 4}), BadInput, "bandwidth_hz")
    refuse(lambda: varied(cell, {"ues.fh.window": 0}), BadInput, "window")
    points = combinations(cell, {"radio.bandwidth_hz": (5e6, 1e7), "ues.*.window": (4, 8)})
    assert [tuple(point.labels.values()) for point in points] == [(5e6, 4), (5e6, 8), (1e7, 4), (1e7, 8)]


def test_ues_are_dealt_in_proportion_and_groups_of_bytes_stay() -> None:
    background = UeGroup(name="bytes", count=5, traffic="bytes")
    groups = (FH, background, msgspec.structs.replace(FH, name="many", count=3))
    cell = msgspec.structs.replace(CELL, ues=groups)
    assert [(group.name, group.count) for group in crowded(cell, 8).ues] == [("fh", 2), ("bytes", 5), ("many", 6)]
    assert [group.name for group in crowded(cell, 1).ues] == ["bytes", "many"]


def test_a_cell_without_classes_cannot_be_sustained() -> None:
    free = msgspec.structs.replace(CELL, ues=(msgspec.structs.replace(FH, class_tps=None),))
    refuse(lambda: SustainConfig(cell=free), BadInput, "class_tps")
    refuse(lambda: SustainConfig(cell=CELL, ues=(0,)), BadInput, "1..5000")
    refuse(
        lambda: SustainConfig(cell=CELL, ues=(2,), resolution=0.1), BadInput, "--resolution has no effect with --ues"
    )


def test_what_too_few_responses_decide_is_not_taken_for_too_many_ues() -> None:
    def found(late: tuple[int, int]) -> CellOutcome:
        return CellOutcome(2, "undecided", 9.0, "radio", 0.5, 0.5, 9.0, None, {"fast": late})

    search = _kept_classes(0.05, 2)
    next(search)
    with pytest.raises(BadInput, match=r"2 UEs: too few responses were judged \(fast 40\)"):
        search.send(found((2, 40)))
    search = _kept_classes(0.05, 2)
    next(search)
    with pytest.raises(StopIteration) as ended:
        search.send(found((3, 40)))
    assert ended.value.value is False


def test_ues_of_whom_none_has_a_promise_decide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search ended with a traceback where it reached so few UEs that the promised group had none."""
    crowd = msgspec.structs.replace(FH, name="crowd", count=5, class_tps=None)
    cell = msgspec.structs.replace(CELL, seconds=4.0, ues=(crowd, msgspec.structs.replace(FH, class_tps=500.0)))
    rows = sustain(SustainConfig(cell=cell, ues=(1, 6), repeats=1), None, 1, lambda done, total: None)
    assert [(row["ues"], row["kept"]) for row in rows] == [(1, None), (6, 0.0)]
    tried: list[CellOutcome] = []

    def judged(one: CellConfig, epsilon: float, whole: bool) -> CellOutcome:
        tried.append(judged_run(one, epsilon, whole))
        return tried[-1]

    monkeypatch.setattr(searched, "judged_run", judged)
    (row,) = sustain(SustainConfig(cell=cell, repeats=1), None, 1, lambda done, total: None)
    assert row["ues_by_seed"] == [0]
    fewest = min((run for run in tried if run.late), key=lambda run: run.ues)
    assert fewest.ues > 1 and row["goodput_tps"] == fewest.goodput_tps


def test_of_given_numbers_without_a_ue_of_a_class_it_is_open_whether_classes_are_kept() -> None:
    """The cell was shown as one that keeps them in no seed."""
    cell = msgspec.structs.replace(CELL, ues=(FH, UeGroup(name="free", protocol="greedy", count=30, response=(8, 16))))
    (row,) = sustain(SustainConfig(cell=cell, ues=(2,), repeats=1), None, 1, lambda done, total: None)
    assert row["kept"] is None
