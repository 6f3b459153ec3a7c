"""Directories of somebody else's as the data of a report: what they may name."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from testbed.errors import BadInput
from testbed.experiments.report.data import RowSource, load_shown
from tests.support.refusals import refuse
from tests.support.reports import make_sweep


@pytest.mark.parametrize("point", ["../../elsewhere", "..", "/tmp", "a/b", 5])
def test_a_point_is_a_folder_of_its_sweep(point: object, tmp_path: Path) -> None:
    """Files anywhere were read, and their figures shown as the sweep's."""
    path = make_sweep(tmp_path / "sweep") / "summary.json"
    document = json.loads(path.read_text())
    document["rows"][0]["point"] = point
    path.write_text(json.dumps(document))
    refuse(lambda: load_shown([path.parent]), BadInput, "a row's point is no folder in points")


def test_a_point_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep")
    point = sorted((sweep / "points").iterdir())[0]
    point.rename(tmp_path / "elsewhere")
    point.symlink_to(tmp_path / "elsewhere")
    refuse(lambda: load_shown([sweep]), BadInput, "is a link")


@pytest.mark.parametrize(("name", "known"), [("data.jsonl", True), ("data.jsonl.gz", False)])
def test_a_report_unpacks_no_data_set(name: str, known: bool, tmp_path: Path) -> None:
    """One of 1.6 MB that a directory named took 1.9 GB."""
    text = json.dumps({"question": "1 + 1?", "answer": "#### 2"}).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    asked = {"request": np.array([0]), "right": np.array([None], object), "text": np.array(["#### 2"], object)}
    source = RowSource({"method": "fh"}, tmp_path)
    source.__dict__["requests"] = asked
    found = source.right({"dataset": str(tmp_path / name), "scorer": "number"})
    assert (found is not None and found.tolist() == [1.0]) if known else found is None


def test_rows_that_count_other_requests_than_their_files_are_refused(tmp_path: Path) -> None:
    path = make_sweep(tmp_path / "sweep") / "summary.json"
    (shown,) = load_shown([path.parent])
    assert all(part.requests is not None for part in shown.parts)
    document = json.loads(path.read_text())
    document["rows"][0]["requests"] = 10**6
    path.write_text(json.dumps(document))
    (shown,) = load_shown([path.parent])
    refuse(lambda: shown.parts[0].requests, BadInput, "a row of 1000000 requests, of which requests.parquet has")
