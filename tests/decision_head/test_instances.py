"""Files of training instances."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from testbed.decision_head.instances import Instances, base_instances, load_instances, origin, save_instances
from testbed.decision_head.relabel import relabel
from testbed.decision_head.settings import Relabelling
from testbed.errors import BadInput
from tests.support.mismatches import some_meta, some_mismatches


def test_round_trip(tmp_path: Path) -> None:
    found, critical, _ = some_mismatches(20, 0)
    made, name = relabel(found, critical, Relabelling()), origin(some_meta(), found)
    save_instances(made, tmp_path / "a", name)
    again = load_instances(tmp_path / "a", name, len(found))
    for field in fields(Instances):
        one, other = getattr(made, field.name), getattr(again, field.name)
        assert one.dtype == other.dtype and (one == other).all()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_other_episodes_are_refused(tmp_path: Path) -> None:
    found, critical, _ = some_mismatches(20, 0)
    more, *_ = some_mismatches(21, 0)
    save_instances(base_instances(critical), tmp_path / "a", origin(some_meta(), found))
    for name in (origin(some_meta(seed=1), found), origin(some_meta(), more)):
        with pytest.raises(BadInput, match="other episodes"):
            load_instances(tmp_path / "a", name, len(found))


def test_files_without_instances_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="head relabel"):
        load_instances(tmp_path / "none", "", 1)
    (tmp_path / "text").write_text("hello")
    with pytest.raises(BadInput, match="head relabel"):
        load_instances(tmp_path / "text", "", 1)
    save_file({"x": np.zeros(1)}, tmp_path / "other")
    with pytest.raises(BadInput, match="holds no relabelled instances"):
        load_instances(tmp_path / "other", "", 1)
    with pytest.raises(BadInput, match="cannot write"):
        save_instances(base_instances(np.ones(2, np.bool_)), tmp_path / "no" / "file", "")


@pytest.mark.parametrize(
    "change",
    [
        {"row": np.full(98, 98, np.int32)},
        {"row": np.full(98, -1, np.int32)},
        {"row": np.zeros(98, np.float32)},
        {"row": np.zeros((98, 1), np.int32)},
        {"features": np.zeros((98, 3), np.float32)},
        {"features": np.full((98, 5), np.nan, np.float32)},
        {"quality": np.full(98, 1.5, np.float32)},
        {"p_repair": np.array(0.5, np.float32)},
        {"action": np.full(98, 7, np.uint8)},
    ],
)
def test_instances_that_cannot_be_are_refused_in_one_line(change: dict[str, Any], tmp_path: Path) -> None:
    """They were unexpected errors amid the training, or other mismatches than those that they named."""
    found, critical, _ = some_mismatches(20, 0)
    made = base_instances(critical)
    arrays = {field.name: getattr(made, field.name) for field in fields(Instances)} | {
        "action": critical.astype(np.uint8)
    }
    save_file(arrays, tmp_path / "whole", {"origin": "a"})
    assert len(load_instances(tmp_path / "whole", "a", len(found))) == len(found) == 98
    save_file(arrays | change, tmp_path / "changed", {"origin": "a"})
    with pytest.raises(BadInput, match="holds no relabelled instances"):
        load_instances(tmp_path / "changed", "a", len(found))


def test_without_a_channel_every_mismatch_counts_once() -> None:
    critical = np.array([True, False, True])
    made = base_instances(critical)
    assert made.row.tolist() == [0, 1, 2] and made.action.tolist() == critical.tolist()
    assert not made.features.any() and made.take(critical).row.tolist() == [0, 2]
