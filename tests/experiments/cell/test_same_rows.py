"""One cell gives the rows that it gave before there were several: same seeds, same random numbers in the same order."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.experiments.cell.config import CellConfig
from testbed.experiments.cell.rows import document
from testbed.experiments.cell.run import run_cell
from testbed.options import load, replaced

SWEEPS = Path(__file__).parents[3] / "sweeps" / "cell"


@pytest.mark.parametrize(
    ("name", "rows", "passes"),
    [
        ("umi", [(4640003, 426, 147, 0), (5043, 537, 190, 1)], 208),
        ("fh", [(6275600, 585, 202, 0), (3220000, 0, 160, None)], 151),
    ],
)
def test_rows_of_one_cell_stay_as_they_were(name: str, rows: list[tuple[int, ...]], passes: int) -> None:
    """Numbers of the version before several cells; channels from positions, TDD, proportional fair, and weights."""
    config = replaced(load(CellConfig, SWEEPS / f"{name}.yaml"), {"seconds": 6.0})
    found = document(config, run_cell(config))
    kept = ("uplink_bytes", "downlink_bytes", "messages", "responses")
    assert [tuple(row[field] for field in kept) for row in found["rows"]] == rows
    assert found["cell"]["passes"] == passes
    assert "cells" not in found
