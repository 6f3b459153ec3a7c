"""A drafter from an installed package: real processes, virtual time, and report."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.plugin import Installed

pytestmark = [pytest.mark.slow]


def test_what_the_page_shows(tmp_path: Path) -> None:
    outside = Installed(tmp_path, "A drafter")
    outside.run_page()

    (row,) = outside.rows("demo")
    assert row["lossless"] is True
    assert row["acceptance"] < 0.5  # the bundled drafter has more than 0.8

    bundled, repeat = outside.rows("repeat")
    assert (bundled["drafter"], repeat["drafter"]) == (None, "repeat")
    assert bundled["lossless"] is repeat["lossless"] is True
    assert repeat["acceptance"] < bundled["acceptance"]
    assert "repeat" in outside.report("report")
    assert "repeat" in outside.testbed("ue", "run", "--help")
