"""A BS process under UE processes that replay what the real drafter said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed.errors import BadInput
from testbed.experiments.capacity.real import study
from testbed.experiments.capacity.real_config import RealConfig
from testbed.options import replaced

CONFIG = RealConfig(
    systems=("wisp",),
    ues=(3,),
    mix={1.0: 1, 2.0: 1},
    speed_scale=1.0,
    warmup_s=1.0,
    horizon_s=4.0,
    tail_s=0.5,
    prompts=24,
)


def loaded(config: RealConfig, out: Path) -> list[dict[str, Any]]:
    """Rows of a study, each of which served everybody the target's own output."""
    rows: list[dict[str, Any]] = study(config, out, lambda _: None)["rows"]
    assert [row["system"] for row in rows] == list(config.systems)
    for row in rows:
        assert row["lossless"] and row["judged"] >= 3 and row["goodput_tps"] > 0, row
        assert set(row["violations"]) == {"1", "2"} and 1 <= row["batch_size"] <= 2
    return rows


def test_a_load_of_processes_is_lossless_and_not_run_twice(tmp_path: Path) -> None:
    out, told = tmp_path / "study", list[str]()
    rows = loaded(CONFIG, out)
    assert json.loads((out / "summary.json").read_text())["rows"] == rows
    assert study(CONFIG, out, told.append)["rows"] == rows and not told
    with pytest.raises(BadInput, match="holds another study"):
        study(RealConfig(ues=(2,)), out, told.append)


@pytest.mark.long
def test_each_ue_has_its_own_share_of_the_uplink(tmp_path: Path) -> None:
    """The first UE, of 5 %, takes several times as long; over equal links both would be equally fast."""
    shares = tmp_path / "shares.json"
    shares.write_text(json.dumps({"bandwidth": [0.05, 0.95]}))
    values = {"systems": ("fcfs-cache",), "ues": (2,), "prompts": 8, "horizon_s": 6.0}
    config = replaced(CONFIG, {**values, "channel": f"kind=proxy,uplink_mbps=0.1,shares={shares}"})
    (row,) = study(config, tmp_path / "study", lambda _: None)["rows"]
    assert row["lossless"]
    assert row["speeds_tps"]["2"] > 2 * row["speeds_tps"]["1"], row


@pytest.mark.long
def test_predicted_windows_waste_less_than_fixed_ones(tmp_path: Path) -> None:
    wisp, fixed = loaded(replaced(CONFIG, {"systems": ("wisp", "sled")}), tmp_path / "study")
    assert wisp["acceptance"] > fixed["acceptance"]
