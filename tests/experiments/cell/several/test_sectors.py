"""Base stations with sectors: cells of one engine."""

from __future__ import annotations

import math

import numpy as np
import pytest

from testbed.channel.radio.config import RadioConfig
from testbed.channel.radio.model import ModelSource
from testbed.channel.radio.network import NetworkUe, places
from testbed.errors import BadInput
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.rows import document
from testbed.experiments.cell.run import run_cell
from testbed.experiments.cell.stations import CellsConfig, Station

RADIO = RadioConfig(source=ModelSource(shadowing_db=0.0, fading="none"))
THREE = (30.0, 150.0, 270.0)


def test_a_ue_around_a_base_station_changes_sectors_without_computing_anything_again() -> None:
    """It crosses the borders between sectors at 90° and 210°, and both again on its way back."""
    circle = tuple((60 * math.cos(math.radians(a)), 60 * math.sin(math.radians(a))) for a in range(30, 271, 10))
    ue = UeGroup(name="around", path_m=circle, speed_mps=25.0, response=(300, 300))
    stations = (Station("site", (0.0, 0.0), THREE), Station("far", (2000.0, 0.0)))
    config = CellConfig(seconds=20.0, warmup_s=0.0, radio=RADIO, ues=(ue,), cells=CellsConfig(stations))
    found = document(config, run_cell(config))
    row = found["rows"][0]
    assert row["handovers_per_ue"] == 4
    assert row["prefilled_again"] == row["moved_bytes"] == 0
    assert [cell["cell"] for cell in found["cells"]] == ["site/1", "site/2", "site/3", "far"]
    assert [cell["handovers"] for cell in found["cells"]] == [1, 2, 1, 0]
    passes = [cell["passes"] for cell in found["cells"]]
    assert passes == [found["cell"]["passes"]] * 3 + [0]
    assert sum(cell["goodput_tps"] for cell in found["cells"]) == pytest.approx(row["goodput_tps"])


def test_all_sectors_of_a_base_station_fail_together() -> None:
    ue = UeGroup(name="still", path_m=((50.0, 30.0), (50.0, 31.0)))
    stations = (Station("site", (0.0, 0.0), THREE, down_s=(3.0, 30.0)), Station("far", (200.0, 0.0)))
    config = CellConfig(seconds=8.0, warmup_s=0.0, radio=RADIO, ues=(ue,), cells=CellsConfig(stations))
    found = document(config, run_cell(config))
    assert found["rows"][0]["failures_per_ue"] == 1
    assert found["cells"][0]["goodput_tps"] > 0 < found["cells"][3]["goodput_tps"]
    assert found["cells"][1]["goodput_tps"] == found["cells"][2]["goodput_tps"] == 0


@pytest.mark.parametrize("azimuths_deg", [(30.0, 390.0), (30.0, math.nan), (math.inf,)])
def test_sectors_need_different_azimuths(azimuths_deg: tuple[float, ...]) -> None:
    with pytest.raises(BadInput, match="azimuths"):
        Station("site", (0.0, 0.0), azimuths_deg)


def test_sectors_and_places_are_bounded() -> None:
    with pytest.raises(BadInput, match="at most 12"):
        Station("site", (0.0, 0.0), tuple(float(degrees) for degrees in range(13)))
    with pytest.raises(BadInput, match="within 1e"):
        CellsConfig((Station("site", (0.0, 0.0)), Station("far", (1.7e308, 0.0))))


@pytest.mark.parametrize("x", [1e308, math.inf, math.nan, -1.1e7])
def test_paths_are_bounded(x: float) -> None:
    ue = NetworkUe(path_m=((x, 0.0), (-x, 0.0)), speed_mps=1.0)
    with pytest.raises(BadInput, match="points of a path lie within 1e"):
        places(ue, 0j, np.random.default_rng(0), np.zeros(1))
