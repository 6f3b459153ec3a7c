"""A protocol from an installed package: real processes, virtual time, report, and its cost on the link."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.plugin import Installed

pytestmark = [pytest.mark.slow]
BITS = 17 + 4 * 16
"""Bits of an id of the profile's vocabulary, and of four float16 elements."""


def test_what_the_page_shows(tmp_path: Path) -> None:
    outside = Installed(tmp_path, "A protocol")
    outside.run_page()

    cost = json.loads(outside.testbed("channel", "cost", "--protocol", "sketch", "--window", "8", "--json"))
    assert (cost["uplink_bits"], cost["downlink_bits"], cost["round_trips"]) == (8 * BITS, 4 + 17, 1)

    rows = {row["method"]: row for row in outside.rows("demo")}
    assert set(rows) == {"greedy", "sketch"}
    assert rows["sketch"]["lossless"] is True and rows["sketch"]["threshold"] is None
    assert rows["sketch"]["uplink_bytes"] > rows["greedy"]["uplink_bytes"]

    greedy, sketch = outside.rows("sketch")
    assert sketch["lossless"] is True and sketch["rounds"] == greedy["rounds"]
    (path,) = tmp_path.glob(f"sketch/points/{sketch['point']}/rounds.parquet")
    for round_ in pq.read_table(path).to_pylist():
        assert round_["uplink_bytes"] == -(-round_["drafted"] * BITS // 8)
        assert round_["downlink_bytes"] == 3
    assert "sketch" in outside.report("report")
