"""Varied fields of a search that leave nobody to judge, lead through a list of numbers, or vary the seed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from testbed.errors import BadInput
from testbed.experiments.cell.config import CellConfig
from testbed.experiments.cell.grid.points import combinations
from testbed.experiments.cell.grid.sustain import SustainConfig, sustain
from testbed.options import load
from tests.support.refusals import refuse

SWEEP = Path(__file__).parents[4] / "sweeps" / "cell" / "classes.yaml"


def small() -> CellConfig:
    """A cell of the bundled file that takes a moment."""
    cell = load(CellConfig, SWEEP)
    groups = tuple(msgspec.structs.replace(group, count=1, response=(2, 4)) for group in cell.ues)
    return msgspec.structs.replace(cell, ues=groups, seconds=3.0, warmup_s=1.0)


def test_a_path_through_numbers_is_refused() -> None:
    with pytest.raises(BadInput):
        combinations(small(), {"ues.*.response.a.b": (1,)})


def test_values_that_leave_no_class_are_refused() -> None:
    with pytest.raises(BadInput):
        sustain(SustainConfig(small(), {"ues.*.class_tps": (None, 4)}, repeats=1), None, 1, lambda done, of: None)


def test_a_varied_seed_is_refused() -> None:
    """Rows with different seeds were those of the cell's own."""
    refuse(lambda: SustainConfig(small(), {"seed": (1, 2)}, ues=(4,), repeats=1), BadInput, "seeds are not varied")
