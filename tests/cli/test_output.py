"""Which columns people are shown of a run, and of a sweep."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.cli.output import COLUMNS, GRID_COLUMNS, grid_columns
from testbed.cli.tables import print_rows


def row(**values: Any) -> dict[str, Any]:
    return {"method": "fh", "window": 8, "rtt_ms": 50.0, "aal": 3.5, "latency_s": 0.25, **values}


def test_of_a_run_the_usual_ones_are_shown() -> None:
    assert grid_columns([row(), row(method="sh")]) is COLUMNS


def test_of_a_sweep_what_differs_is_shown_and_what_does_not_is_left_out() -> None:
    shown = grid_columns([row(threshold=0.0), row(threshold=0.5)])
    assert "threshold" in shown and "method" in shown and not {"window", "rtt_ms", "series"} & set(shown)
    assert list(shown) == [key for key in GRID_COLUMNS if key in shown]


def test_the_name_of_a_series_stands_for_what_it_sets(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        row(series="one", judge="strict"),
        row(series="two", method="sh", judge="head"),
        row(series="two", window=4),
    ]
    shown = grid_columns(rows)
    assert {"series", "window"} <= set(shown) and not {"method", "judge"} & set(shown)
    print_rows(rows, "title", shown)
    said = capsys.readouterr().out
    assert all(word in said for word in ("title", "series", "one", "two", "0.2500")) and "strict" not in said


def test_what_the_method_sets_and_equal_rates_take_no_columns_of_their_own() -> None:
    rows = [
        row(method=method, threshold=threshold, uplink_mbps=rate, downlink_mbps=rate, window=window)
        for method, threshold in (("greedy", None), ("fh", 0.0))
        for rate in (5.0, 500.0)
        for window in (4, 8)
    ]
    shown = grid_columns(rows)
    assert {"method", "window", "uplink_mbps"} <= set(shown) and not {"threshold", "downlink_mbps"} & set(shown)
    assert shown["uplink_mbps"][0] == "Mbit/s"
    rows[0]["downlink_mbps"] = 20.0
    assert {"uplink_mbps", "downlink_mbps"} <= set(grid_columns(rows))
