"""An engine from an installed package: real processes, virtual time, report."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.plugin import Installed

pytestmark = [pytest.mark.slow]


def test_what_the_page_shows(tmp_path: Path) -> None:
    outside = Installed(tmp_path, "An engine")
    outside.run_page()
    passes = (tmp_path / "passes.log").read_text().splitlines()
    assert all(line.startswith("1 requests, ") for line in passes)
    assert len(passes) > sum(row["rounds"] for row in outside.rows("demo"))
    for run in ("demo", "logged"):
        (row,) = outside.rows(run)
        assert row["method"] == "greedy" and row["lossless"] is True
    assert "logged" in outside.report("report")
