"""Configurations that a demo derives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from testbed.config import BFLOAT16_TIE, QUANTISED_TIE, DemoConfig, RunConfig
from testbed.errors import BadInput
from testbed.experiments.runs.demo import run_config, run_demo
from testbed.models.export import export_gguf
from tests.support.refusals import refuse


def test_ties_are_counted_unless_the_target_computes_in_float32(
    random_models: dict[str, Path], random_ggufs: dict[str, Path], tmp_path: Path
) -> None:
    quantised, half = tmp_path / "q8.gguf", tmp_path / "f16.gguf"
    export_gguf(random_models["llama"], quantised, "q8_0")
    export_gguf(random_models["llama"], half, "f16")
    llama = DemoConfig(engine="llama", model=str(random_ggufs["llama"]))
    assert run_config(llama).tie_tolerance == 0
    rounded = msgspec.structs.replace(llama, model=str(quantised))
    assert run_config(rounded).tie_tolerance == QUANTISED_TIE
    assert run_config(msgspec.structs.replace(llama, model=str(half))).tie_tolerance == BFLOAT16_TIE
    assert run_config(msgspec.structs.replace(rounded, tie_tolerance=0.0)).tie_tolerance == 0
    vllm = DemoConfig(model=str(random_models["llama"]))
    assert (
        run_config(vllm).tie_tolerance == 0 < run_config(msgspec.structs.replace(vllm, dtype="bfloat16")).tie_tolerance
    )


def test_each_setting_of_a_demo_that_its_ue_has_too_is_read() -> None:
    """The memory of the drafter was not: figures were those without. The channel state comes with the link."""
    asked = set[str]()

    class Spy:
        def __getattr__(self, name: str) -> Any:
            asked.add(name)
            return getattr(DemoConfig(), name)

    run_config(Spy())  # type: ignore[arg-type]
    assert set(RunConfig.__struct_fields__) & set(DemoConfig.__struct_fields__) - {"csi"} <= asked


def test_a_demo_begins_among_no_other_files(tmp_path: Path) -> None:
    """The very `config.yaml` that configured it was replaced."""
    (tmp_path / "config.yaml").write_text("prompts: 1  # three weeks of notes")
    (tmp_path / "rounds.parquet").write_text("mine")
    config = DemoConfig(engine="llama", channel="kind=virtual,profile=wisv", prompts=1, methods=("greedy",))
    refuse(lambda: run_demo(config, tmp_path, print), BadInput, "is not empty; choose another --out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "rounds.parquet"]
    assert (tmp_path / "config.yaml").read_text().endswith("notes")


def test_the_bundled_drafter_is_refused_for_another_tokenizer_before_anything_starts(
    random_models: dict[str, Path], tmp_path: Path
) -> None:
    started: list[str] = []
    with pytest.raises(BadInput, match="another tokenizer"):
        run_demo(DemoConfig(model=str(random_models["llama"])), tmp_path / "out", started.append)
    assert not started and not (tmp_path / "out").exists()
