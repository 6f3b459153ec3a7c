"""`testbed estimator fit` and `eval`: documents, tables, refusals."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from testbed.cli.estimator import app
from testbed.errors import BadInput

TRUTH = {"a": 2e-4, "b_compute": 3e-8, "b_read": 5e-6, "c": 0.02}


def call(line: str) -> Result:
    result = CliRunner().invoke(app, shlex.split(line))
    if result.exit_code and not isinstance(result.exception, BadInput):
        raise AssertionError(f"{line}: {result.output}") from result.exception
    return result


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: str, batches: int, noise: float, seed: int, read_s: float = TRUTH["b_read"]) -> None:
    rng, lines = np.random.default_rng(seed), ["batch,new_tokens,cached_tokens,latency_s"]
    for batch in range(batches):
        size = int(rng.integers(1, 6))
        new, cached = rng.integers(1, 800, size), rng.integers(0, 2000, size) * (rng.random(size) < 0.6)
        took_s = TRUTH["a"] * new.sum() + TRUTH["b_compute"] * (new * (new + cached)).sum() + read_s * cached.sum()
        took_s = (took_s + TRUTH["c"]) * np.exp(noise * rng.standard_normal())
        lines += [
            f"{batch},{n},{k},{took_s!r}".replace("np.float64(", "").replace(")", "")
            for n, k in zip(new, cached, strict=True)
        ]
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.parametrize("name", ["residuals.xyz", "nowhere/residuals.png"])
def test_a_plot_that_cannot_be_written(here: Path, name: str) -> None:
    write("passes.csv", 20, 0.0, 1)
    (here / "c.json").write_text(json.dumps(TRUTH))
    with pytest.raises(BadInput, match="cannot write"):
        CliRunner().invoke(
            app, f"eval --csv passes.csv --coefficients c.json --plot {name}".split(), catch_exceptions=False
        )


def test_fit_writes_one_document_that_eval_reads(here: Path) -> None:
    write("passes.csv", 150, 0.02, 1)
    write("unseen.csv", 50, 0.02, 2)
    result = call("fit --csv passes.csv --json")
    found = json.loads(result.stdout)
    assert result.stderr == "" and len(result.stdout.splitlines()) == 1
    for name, value in TRUTH.items():
        low, high = found["intervals"][name]
        assert low <= found[name] <= high
        assert found[name] == pytest.approx(value, rel=0.15)
    assert found["r2"] > 0.99 and found["mape"] < 0.05 and found["cv_r2"] > 0.98
    assert found["batches"] == 150 and found["clamped"] == [] and found["resamples"] == 1000
    (here / "c.json").write_text(result.stdout)
    held = json.loads(call("eval --csv unseen.csv --coefficients c.json --plot residuals.png --json").stdout)
    assert (here / "residuals.png").stat().st_size > 20_000
    assert held["r2"] > 0.99 and held["mape"] == pytest.approx(0.016, abs=0.006)  # 0.8 of the noise
    assert set(held["regimes"]) <= {"compute", "memory", "mixed"}
    assert sum(kind["batches"] for kind in held["regimes"].values()) == held["batches"] == 50


def test_the_same_seed_gives_the_same_document() -> None:
    write("passes.csv", 40, 0.1, 3)
    first = call("fit --csv passes.csv --json --seed 4 --resamples 100").stdout
    assert call("fit --csv passes.csv --json --seed 4 --resamples 100").stdout == first
    assert call("fit --csv passes.csv --json --seed 5 --resamples 100").stdout != first


def test_people_get_tables(here: Path) -> None:
    write("passes.csv", 60, 0.02, 5)
    text = call("fit --csv passes.csv --resamples 50").stdout
    assert all(word in text for word in ("b_compute", "95 % interval", "s/cached token", "5-fold", "R²", "MAPE"))
    (here / "c.json").write_text(json.dumps(TRUTH))
    table = call("eval --csv passes.csv --coefficients c.json").stdout
    assert "compute-bound" in table and "mixed" in table and "all" in table
    assert "compute-bound, mean share of each term (passes of which it is the largest): a " in table


def test_a_coefficient_that_is_held_at_0_is_said_on_stderr() -> None:
    write("passes.csv", 80, 0.01, 6, read_s=-4e-6)
    result = call("fit --csv passes.csv --json --resamples 50")
    assert result.stderr.startswith("least squares alone gives b_read -") and result.stderr.endswith("b_read is 0\n")
    assert json.loads(result.stdout)["clamped"] == ["b_read"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("fit --csv none.csv", "cannot read none.csv"),
        ("fit --csv bad.csv", "bad.csv, line 2: new_tokens must be a number, not 'x'"),
        ("fit --csv few.csv", "too few"),
        ("fit --csv good.csv --resamples 0", "1 resample or more"),
        ("eval --csv good.csv --coefficients none.json", "cannot read none.json"),
        ("eval --csv good.csv --coefficients bad.csv", "no JSON"),
        ("eval --csv good.csv --coefficients list.json", "no JSON object"),
        ("eval --csv good.csv --coefficients half.json", "half.json has no b_compute, b_read, c"),
    ],
)
def test_bad_input_is_refused_in_one_line(line: str, said: str, here: Path) -> None:
    write("good.csv", 20, 0.1, 7)
    write("few.csv", 3, 0.1, 7)
    (here / "bad.csv").write_text("batch,new_tokens,cached_tokens,latency_s\n1,x,2,3\n")
    (here / "list.json").write_text("[1]")
    (here / "half.json").write_text('{"a": 1}')
    result = call(line)
    assert isinstance(result.exception, BadInput) and result.stdout == ""
    assert said in str(result.exception) and "\n" not in str(result.exception)


@pytest.mark.parametrize("command", ["fit", "eval"])
def test_help_shows_examples(command: str) -> None:
    assert f"testbed estimator {command} --csv" in call(f"{command} --help").stdout


def test_profile_measures_an_engine_and_writes_what_fit_reads(here: Path) -> None:
    line = "profile --engine synthetic --largest 100 --thin 4 --repeats 1 --warmups 0 --out p.csv"
    text = call(line).stdout
    assert "unseen" in text and "with a term for requests" in text
    head, *rows = (here / "p.csv").read_text().splitlines()
    assert head.startswith("batch,new_tokens,cached_tokens,latency_s,") and len(rows) > 60
    assert json.loads(call("fit --csv p.csv --json --resamples 20").stdout)["batches"] > 30


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--engine synthetic --out none/p.csv", "none is no directory"),
        ("--engine synthetic --out p.csv --largest 10", "100 tokens or more"),
        ("--engine synthetic --out p.csv --largest 9000 --thin 9", "give --largest"),
        ("--engine warp --out p.csv", "unknown engine 'warp'"),
        ("--engine synthetic --out p.csv --repeats 0", "repeats must be at least 1"),
    ],
)
def test_profile_refuses_before_it_measures(line: str, said: str, here: Path) -> None:
    result = call(f"profile {line}")
    assert isinstance(result.exception, BadInput) and said in str(result.exception)
    assert not (here / "p.csv").exists()
