"""A scheduler of the radio from an installed package: a cell in virtual time, and its report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.plugin import Installed

pytestmark = [pytest.mark.slow]


def test_what_the_page_shows(tmp_path: Path) -> None:
    outside = Installed(tmp_path, "A scheduler of the radio")
    outside.run_page()
    rows = {row["group"]: row for row in json.loads((tmp_path / "cell" / "cell.json").read_text())["rows"]}
    assert rows["fh"]["goodput_tps"] > 0 and rows["bytes"]["messages"] > 0
    assert "fh" in outside.report("report")
