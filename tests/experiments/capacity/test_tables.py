"""The paper's tables, from rows and runs."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.experiments.capacity import tables as capacity_tables
from testbed.experiments.capacity.config import CapacityConfig
from testbed.experiments.capacity.tables import (
    acceptance_of,
    attributed,
    extra_points,
    run_extras,
    table_1,
    table_3,
    table_5,
    table_6,
    write_extras,
)
from testbed.experiments.capacity.tally import CapacityRun


@given(st.floats(0.01, 0.99), st.integers(1, 12))
def test_the_acceptance_behind_a_share(alpha: float, window: int) -> None:
    share = sum(alpha**i for i in range(1, window + 1)) / window
    assert acceptance_of(share, window) == pytest.approx(alpha, abs=1e-6)


def test_the_predictor_does_to_acceptance_what_the_paper_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity_tables, "WINDOWS", 20_000)
    rows = table_5(CapacityConfig())
    assert [row["on"] for row in rows] == pytest.approx([0.48, 0.63, 0.66, 0.71], rel=0.06)
    assert rows[2]["acceptance"] == pytest.approx(0.758, abs=0.001)


def test_violations_are_put_down_to_the_pass_only_where_it_was_a_spike() -> None:
    events = [(0.0, 0.04, False)] * 3 + [(0.5, 0.041, True), (0.0, 0.2, True), (0.0, 0.2, False)]
    assert [row["cause"] for row in attributed(events)] == ["", "", "", "queue", "compute", ""]


def test_table_1_is_read_where_first_come_first_served_fails_as_printed() -> None:
    rows = [
        {"system": system, "ues": ues, "class_tps": 8.0, "violation": share}
        for system, shares in (("fcfs-cache", (0.2, 0.985, 1.0)), ("wisp", (0.0, 0.4, 0.9)))
        for ues, share in zip((100, 120, 140), shares, strict=True)
    ]
    assert [(row["system"], row["violation"], row["violation_paper"]) for row in table_1(rows)] == [
        ("fcfs-cache", 0.985, 0.9835), ("wisp", 0.4, 0.9827)
    ]  # fmt: skip
    assert table_1(rows[:1]) == []


def test_table_3_is_read_at_the_fastest_class() -> None:
    rows = [{"system": "sled", "class_tps": s, "capacity": 10, "goodput_tps": 7.0 * s} for s in (2.0, 8.0)]
    assert table_3(rows) == [{"system": "sled", "ues": 10, "goodput_tps": 56.0, "goodput_paper": 170.82}]


def test_table_6_pairs_the_seeds() -> None:
    """A gain of 10 % with every seed has an interval of no width, however much the seeds differ."""

    def run(system: str, seed: int, goodput_tps: float) -> CapacityRun:
        return CapacityRun(
            system=system, ues=4, seed=seed, classes={}, complete=True, goodput_tps=goodput_tps, drafted=1, accepted=1,
            rounds=1, empty=0, batch_size=1.0, busy_share=0.0, evicted_tokens=0, memory_bound=0.0, virtual_s=1.0,
            cpu_s=0.0,
        )  # fmt: skip

    off = [run("wisp-fixed", seed, 10.0 * (1 + seed)) for seed in range(5)]
    on = [run("wisp", seed, 11.0 * (1 + seed)) for seed in range(5)]
    (row,) = table_6([*off, *on])
    assert (row["gain"], row["gain_low"], row["gain_high"]) == pytest.approx((0.1, 0.1, 0.1))
    assert (row["ues"], row["seeds"], row["gain_paper"]) == (4, 5, 0.2514)


def test_the_extra_runs_are_those_of_the_papers_two_systems_and_fig_8_is_one_of_fig_7(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever systems Table 2 has; few runs, so that they can be carried out here."""
    for name, value in {"FEW": (2,), "FEW_S": 3.0, "SWEPT": (4, 8), "SHOWN": 8, "WINDOWS": 1000}.items():
        monkeypatch.setattr(capacity_tables, name, value)
    config = CapacityConfig(
        systems=("sled", "wisp"), classes=(4.0, 8.0), prompt=(10, 30), response=(8, 16), horizon_s=3.0, warmup_s=1.5,
        judged=1, judged_class=1, repeats=2,
    )  # fmt: skip
    loads = extra_points(config)["fig7"]
    assert {(point.system, len(point.classes), point.seed) for point in loads} == {
        (system, ues, seed) for system in ("wisp", "fcfs-cache") for ues in (4, 8) for seed in (0, 1)
    }
    write_extras(run_extras(config, 1, tmp_path / "points", lambda done, total, what: None), config, tmp_path)
    with (tmp_path / "fig8_causes.csv").open() as stream:
        assert [(row["seed"], row["ues"]) for row in csv.DictReader(stream)] == [("0", "8"), ("1", "8")]
    with (tmp_path / "fig7.csv").open() as stream:
        assert {row["class_tps"] for row in csv.DictReader(stream)} == {"2.0", "4.0", "6.0", "8.0"}
