"""`testbed latency ramp`, `limits`, `sizes`, and loads at one length after the other, on tiny inputs."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from testbed.cli.main import main
from testbed.experiments.latency import load_lengths
from testbed.experiments.latency.load import COLUMNS, Series
from testbed.experiments.latency.load_config import LoadConfig
from testbed.experiments.latency.openloop import LoadPoint

# where so few tokens are asked for, the few rounds in which the controller tries a window cost more than 2 %
RAMP = "{windows: [0, 4], loads: [3.0, 20.0], requests: 40, step_s: 0.0, seeds: [0], response: [16, 24]}"


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """The one document on stdout."""
    assert main([*arguments, "--json"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("\n") == 1
    return json.loads(shown)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# ---------------------------------------------------------------- ramp


def test_a_ramp_answers_writes_goes_on_and_fails_where_it_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ramp.yaml").write_text(RAMP)
    out = tmp_path / "ramp"
    command = ["latency", "ramp", "--config", str(tmp_path / "ramp.yaml"), "--out", str(out)]
    document = answer(capsys, *command)
    assert {path.name for path in out.iterdir()} >= {"config.yaml", "points.csv", "loads.csv", "ramp.csv", "ramp.png"}
    assert {row["policy"] for row in document["points"]} == {"0", "4", "hinted"}
    assert [row["rps"] for row in document["loads"]] == [3.0, 20.0]
    assert [row["window"] for row in document["ramp"]] == [0, 4]
    assert document["config"]["requests"] == 40
    assert len(rows_of(out / "points.csv")) == len(document["points"]) == 6
    made = {path: path.stat().st_mtime_ns for path in out.glob("run-*.json")}
    assert len(made) == 3 and answer(capsys, *command) == document
    assert {path: path.stat().st_mtime_ns for path in out.glob("run-*.json")} == made
    assert main([*command, "--requests", "41"]) == 2
    assert "holds another ramp" in capsys.readouterr().err
    assert document["holds"] is False and main([*command, "--check"]) == 1
    assert "fall short" in capsys.readouterr().err


# ---------------------------------------------------------------- limits and sizes


def write_loads(path: Path, c1: float, c2: float) -> Path:
    """Means by c1 / (1 − rps·c2), tails thrice and five times as long, the last two loads piling up."""
    lines = ["rps,latency_s,latency_p95_s,latency_p99_s,saturated"]
    for x in np.linspace(0.05, 0.95, 24):
        mean = c1 / (1 - x)
        lines.append(f"{x / c2},{mean},{3 * mean},{5 * mean},{int(x > 0.9)}")
    path.write_text("\n".join(lines))
    return path


def test_limits_by_statistic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_loads(tmp_path / "all.csv", 1.2, 0.07)
    document = answer(capsys, "latency", "limits", "--csv", str(path))
    assert {name: fit["c1"] for name, fit in document["fits"].items()} == pytest.approx(
        {"latency_s": 1.2, "latency_p95_s": 3.6, "latency_p99_s": 6.0}, rel=1e-3
    )
    assert all(fit["c2"] == pytest.approx(0.07, rel=1e-3) and fit["r2"] > 0.999 for fit in document["fits"].values())
    assert set(document["holds_to"].values()) == {1.0}
    assert sum(row["loads"] for row in document["errors"]) == 24
    assert main(["latency", "limits", "--csv", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "holds up to x" in shown and "latency_p99_s" in shown
    assert main(["latency", "limits", "--csv", str(tmp_path / "none.csv")]) == 2


def test_limits_of_one_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two servers in one file, each with limits of its own."""
    path, lines = tmp_path / "both.csv", ["rps,latency_s,latency_p95_s,latency_p99_s,saturated,k,alpha,decode"]
    for k, c1, c2 in ((0, 1.2, 0.07), (4, 0.5, 0.02)):
        rows = write_loads(tmp_path / "one.csv", c1, c2).read_text().splitlines()[1:]
        lines += [f"{row},{k},0,64" for row in rows]
    path.write_text("\n".join(lines))
    document = answer(capsys, "latency", "limits", "--csv", str(path), "--windows", "0")
    assert document["fits"]["latency_s"]["c1"] == pytest.approx(1.2, rel=1e-3)
    assert sum(row["loads"] for row in document["errors"]) == 24
    assert sum(row["piled_up"] for row in document["errors"]) == 2


def test_coefficients_over_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [f"{size}={write_loads(tmp_path / f'{size}.csv', 0.1 * size, 0.002 * size)}" for size in (3, 12, 40)]
    options = [part for file in files for part in ("--csv", file)]
    document = answer(capsys, "latency", "sizes", *options, "--plot", str(tmp_path / "sizes.png"))
    assert [row["millions"] for row in document["sizes"]] == [3.0, 12.0, 40.0]
    assert document["lines"]["c1"]["slope"] == pytest.approx(0.1, rel=1e-2)
    assert document["lines"]["c2"]["slope"] == pytest.approx(0.002, rel=1e-2)
    assert (tmp_path / "sizes.png").read_bytes().startswith(b"\x89PNG")
    assert main(["latency", "sizes", *options]) == 0
    assert "Lines over size" in capsys.readouterr().out


@pytest.mark.parametrize("given", ["points.csv", "x=points.csv", "0=points.csv", "3=", "-2=points.csv"])
def test_sizes_that_are_none(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["latency", "sizes", "--csv", given]) == 2
    assert "MILLIONS=FILE" in capsys.readouterr().err


# ---------------------------------------------------------------- lengths


def test_lengths_are_measured_one_after_the_other_and_put_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a measurement of its own, with its prompts and outputs; loads that pile up are in all.csv alone."""
    asked: list[tuple[LoadConfig, str]] = []

    def measured(config: LoadConfig, out: Path, told: Any) -> list[Series]:
        asked.append((config, out.name))
        assert config.prefill is not None
        points = [
            LoadPoint(rps=rps, k=4, alpha=0.8, prefill=config.prefill, decode=config.max_tokens, requests=9,
                      latency_s=1.0, latency_p95_s=2.0, latency_p99_s=3.0, batch_size=1.5, saturated=rps > 5)
            for rps in (1.0, 9.0)
        ]  # fmt: skip
        return [Series(4, 0.8, 0.5, 10.0, points, points)]

    monkeypatch.setattr(load_lengths, "measure", measured)
    base, told = LoadConfig(windows=(4,), seed=3), list[str]()
    found = load_lengths.measure_lengths(base, (64, 128), (16, 32), tmp_path, told.append)
    wanted = [(prefill, decode) for prefill in (64, 128) for decode in (16, 32)]
    assert [(one.prefill, one.max_tokens) for one, _ in asked] == wanted and len(found) == len(told) == 4
    assert [name for _, name in asked] == [f"prefill{prefill}-decode{decode}" for prefill, decode in wanted]
    assert all(msgspec.structs.replace(one, prefill=None, max_tokens=256) == base for one, _ in asked)
    every, kept = rows_of(tmp_path / "all.csv"), rows_of(tmp_path / "points.csv")
    assert tuple(every[0]) == COLUMNS and len(every) == 8
    assert [(float(row["prefill"]), float(row["decode"]), row["rps"]) for row in kept] == [
        (prefill, decode, "1.0") for prefill, decode in wanted
    ]


@pytest.mark.parametrize("given", [["--prefills", "64"], ["--decodes", "16"]])
def test_half_of_the_lengths_is_refused(given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["latency", "measure", "--out", str(tmp_path / "x"), *given]) == 2
    assert "--prefills and --decodes" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
