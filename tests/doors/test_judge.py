"""A judge from an installed package: real processes, virtual time, report."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.plugin import Installed

pytestmark = [pytest.mark.slow]


def test_what_the_page_shows(tmp_path: Path) -> None:
    outside = Installed(tmp_path, "A judge")
    outside.run_page()
    for run in ("demo", "first"):
        rows = {row["method"]: row for row in outside.rows(run)}
        assert set(rows) == {"greedy", "fh"}
        assert rows["greedy"]["lossless"] is True and rows["greedy"]["judge"] is None
        assert rows["fh"]["judge"] == "first" and rows["fh"]["threshold"] is None and rows["fh"]["head"] is None
        assert rows["fh"]["acceptance"] > rows["greedy"]["acceptance"]
    assert "first" in outside.report("report")
