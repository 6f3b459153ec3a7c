"""Files from elsewhere that are small and stand for much: nested brackets, arrays that unpack to gigabytes, cells that
are formulas. Each is refused in one line, or harmless.
"""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from testbed.channel.formats.convert import convert
from testbed.channel.radio.files import read_radio_file
from testbed.channel.radio.shares import read_shares
from testbed.cli.latency.predict import _read_json
from testbed.config import RunConfig
from testbed.decision_head.head import load_head
from testbed.errors import BadInput, ModelError
from testbed.experiments.cell.config import CellConfig
from testbed.experiments.cell.planning import read_plan
from testbed.experiments.edge.dimensions import of_directory
from testbed.experiments.edge.fit import read_cost
from testbed.experiments.field.log import LOG, read_log
from testbed.experiments.head.compare import _block
from testbed.experiments.inputs.coefficients import read
from testbed.experiments.inputs.datasets import load_dataset
from testbed.experiments.inputs.state import _prior
from testbed.experiments.onboard.run import _read
from testbed.experiments.predictor.traces import META, TraceStore
from testbed.experiments.report.tables import pivot, pivot_latex, rows_csv
from testbed.experiments.results.claims import kept
from testbed.experiments.results.csv_file import write_csv
from testbed.experiments.runs.uerun import GIVEN
from testbed.experiments.sweep.rerun import _given
from testbed.models.checkpoint import Checkpoint
from testbed.optim.tasks import load_problem
from testbed.table_text import plain_cell
from testbed.ue.drafters.recorded import load_recording
from testbed.ue.windows.predictor import Trees, load_predictor
from testbed.unpacked import arrays
from testbed.unpacked.arrays import npz_arrays
from tests.support.refusals import refuse

DEEP = 100_000


def plan(path: Path) -> object:
    config = msgspec.convert({"ues": [{"name": "a", "count": 1}]}, CellConfig)
    return read_plan(msgspec.structs.replace(config, bs=msgspec.structs.replace(config.bs, plan=str(path))))


@pytest.mark.parametrize(
    ("name", "reader"),
    [
        ("shares.json", read_shares),
        ("data.jsonl", lambda path: load_dataset(str(path))),
        ("iperf3.json", lambda path: convert("iperf3", [path])),
        ("fit.json", _read_json),
        ("fit.json", read_cost),
        ("fit.json", read),
        ("plan.json", plan),
        ("config.json", lambda path: of_directory(path.parent)),
        ("config.json", lambda path: Checkpoint(path.parent)),
        ("state.json", _prior),
        (LOG, lambda path: read_log(path.parent)),
        (GIVEN, lambda path: _given(path.parent, RunConfig())),
        ("problem.json", load_problem),
        ("kept.json", lambda path: kept(path, dict[str, Any], dict)),
        ("predictor.json", lambda path: load_predictor(path.parent)),
        (META, lambda path: TraceStore(path.parent).meta()),
        ("0.json", lambda path: _block(path, (), 1)),
    ],
)
def test_brackets_within_brackets(name: str, reader: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text('{"x": ' + "[" * DEEP + "]" * DEEP + "}\n")
    refuse(lambda: reader(path), BadInput)


def test_records_and_heads_of_brackets_within_brackets(tmp_path: Path) -> None:
    for name in ("step.json", "head.json"):
        (tmp_path / name).write_text('{"document": ' + "[" * DEEP + "]" * DEEP + "}\n")
    assert _read(tmp_path / "step.json") is None
    refuse(lambda: load_head(tmp_path), ModelError)


def test_a_recording_of_arrays_within_arrays(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    path.write_bytes(b"\x81\xa1x" + b"\x91" * DEEP + b"\xc0")
    refuse(lambda: load_recording(path), BadInput, "no recording")


# ---------------------------------------------------------------- arrays


def test_arrays_that_unpack_to_more_than_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "MOST_UNPACKED_BYTES", 2**20)
    path = tmp_path / "a.npz"
    np.savez_compressed(path, uplink_db=np.zeros((4, 2**16), np.float64), about=np.array("x"))
    assert path.stat().st_size < 2**13
    refuse(lambda: npz_arrays(path), BadInput, "at most 1048576")
    refuse(lambda: read_radio_file(path), BadInput, "no radio file", "at most 1048576")
    path.rename(tmp_path / "chunk-00000.npz")
    refuse(lambda: TraceStore(tmp_path)._read(0), BadInput, "is not a chunk", "at most 1048576")


def test_arrays_that_are_damaged_or_say_that_they_are_huge(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, a=np.zeros(9), b=np.array([None]))
    refuse(lambda: npz_arrays(path), BadInput, "no file of arrays")
    with zipfile.ZipFile(path, "w") as archive, archive.open("a.npy", "w") as part:
        np.lib.format.write_array_header_1_0(part, {"descr": "<f8", "fortran_order": False, "shape": (2**50,)})
    refuse(lambda: npz_arrays(path), BadInput, "no file of arrays")
    np.savez(path, a=np.frombuffer(np.array([0x7FFFFFFF], "<u4").tobytes(), "<U1"))
    refuse(lambda: npz_arrays(path), BadInput, "characters that do not exist")
    np.savez(path, a=np.zeros(9), about=np.array("a radio file"), none=np.array([], "<U1"))
    assert str(npz_arrays(path)["about"]) == "a radio file"
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # encrypted
    path.write_bytes(content)
    refuse(lambda: npz_arrays(path), BadInput, "no file of arrays")


def test_trees_whose_bit_vectors_fill_the_memory() -> None:
    nodes = {name: np.full(20_000, -1) for name in ("feature", "left", "right")}
    values = {name: np.zeros(20_000) for name in ("threshold", "value", "base")}
    with pytest.raises(ValueError, match="20000 trees of 20000 nodes"):
        Trees({**nodes, **values, "roots": np.zeros(20_000, np.int64)})


def test_many_trees_are_read_in_a_time_that_grows_with_their_number() -> None:
    """All nodes were copied once for each tree."""
    arrays = {name: np.full(4000, -1) for name in ("feature", "left", "right")}
    arrays |= {name: np.zeros(4000) for name in ("threshold", "value", "base")}
    copies: list[str] = []

    class Counted(np.ndarray):  # type: ignore[type-arg]
        def tolist(self) -> Any:
            copies.append("")
            return super().tolist()

    Trees({**{n: a.view(Counted) for n, a in arrays.items()}, "roots": np.arange(4000)})
    assert len(copies) < 20


def test_commands_of_latex_in_names_are_text() -> None:
    rows = [{"window": window, "uplink_mbps": 20.0, "latency_s": 1.0} for window in (4, 8)]
    table = pivot(rows, [r"\input{/etc/passwd}~^"] * 2)
    assert table is not None
    text = pivot_latex(table)
    assert r"\input" not in text and "passwd" in text and "~" not in text.replace(r"\textasciitilde", "")


# ---------------------------------------------------------------- formulas


@pytest.mark.parametrize(
    "cell",
    ["=1+1", "+A1", "-cmd|' /C calc'!A0", "@SUM(A1)", "\t=1", " =1", "-2+3+cmd|'x'!A0", "-1;=2", '=HYPERLINK("x")'],
)
def test_text_that_is_a_formula_is_shown_as_text(cell: str, tmp_path: Path) -> None:
    assert plain_cell(cell) == f"'{cell}"
    write_csv(tmp_path / "a.csv", [{"name": cell, cell: 1}])
    assert list(csv.reader((tmp_path / "a.csv").read_text().splitlines())) == [["name", f"'{cell}"], [f"'{cell}", "1"]]
    assert list(csv.reader(rows_csv([{"series": cell}], [{}]).splitlines())) == [["series"], [f"'{cell}"]]


@pytest.mark.parametrize(
    "cell", [-1.5, 3, None, "-1.5", "+3.20%", "-inf", "-0.2 [-0.3, -0.1]", "-1e-05", "a=b", "", "–"]
)
def test_numbers_stay_numbers(cell: Any) -> None:
    assert plain_cell(cell) == cell
