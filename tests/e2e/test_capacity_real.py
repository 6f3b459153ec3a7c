"""A BS process under UE processes that replay what the real drafter said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.errors import BadInput
from testbed.experiments.capacity_real import RealConfig, study

CONFIG = RealConfig(
    systems=("wisp", "sled"),
    ues=(3,),
    mix={1.0: 1, 2.0: 1},
    speed_scale=1.0,
    warmup_s=1.0,
    horizon_s=4.0,
    tail_s=0.5,
    prompts=24,
)


def test_a_load_of_processes_is_lossless_and_not_run_twice(tmp_path: Path) -> None:
    out, told = tmp_path / "study", []
    document = study(CONFIG, out, told.append)
    assert [row["system"] for row in document["rows"]] == ["wisp", "sled"]
    for row in document["rows"]:
        assert row["lossless"] and row["judged"] >= 3 and row["goodput_tps"] > 0, row
        assert set(row["violations"]) == {"1", "2"} and 1 <= row["batch_size"] <= 2
    wisp, fixed = document["rows"]
    assert wisp["acceptance"] > fixed["acceptance"], "predicted windows waste less"
    assert json.loads((out / "summary.json").read_text())["rows"] == document["rows"]
    told.clear()
    assert study(CONFIG, out, told.append)["rows"] == document["rows"] and not told
    with pytest.raises(BadInput, match="another configuration"):
        study(RealConfig(ues=(2,)), out, told.append)
