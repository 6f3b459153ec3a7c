"""What the processes of UEs would refuse is refused before they start."""

from __future__ import annotations

import pytest

from testbed.errors import BadInput
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.real.run import run_cell_really
from testbed.experiments.cell.sections import CellModels


def test_a_predictor_of_another_drafter_is_refused_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    """Each UE's process printed a traceback, and the run's error named its exit code alone."""
    cell = CellConfig(
        seconds=2.0, warmup_s=0.5, models=CellModels(drafter="ngram", prompts=1, max_tokens=4),
        ues=(UeGroup(name="a", window_rule="predicted"),),
    )  # fmt: skip
    with pytest.raises(BadInput, match="group a: the bundled predictor is not of the drafter"):
        run_cell_really(cell)
    assert "Traceback" not in capfd.readouterr().err
