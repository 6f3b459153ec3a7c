"""`testbed predictor train` and `eval`: documents, tables, figures, and the bundled predictors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed.assets.fingerprints import model_fingerprint
from testbed.cli.predictor import app
from testbed.errors import BadInput
from testbed.experiments.predictor.traces import TraceMeta, TraceStore
from testbed.experiments.predictor.train import load_families
from testbed.models.bundle import bundled
from testbed.ue.windows.predictor import load_predictor
from tests.support.predictors import made_traces

META = TraceMeta(
    dataset="made", first=0, prompts=24, window=6, max_tokens=64, engine="none", dtype="float32", drafter="d",
    drafter_fingerprint="synthetic", target="t", target_fingerprint="synthetic",
)  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    store = TraceStore(tmp_path / "data")
    store.create(META)
    store.write(0, made_traces())
    return store.directory


def test_training_and_evaluation_answer_documents(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    line = ["train", "--data", str(data), "--out", str(out), "--trials", "1", "--models", "lightgbm,forest"]
    done = CliRunner().invoke(app, line, catch_exceptions=False)
    assert done.exit_code == 0
    best = load_predictor(out).info.model
    assert f"{out}: {best}, threshold" in done.stdout
    figures = tmp_path / "figures"
    line = ["eval", "--predictor", str(out), "--data", str(data), "--out", str(figures), "--json"]
    document = json.loads(CliRunner().invoke(app, line, catch_exceptions=False).stdout.splitlines()[-1])
    assert [row["model"] for row in document["rows"]] == ["lightgbm", "forest"]
    for row in document["rows"]:
        assert row["specificity"] == pytest.approx(1 - row["fpr"])
        assert {"accuracy", "auc", "rec1", "balanced_accuracy", "latency_us_p50", "latency_us_p99"} <= set(row)
    assert document["theorem1"]["pairs"] > 0
    drawn = [f"fig{number}.{kind}" for number in (1, 2, 3) for kind in ("csv", "png")]
    assert {path.name for path in figures.iterdir()} == {*drawn, "correlations.csv"}
    shown = CliRunner().invoke(app, line[:5], catch_exceptions=False).stdout
    assert "BalAcc" in shown
    assert "Theorem 1: of" in shown


def test_traces_of_another_pair_are_refused(data: Path) -> None:
    done = CliRunner().invoke(app, ["eval", "--data", str(data)])
    assert isinstance(done.exception, BadInput)
    assert "the predictor was trained for drafter" in str(done.exception)


def test_the_bundled_predictors_are_for_the_bundled_pair() -> None:
    bundle = bundled()
    drafter, target = (model_fingerprint(bundle.require(part)) for part in ("drafter", "target"))
    found = load_families(bundle.require("predictor"))
    assert list(found) == ["mlp", "lightgbm", "xgboost", "forest"]
    for predictor in [*found.values(), load_predictor(bundle.require("predictor"))]:
        predictor.check_drafter(drafter)
        assert predictor.info.target_fingerprint == target
        assert predictor.info.metrics["rec1"] >= predictor.info.recall
        assert predictor.info.trained["dataset"] == "bundled:calibration"
