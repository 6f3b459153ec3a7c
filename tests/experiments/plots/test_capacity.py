"""Intervals in figures of capacity: one line for each row that has one, none below 0."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.collections import LineCollection

from testbed.experiments.plots.capacity import capacities, violations


def spans(figure: Any) -> list[list[tuple[float, float]]]:
    """Ends of the vertical lines of a figure's first panel."""
    lines = [one for one in figure.axes[0].collections if isinstance(one, LineCollection)]
    return [segment.tolist() for one in lines for segment in one.get_segments()]


@pytest.mark.parametrize("low", [None, "", -2.0, 7.0])
def test_capacities_have_the_intervals_of_their_rows(low: Any) -> None:
    rows = [{"system": "wisp", "class_tps": 8.0, "capacity": 9, "capacity_low": low, "capacity_high": 12.0}]
    found = spans(capacities(rows))
    assert found == ([] if low in (None, "") else [[[8.0, max(0.0, low)], [8.0, 12.0]]])


def test_violations_have_the_intervals_of_their_rows() -> None:
    row = {"system": "wisp", "class_tps": 8.0, "ues": 50.0, "violation": 0.3}
    rows = [{**row, "violation_low": "0.1", "violation_high": "0.5"}, {**row, "ues": 70.0}]
    assert spans(violations(rows, 0.05)) == [[[50.0, 0.1], [50.0, 0.5]]]
