"""Measuring steps of real engines on tiny models, and the files of `testbed optim fit`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from typer.testing import CliRunner

from testbed.bs.engines.base import VerifyRequest, VerifyResult
from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.cli.optim.group import app
from testbed.errors import BadInput, ModelError
from testbed.experiments.edge.config import FitConfig
from testbed.experiments.edge.dimensions import of_directory, of_gguf
from testbed.experiments.edge.fit import _VerifyBench, measure, read_cost, read_steps, report, write_steps
from testbed.experiments.inputs.pair import pair_paths
from testbed.models.bundle import bundled
from testbed.optim.cost_fit import MeasuredStep
from testbed.optim.inference_cost import Cost, Model
from tests.support.refusals import refuse


@pytest.fixture(scope="module")
def config(random_models: dict[str, Path], random_ggufs: dict[str, Path]) -> FitConfig:
    return FitConfig(
        engine="transformers", model=str(random_models["llama"]), drafter=str(random_ggufs["llama"]),
        batches=(1, 3), prefixes=(16, 48), windows=(2, 5), repeats=2, warmups=1, clock="cpu",
    )  # fmt: skip


@pytest.fixture(scope="module")
def measured(config: FitConfig) -> list[MeasuredStep]:
    told: list[tuple[int, int]] = []
    steps = measure(config, lambda done, total, _: told.append((done, total)))
    assert told[0] == (0, 12) and told[-1] == (12, 12)
    return steps


def test_every_combination_is_measured_once(measured: list[MeasuredStep]) -> None:
    seen = {(s.node, s.phase, s.batch, s.window, 16 if s.prefix < 40 else 48) for s in measured}
    assert len(seen) == len(measured) == 2 * (8 + 4)
    for step in measured:
        assert step.seconds > 0 and step.variation >= 0
        assert step.passes == (step.window if step.node == "draft" else 1)
        if step.phase == "prompt":
            assert step.prefix in (16, 48)
    drafting = [s for s in measured if s.node == "draft" and s.phase == "decode"]
    # after one warm-up, two steps that each begin a window later than the one before
    assert {s.prefix - 1.5 * s.window for s in drafting} == {16, 48}
    assert {s.prefix for s in measured if s.node == "verify" and s.phase == "decode"} == {17, 49}


@pytest.mark.parametrize("batch", [1, 4])
def test_decoding_steps_of_the_target_end_anywhere_in_a_block(batch: int) -> None:
    """Evenly, over the tasks of a step and its repeats; prompts are as long as asked for."""

    class Blocks(SyntheticEngine):
        seen: ClassVar[list[int]] = []

        def compute(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
            self.seen.extend(len(request.prefix) for request in batch if len(request.draft) == 3)
            return super().compute(batch)

    engine = Blocks()
    engine.block_size = 32
    bench = _VerifyBench(engine, FitConfig())
    times, prefixes = bench.times("decode", batch, 64, 3, 8)
    assert len(times) == len(prefixes) == 8 and len(engine.seen) == 8 * batch
    assert sorted(engine.seen) == [65 + 32 * i // (8 * batch) for i in range(8 * batch)]
    assert np.mean(prefixes) == pytest.approx(np.mean(engine.seen))
    assert bench.times("prompt", batch, 64, 3, 2)[1] == [64, 64]


def test_steps_and_fits_are_files_that_other_commands_read(
    measured: list[MeasuredStep], config: FitConfig, tmp_path: Path
) -> None:
    write_steps(tmp_path / "steps.csv", measured)
    assert read_steps(tmp_path / "steps.csv") == measured
    arguments = ["--csv", str(tmp_path / "steps.csv"), "--out", str(tmp_path / "fit"), "--json"]
    pair = ["--drafter", config.drafter or "", "--model", config.model or ""]
    done = CliRunner().invoke(app, ["fit", *arguments, *pair])
    assert done.exit_code == 0, done.output
    assert {path.name for path in (tmp_path / "fit").glob("[!.]*")} == {"steps.csv", "fit.json", "fit.png", "fit.svg"}
    document = json.loads((tmp_path / "fit" / "fit.json").read_text())
    models = {"draft": Model(layers=2, hidden=128, ffn=192), "verify": Model(layers=2, hidden=128, ffn=192)}
    assert json.loads(json.dumps(report(measured, models))) == document
    assert read_cost(tmp_path / "fit" / "fit.json") == Cost(**document["cost"])
    again = CliRunner().invoke(app, ["fit", *arguments])
    assert isinstance(again.exception, BadInput) and "holds a fit already" in str(again.exception)


def test_dimensions_of_the_bundled_pair() -> None:
    _, drafter = pair_paths(None, None)
    assert of_gguf(drafter) == of_directory(bundled().require("drafter_hf")) == Model(layers=3, hidden=96, ffn=256)
    assert of_directory(bundled().require("target")) == Model(layers=6, hidden=192, ffn=512)


def test_what_cannot_be_measured_or_read(config: FitConfig, tmp_path: Path) -> None:
    refuse(lambda: FitConfig(batches=()), BadInput, "batches must be one or more numbers")
    refuse(lambda: FitConfig(windows=(0,)), BadInput, "1..64")
    refuse(lambda: FitConfig(repeats=0), BadInput, "repeats")
    refuse(lambda: FitConfig(clock="cpu", threads=2), BadInput, "give threads 1")
    refuse(lambda: measure(FitConfig(drafter="no.gguf"), lambda *_: None), ModelError, "no.gguf: no such file")
    refuse(lambda: measure(FitConfig(prefixes=(5000,)), lambda *_: None), ModelError, "context is 4096 tokens")
    path = tmp_path / "steps.csv"
    refuse(lambda: read_steps(path), BadInput, "cannot read")
    path.write_text("node,phase,batch,prefix,window,passes,seconds,seconds\ndraft,decode,1,2,3,4,1,10\n")
    refuse(lambda: read_steps(path), BadInput, "has the column seconds more than once")
    path.write_text("node,phase\ndraft,decode\n")
    refuse(lambda: read_steps(path), BadInput, "line 2", "columns: node,phase,batch")
    path.write_text("node,phase,batch,prefix,window,passes,seconds\ndraft,decode,1,2,3,4,-1\n")
    refuse(lambda: read_steps(path), BadInput, "must be positive")
    path.write_text("node,phase,batch,prefix,window,passes,seconds\ndraft,decode,1,2,3,2147483648,1\n")
    refuse(lambda: read_steps(path), BadInput, "lie in 1..1048576")
    path.write_text("{}")
    refuse(lambda: read_cost(path), BadInput, "has no `cost`")
    refuse(lambda: of_directory(tmp_path), ModelError, "config.json cannot be read")
    refuse(lambda: of_gguf(path), ModelError, "does not give layers")
    done = CliRunner().invoke(app, ["fit", "--batches", "1,x"])
    assert isinstance(done.exception, BadInput) and "--batches takes whole numbers" in str(done.exception)
