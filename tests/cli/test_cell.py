"""`testbed cell run`: the contract's file, and wrong ones in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.cli.main import main
from testbed.errors import TestbedError
from testbed.experiments.cell import files

FILE = """
seconds: 6
warmup_s: 1
radio:
  bandwidth_hz: 20.0e6
  slot_ms: 1.0
  duplex: tdd
  scheduler: proportional-fair
  grant_ms: 1.0
  harq: {bler: 0.05, rtt_ms: 8.0, attempts: 4}
  wired_ms: 1.0
  source: {kind: constant, bits_per_s_per_hz: [2.0, 3.0]}
ues:
  - {name: a, count: 4, weight: 1.0, traffic: bytes, message_bytes: 20000, every_s: 0.1}
  - {name: b, count: 2, profile: wisv, protocol: fh, window: 8, class_tps: 6, alpha: 0.8, response: [8, 16]}
bs: {profile: a100-qwen3-32b-appendix, scheduler: slo}
control: {windows: fixed, weights: fixed, protocol: fixed}
"""


def test_the_documented_file_is_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cell.yaml").write_text(FILE)
    out = tmp_path / "out"
    assert main(["cell", "run", str(tmp_path / "cell.yaml"), "--json", "--seed", "2", "--out", str(out)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == json.loads((out / "cell.json").read_text())
    assert [(row["group"], row["ues"]) for row in answer["rows"]] == [("a", 4), ("b", 2)]
    assert answer["rows"][0]["goodput_tps"] is None and answer["rows"][1]["goodput_tps"] > 0
    assert answer["rows"][0]["uplink_mbps"] == pytest.approx(1.6, rel=0.05)
    assert answer["cell"]["bound_by"] in ("radio", "drafting", "verification")
    assert "seed: 2" in (out / "config.yaml").read_text()
    page = (out / "report.html").read_text()
    assert "bound by" in page and "goodput tok/s" in page and "alt='cell'" in page
    assert (out / "ues.csv").read_text().count("\n") == 1 + 6
    assert list((out / "plots").glob("*-cell.png"))
    assert main(["cell", "run", str(tmp_path / "cell.yaml"), "--out", str(out)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("slot_ms", "slots_ms", "slot_ms"),
        ("proportional-fair", "lottery", "unknown radio scheduler 'lottery'"),
        ("kind: constant", "kind: radar", "radar"),
        ("profile: wisv", "profile: nowhere", "nowhere"),
        ("alpha: 0.8", "alpha: 1.5", "alpha"),
        ("[2.0, 3.0]", "[2.0]", "do not fit 2 groups"),
        ("[2.0, 3.0]", ".nan", "efficienc"),
    ],
)
def test_wrong_files_are_one_line(
    old: str, new: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cell.yaml").write_text(FILE.replace(old, new))
    assert main(["cell", "run", str(tmp_path / "cell.yaml")]) == 2
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1 and words in said


def test_the_table_has_a_row_for_each_group_and_a_line_for_the_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cell.yaml").write_text(FILE)
    assert main(["cell", "run", str(tmp_path / "cell.yaml"), "--seconds", "3", "--format", "csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines[:3]] == ["group", "a", "b"]
    assert lines[-1].startswith("radio used ") and "bound by" in lines[-1]


def test_sustain_prints_a_row_for_each_combination_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cell.yaml").write_text(FILE)
    asked = [
        "cell",
        "sustain",
        str(tmp_path / "cell.yaml"),
        "--ues",
        "2",
        "--repeats",
        "1",
        "--out",
        str(tmp_path / "out"),
    ]
    asked += ["--vary", "radio.bandwidth_hz=1e7,2e7", "--json"]
    assert main(asked) == 0
    first = json.loads(capsys.readouterr().out)
    assert [row["radio.bandwidth_hz"] for row in first["rows"]] == [1e7, 2e7]
    assert first["rows"] == json.loads((tmp_path / "out" / "rows.json").read_text())
    assert (tmp_path / "out" / "sustain.png").exists()
    assert main(asked) == 0 and json.loads(capsys.readouterr().out) == first


@pytest.mark.parametrize(
    ("option", "words"),
    [("--vary=radio.bandwidth_hz", "FIELD=VALUE"), ("--vary=radio.colour=1", "colour"), ("--ues=two", "whole numbers")],
)
def test_wrong_options_of_sustain_are_one_line(
    option: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cell.yaml").write_text(FILE)
    assert main(["cell", "sustain", str(tmp_path / "cell.yaml"), option]) == 2
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1 and words in said


def test_sweep_prints_a_row_for_each_combination_and_group_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cell.yaml").write_text(FILE)
    out = tmp_path / "out"
    asked = ["cell", "sweep", str(tmp_path / "cell.yaml"), "--repeats", "1", "--out", str(out), "--json"]
    asked += ["--vary", 'ues.b.csi=none,"report,noise_db=0"', "--vary", "radio.source.bits_per_s_per_hz=[2,3],[4,6]"]
    assert main(asked) == 0
    first = json.loads(capsys.readouterr().out)
    labels = [(row["ues.b.csi"], row["radio.source.bits_per_s_per_hz"], row["group"]) for row in first["rows"]]
    assert labels == [
        (csi, rates, group) for csi in ("none", "report,noise_db=0") for rates in ([2, 3], [4, 6]) for group in "ab"
    ]
    assert first["rows"][1]["csi_error_db"] is None and first["rows"][5]["csi_error_db"] > 0
    assert first["rows"] == json.loads((out / "rows.json").read_text()) and (out / "sweep.png").exists()
    assert main(asked) == 0 and json.loads(capsys.readouterr().out) == first


@pytest.mark.parametrize(
    ("option", "words"), [("--vary=ues.b.colour=1", "colour"), ("--vary=ues.b.csi=x", "unknown channel")]
)
def test_wrong_options_of_sweep_are_one_line(
    option: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cell.yaml").write_text(FILE)
    assert main(["cell", "sweep", str(tmp_path / "cell.yaml"), option]) == 2
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1 and words in said


def _times(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}


def test_a_run_whose_results_could_not_be_written_is_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory was taken for one of a run with processes."""

    def full(*_: object) -> None:
        raise TestbedError("cannot write: No space left on device")

    (tmp_path / "cell.yaml").write_text(FILE)
    asked = ["cell", "run", str(tmp_path / "cell.yaml"), "--out", str(tmp_path / "out"), "--seconds", "3"]
    for name in ("_write_json", "write_csv"):
        with monkeypatch.context() as patched:
            patched.setattr(files, name, full)
            assert main(asked) == 1 and "No space left" in capsys.readouterr().err
        assert not (tmp_path / "out" / "cell.json").exists()
    assert main(asked) == 0 and (tmp_path / "out" / "cell.json").exists()
    before = _times(tmp_path / "out")
    for name in ("_write_json", "write_csv"):
        with monkeypatch.context() as patched:
            patched.setattr(files, name, full)
            assert main(asked) == 1
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before, (
        "the old results stay"
    )


def test_results_that_are_directories_are_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run ended with a traceback, and its old `cell.json` was gone."""
    (tmp_path / "cell.yaml").write_text(FILE)
    asked = ["cell", "run", str(tmp_path / "cell.yaml"), "--out", str(tmp_path / "out"), "--seconds", "3"]
    assert main(asked) == 0
    (tmp_path / "out" / "summary.json").unlink()
    (tmp_path / "out" / "summary.json").mkdir()
    (tmp_path / "out" / ".new-left").mkdir()
    before = (tmp_path / "out" / "cell.json").read_bytes()
    capsys.readouterr()
    assert main(asked) == 2 and "summary.json is a directory" in capsys.readouterr().err
    assert (tmp_path / "out" / "cell.json").read_bytes() == before
    (tmp_path / "out" / "summary.json").rmdir()
    assert main(asked) == 0 and not list((tmp_path / "out").glob(".new-*"))
