"""`testbed capacity` as it is called."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from testbed.cli.main import main

QUICK = [
    *("--set", "prompt=[10, 30]", "--set", "response=[8, 16]", "--set", "kv_tokens=2000", "--set", "max_batch=1"),
    *("--set", "warmup_s=1.5", "--set", "judged=60", "--horizon-s", "3", "--jobs", "1"),
]


def call(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, object]:
    """A command's JSON document; nothing else is on stdout."""
    assert main(["capacity", *QUICK, *argv, "--json"]) == 0
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document


def test_capacities_come_as_the_contract_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    document = call(capsys, "--systems", "fcfs-cache,sled", "--classes", "5,10")
    rows = document["rows"]
    assert isinstance(rows, list)
    assert [(row["system"], row["class_tps"]) for row in rows] == [
        ("fcfs-cache", 5), ("fcfs-cache", 10), ("sled", 5), ("sled", 10)
    ]  # fmt: skip
    for row in rows:
        assert isinstance(row["capacity"], int)
        assert row["goodput_tps"] > 0
        assert row["violation"] <= 0.05
    assert rows[0]["capacity"] > rows[1]["capacity"]
    config = document["config"]
    assert isinstance(config, dict)
    assert (config["epsilon"], config["network_ms"], config["kv_tokens"]) == (0.05, 40.0, 2000)


def test_given_ues_are_not_searched_for(capsys: pytest.CaptureFixture[str]) -> None:
    document = call(capsys, "--systems", "wisp,centralized", "--mix", "2:1,4:1,6:1,8:1", "--ues", "9")
    rows = document["rows"]
    assert isinstance(rows, list)
    assert [row["system"] for row in rows] == ["wisp", "centralized"]
    for row in rows:
        assert row["ues"] == 9
        assert set(row["violations"]) == {"2", "4", "6", "8"}
        assert "capacity" not in row


def test_a_fixed_load_is_pooled_over_seeds_and_variations_are_paired(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from testbed.experiments.capacity import report as capacity_report

    monkeypatch.setitem(capacity_report.VARIATIONS, "switches", ({"late": "last"},))
    argv = ("--systems", "wisp", "--classes", "10", "--ues", "3", "--repeats", "2", "--switches")
    document = call(capsys, *argv, "--out", str(tmp_path / "s"))
    rows, found = document["rows"], document["pooled"]
    assert isinstance(rows, list) and isinstance(found, list)
    assert [(row["varied"], row["seed"]) for row in rows] == [
        ("nothing", 0), ("late=last", 0), ("nothing", 1), ("late=last", 1)
    ]  # fmt: skip
    assert [row["varied"] for row in found] == ["nothing", "late=last"]
    assert found[1]["seeds"] == 2 and found[1]["violation_verdict"] in ("ahead", "behind", "undecided")
    with (tmp_path / "s" / "pooled.csv").open() as stream:
        assert [row["varied"] for row in csv.DictReader(stream)] == ["nothing", "late=last"]


def test_a_directory_holds_tables_and_plots_and_is_taken_up_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "study"
    argv = ("--systems", "sled", "--classes", "10", "--out", str(out))
    first = call(capsys, *argv)
    names = {path.name for path in out.iterdir()}
    assert {"config.yaml", "summary.json", "points", "table2.csv", "table2.png", "table3.csv"} <= names
    with (out / "table2.csv").open() as stream:
        assert [int(row["capacity"]) for row in csv.DictReader(stream)] == [first["rows"][0]["capacity"]]  # type: ignore[index]
    times = {path: path.stat().st_mtime_ns for path in (out / "points").iterdir()}
    assert call(capsys, *argv)["rows"] == first["rows"]
    assert {path: path.stat().st_mtime_ns for path in (out / "points").iterdir()} == times
    assert main(["capacity", *QUICK, "--systems", "wisp", "--out", str(out)]) == 2
    assert "holds another study" in capsys.readouterr().err


def test_a_sweep_leaves_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(capsys, "--systems", "sled", "--mix", "5:1,20:1", "--sweep", "2:6:2", "--out", str(tmp_path / "s"))
    with (tmp_path / "s" / "fig7.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["ues"], row["class_tps"]) for row in rows] == [(n, s) for n in "246" for s in ("5.0", "20.0")]
    assert (tmp_path / "s" / "fig7.png").stat().st_size > 1000


def test_sensitivity_compares_with_nothing_varied(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from testbed.experiments.capacity import report as capacity_report

    monkeypatch.setitem(capacity_report.VARIATIONS, "sensitivity", ({"verify_scale": 2.0},))
    out = ("--out", str(tmp_path / "s"))
    rows = call(capsys, "--systems", "sled,centralized", "--classes", "10", "--sensitivity", *out)["rows"]
    assert isinstance(rows, list)
    assert [(row["system"], row["varied"]) for row in rows] == [
        ("sled", "nothing"), ("centralized", "nothing"),
        ("sled", "verify_scale=2.0"), ("centralized", "verify_scale=2.0"),
    ]  # fmt: skip
    assert rows[0]["change"] == 1.0
    assert rows[3]["change"] < 1
    assert rows[2]["factor"] == 1.0
    assert rows[3]["factor"] == pytest.approx(rows[2]["capacity"] / rows[3]["capacity"])
    assert (tmp_path / "s" / "sensitivity.png").stat().st_size > 1000


def test_a_knee_comes_with_what_became_of_its_own_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "s"
    rows = call(capsys, "--systems", "sled", "--mix", "4:1,8:1", "--out", str(out))["rows"]
    assert isinstance(rows, list)
    assert [row["class_tps"] for row in rows] == [4, 8]
    assert all(row["violation"] <= 0.05 and row["judged"] > 0 for row in rows), rows
    assert rows[0]["capacity"] > rows[1]["capacity"]
    assert (out / "knees.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--systems", "abacus"], "known: wisp"),
        (["--classes", "fast"], "classes"),
        (["--classes", "0"], "[0.001, 1e+09] tokens/s"),
        (["--mix", "2:1,2:3"], "each speed once"),
        (["--mix", "2:x"], "mix"),
        (["--classes", "2", "--mix", "2:1"], "--classes"),
        (["--ues", "0"], "1..4000"),
        (["--profile", "abacus"], "no profile"),
        (["--profile", "wisv"], "interactions"),
        (["--epsilon", "2"], "[0, 1]"),
        (["--sweep", "9"], "FROM:TO:STEP"),
        (["--sweep", "9:3:1"], "FROM:TO:STEP"),
        (["--sweep", "1:40000000:1"], "FROM ≤ TO ≤ 4000"),
        (["--sweep", "1:3:1", "--ues", "3"], "exclude each other"),
        (["--mix", "2:1", "--tables", "--out", "nowhere"], "leave out --mix"),
        (["--tables"], "--out"),
        (["--jobs", "0"], "at least 1"),
        (["--set", "x"], "FIELD=VALUE"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_bad_input_is_one_line(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capacity", *argv]) == 2
    shown = capsys.readouterr()
    assert says in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""
