"""Sweeps of a cell: rows against single runs and their paired differences, kept runs, a plot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy import stats

from testbed.channel.radio.config import RadioConfig
from testbed.errors import BadInput
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.grid import sweep as swept
from testbed.experiments.cell.grid.sweep import CellSweepConfig, sweep_cell
from testbed.experiments.cell.rows import document
from testbed.experiments.cell.run import run_cell
from testbed.experiments.plots.cell import write_sweep
from tests.support.refusals import refuse

CELL = CellConfig(
    seconds=4.0,
    warmup_s=1.0,
    seed=5,
    radio=RadioConfig(bandwidth_hz=4e6),
    ues=(
        UeGroup(name="fh", count=2, protocol="fh", class_tps=6.0, response=(8, 16)),
        UeGroup(name="bytes", traffic="bytes", message_bytes=5000),
    ),
)
VARY = {"radio.scheduler": ("round-robin", "max-min"), "ues.fh.window": (4, 8)}
CONFIG = CellSweepConfig(cell=CELL, vary=VARY, repeats=3)


def nothing(done: int, of: int) -> None:
    pass


def goodput(scheduler: str, window: int, seed: int) -> float:
    fh = msgspec.structs.replace(CELL.ues[0], window=window)
    radio = msgspec.structs.replace(CELL.radio, scheduler=scheduler)
    cell = msgspec.structs.replace(CELL, seed=seed, radio=radio, ues=(fh, CELL.ues[1]))
    return float(document(cell, run_cell(cell))["rows"][0]["goodput_tps"])


def test_rows_are_means_over_seeds_with_paired_differences(tmp_path: Path) -> None:
    rows = sweep_cell(CONFIG, None, 1, nothing)
    assert [(row["radio.scheduler"], row["ues.fh.window"], row["group"]) for row in rows] == [
        (scheduler, window, group)
        for scheduler in VARY["radio.scheduler"]
        for window in VARY["ues.fh.window"]
        for group in ("fh", "bytes")
    ]
    by_window = {window: [goodput("max-min", window, seed) for seed in (5, 6, 7)] for window in (4, 8)}
    four, eight = rows[4], rows[6]
    assert four["goodput_tps"] == pytest.approx(np.mean(by_window[4])) and "difference" not in four
    low, high = stats.t.interval(0.95, 2, np.mean(by_window[8]), stats.sem(by_window[8]))
    assert (eight["goodput_tps_low"], eight["goodput_tps_high"]) == pytest.approx((low, high))
    assert eight["difference"] == pytest.approx(np.mean(np.subtract(by_window[8], by_window[4])))
    sends = rows[5]
    assert sends["goodput_tps"] is None and sends["message_delay_s"] > 0 and "verdict" not in sends
    assert write_sweep(rows, list(VARY), tmp_path / "sweep.png").stat().st_size > 5000
    bytes_alone = [row for row in rows if row["group"] == "bytes"]
    assert write_sweep(bytes_alone, list(VARY), tmp_path / "bytes.png").stat().st_size > 5000


def test_finished_runs_are_kept_and_processes_give_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = msgspec.structs.replace(CONFIG, vary={"ues.*.prompt": ((50, 50), (300, 300))}, repeats=1)
    rows = sweep_cell(config, tmp_path / "runs", 2, nothing)
    assert len(list((tmp_path / "runs").glob("*.json"))) == 2
    assert [row["ues.*.prompt"] for row in rows[::2]] == [(50, 50), (300, 300)]
    monkeypatch.setattr(swept, "run_cell", None)
    assert sweep_cell(config, tmp_path / "runs", 1, nothing) == rows


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda found: found | {"cell": {}}, "damaged"),
        (lambda found: found | {"cell": found["cell"] | {"bound_by": "\x1b[31m"}}, "damaged"),
        (lambda found: found | {"rows": [{"group": "fh", "ues": 2}, found["rows"][1]]}, "damaged"),
        (lambda found: found | {"rows": [found["rows"][0] | {"accuracy_lost": -1.0}, found["rows"][1]]}, "damaged"),
        (lambda found: found | {"rows": [found["rows"][0] | {"goodput_tps": "1"}, found["rows"][1]]}, "damaged"),
        (lambda found: found | {"rows": [found["rows"][0] | {"goodput_tps": 1e301}, found["rows"][1]]}, "damaged"),
    ],
)
def test_a_damaged_result_is_an_error_of_one_line(harm: Any, said: str, tmp_path: Path) -> None:
    config = CellSweepConfig(cell=CELL, repeats=1)
    sweep_cell(config, tmp_path, 1, nothing)
    (path,) = tmp_path.iterdir()
    kept = json.loads(path.read_text())
    path.write_text(json.dumps(kept | {"result": harm(kept["result"])}))
    refuse(lambda: sweep_cell(config, tmp_path, 1, nothing), BadInput, said, "remove it")
    path.write_text('{"key": ' + "[" * 100_000)
    refuse(lambda: sweep_cell(config, tmp_path, 1, nothing), BadInput, "damaged", "remove it")


def test_a_result_of_another_run_is_refused(tmp_path: Path) -> None:
    """It was the result of each seed, with an interval of width 0."""
    config = CellSweepConfig(cell=CELL, repeats=2)
    sweep_cell(config, tmp_path, 1, nothing)
    one, other = tmp_path.iterdir()
    other.write_bytes(one.read_bytes())
    refuse(lambda: sweep_cell(config, tmp_path, 1, nothing), BadInput, "is of another run", "remove it")
