"""The table that `testbed bench` prints."""

from __future__ import annotations

import json
import math

from testbed.cli.runs.bench import _named
from testbed.cli.tables import JSON, STYLE, TableStyle


def test_requests_that_arrive_at_once_have_rate_inf_but_not_in_json() -> None:
    row = {"method": "greedy", "rate_rps": None}
    assert _named(row)["rate_rps"] == math.inf and _named({**row, "rate_rps": 2.0})["rate_rps"] == 2.0
    before = STYLE.set(TableStyle(JSON))
    try:
        assert json.loads(json.dumps(_named(row), allow_nan=False)) == row
    finally:
        STYLE.reset(before)
