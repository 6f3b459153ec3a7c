"""Channels of a cell with processes are those of virtual time, from the start of the run on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from testbed.channel.radio.config import RadioConfig
from testbed.channel.radio.files import FileSource
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.real.run import run_cell_really
from testbed.experiments.cell.rows import document
from testbed.experiments.cell.run import run_cell


def test_a_run_with_processes_begins_where_its_channels_do(tmp_path: Path) -> None:
    """Its slots began seconds before the run, and so did its channels: a UE that is received in the first 3 s only sent
    nothing.
    """
    sinr_db = np.full((1, 300), -30.0)
    sinr_db[:, :30] = 20.0
    file = tmp_path / "early.npz"
    np.savez(file, uplink_db=sinr_db, downlink_db=sinr_db, step_s=0.1, about="early")
    cell = CellConfig(
        seconds=2.5, warmup_s=0.5, radio=RadioConfig(source=FileSource(file=str(file))),
        ues=(UeGroup(name="bytes", traffic="bytes", message_bytes=2000, every_s=0.05),),
    )  # fmt: skip
    virtual, real = (document(cell, run(cell))["rows"][0]["uplink_bytes"] for run in (run_cell, run_cell_really))
    assert real == pytest.approx(virtual, rel=0.1)
