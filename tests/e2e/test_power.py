"""A UE and a base station with a meter each, as processes: energy from the samples to the report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.cli.main import main
from testbed.config import ServeConfig
from testbed.experiments.results.energy import PARTS
from testbed.experiments.results.files import read_requests, read_rounds
from testbed.experiments.runs.processes import base_station
from testbed.models.bundle import bundled
from testbed.power.files import read_samples
from tests.power.test_accounting import by_grid

METHODS = ("greedy", "target-only")


def meter(path: Path) -> str:
    """Ten minutes that swing between 4 W and 8 W; throttled throughout."""
    times_s = np.arange(0, 600, 0.02)
    lines = [f"{t:.2f},{6 + 2 * np.sin(t):.4f},61.5,thermal" for t in times_s]
    path.write_text("time_s,VDD_IN_w,temp_c,throttled\n" + "\n".join(lines) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[dict[str, Any]]]:
    """A run's directory, its answer, and the lines of the BS's metrics."""
    folder = tmp_path_factory.mktemp("power")
    metrics, file = folder / "bs.jsonl", meter(folder / "meter.csv")
    config = ServeConfig(
        engine="transformers", model=str(bundled().require("target")), threads=1, metrics=str(metrics),
        metrics_interval_s=0.2, power=file,
    )  # fmt: skip
    with base_station(config) as ready:
        command = [
            sys.executable, "-m", "testbed", "ue", "run", "--bs", ready["bind"], "--limit", "2", "--max-tokens", "40",
            "--protocol", ",".join(METHODS), "--threads", "1", "--power", file, "--power-idle-s", "0.5",
            "--out", str(folder / "run"), "--json",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return folder / "run", json.loads(done.stdout), lines


@pytest.mark.long
def test_parts_add_up_to_what_the_samples_say(run: tuple[Path, dict[str, Any], list[dict[str, Any]]]) -> None:
    path, answer, _ = run
    samples = read_samples(path / "power.parquet")
    zeros = {(r["method"], r["request"]): r["clock_unix_s"] for r in read_requests(path).to_pylist()}
    rounds = read_rounds(path).to_pylist()
    assert {row["method"] for row in rounds} == set(METHODS)
    for row in rounds:
        zero_s = zeros[row["method"], row["request"]]
        drafted_s = row["begin_s"] + row["draft_s"]
        assert row["begin_s"] <= drafted_s <= row["sent_s"] + 1e-9 <= row["verdict_s"] + 1e-9 <= row["end_s"] + 1e-9
        whole_j = by_grid(samples, zero_s + row["begin_s"], zero_s + row["end_s"])
        if row["power_gap_s"] < 1e-6:
            assert row["energy_j"] == pytest.approx(whole_j, rel=0.02, abs=1e-5)
            assert sum(row[name] for name in PARTS) == pytest.approx(row["energy_j"], rel=0.02, abs=1e-6)
        assert row["throttled"] in ("thermal", None)  # None: no sample yet
    assert any(row["power_gap_s"] < 1e-6 for row in rounds)
    for row in answer["rows"]:
        assert row["throttled_rounds"] > 0
        if row["energy_requests"] == row["requests"]:
            watts = row["energy_j"] / row["latency_s"]
            assert 3.9 <= watts <= 8.1
            assert row["energy_per_token_j"] == pytest.approx(row["energy_j"] / row["tokens"])
    assert 3.9 <= answer["power"]["idle_w"] <= 8.1
    assert not (path / "power.csv").exists()


@pytest.mark.long
def test_the_base_station_counts_its_energy(run: tuple[Path, dict[str, Any], list[dict[str, Any]]]) -> None:
    powers = [line["power"] for line in run[2]]
    last = powers[-1]
    assert (last["source"], last["temp_c"], last["throttled"]) == ("file", 61.5, "thermal")
    assert 3.9 * last["measured_s"] <= last["energy_j"] <= 8.1 * last["measured_s"]
    energies = [power["energy_j"] for power in powers]
    assert energies == sorted(energies) and energies[-1] > energies[0]


@pytest.mark.long
def test_report_and_account_of_the_run(
    run: tuple[Path, dict[str, Any], list[dict[str, Any]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, answer, _ = run
    assert main(["power", "account", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for row, again in zip(answer["rows"], found["rows"], strict=True):
        assert again["energy_j"] == pytest.approx(row["energy_j"], rel=1e-6)
    assert main(["report", str(path), "--out", str(tmp_path / "out")]) == 0
    assert "J/token" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ue", "run", "--power", "solar"], ["unknown power source 'solar'", "jetson"]),
        (["ue", "run", "--power", "pi", "--power-period-s", "0"], ["power-period-s", "[0.002, 60]"]),
        (["bs", "serve", "--engine", "synthetic", "--power", "auto"], ["--metrics FILE"]),
        (["power", "account", "nowhere"], ["not a run directory"]),
        (["power", "read", "--source", "jetson,solar"], ["unknown power source 'solar'"]),
        (["power", "read", "--for", "-1"], ["0.05..3600 s"]),
    ],
)
def test_wrong_options_are_one_line(arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1
    assert all(word in said for word in words)
