"""A window rule from an installed package: real processes, virtual time, hints, and report."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.plugin import Installed

pytestmark = [pytest.mark.slow]


def test_what_the_page_shows(tmp_path: Path) -> None:
    outside = Installed(tmp_path, "A window rule")
    outside.run_page()

    (row,) = outside.rows("demo")
    assert row["lossless"] is True and row["window_rule"] == "sure"

    rows = {row["window_rule"]: row for row in outside.rows("sure")}
    assert set(rows) == {"fixed", "sure", "hinted-sure"}
    assert all(row["lossless"] for row in rows.values())
    assert rows["sure"]["wasted_tokens"] < rows["fixed"]["wasted_tokens"]
    hints = pq.read_table(tmp_path / "sure" / "points" / rows["hinted-sure"]["point"] / "rounds.parquet")["hint"]
    assert any(hint >= 0 for hint in hints.to_pylist())
    assert all(name in outside.report("report") for name in ("eight tokens", "sure ones", "hinted and sure"))
