"""Fixed loads pooled over seeds: oracles by scipy, and what an interval may say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from testbed.experiments.capacity.pooled import BASELINE, pooled


def rows(system: str, violated: Sequence[int], judged: int = 100, **more: Any) -> list[dict[str, Any]]:
    return [
        {"system": system, "ues": 9, "seed": seed, "classes": {"8": {"judged": judged, "violated": v, "starved": 0}},
         "goodput_tps": 500.0 - v, "batch_size": 5.0, "evicted_tokens": 0, "memory_bound": 0.0, "empty": 0.1, **more}
        for seed, v in enumerate(violated)
    ]  # fmt: skip


def test_intervals_and_paired_differences_are_scipys() -> None:
    ours, theirs = [1, 2, 3, 4, 2], [9, 8, 12, 11, 10]
    base, found = pooled([*rows(BASELINE, theirs), *rows("wisp", ours)], 0.05)
    shares = np.array(ours) / 100
    low, high = stats.t.interval(0.95, 4, shares.mean(), stats.sem(shares))
    assert (found["violation"], found["violation_low"], found["violation_high"]) == pytest.approx(
        (shares.mean(), low, high)
    )
    gap = (np.array(ours) - np.array(theirs)) / 100
    low, high = stats.t.interval(0.95, 4, gap.mean(), stats.sem(gap))
    assert (found["violation_difference_low"], found["violation_difference_high"]) == pytest.approx((low, high))
    assert (found["violation_verdict"], found["goodput_tps_verdict"]) == ("ahead", "ahead")
    assert (base["class_verdict"], found["class_verdict"], found["judged"]) == ("violated", "kept", 500)
    assert "violation_difference" not in base


def test_a_variation_is_compared_with_nothing_varied() -> None:
    found = pooled([*rows("wisp", [5, 6, 7], varied="nothing"), *rows("wisp", [7, 5, 7], varied="late=last")], 0.05)
    assert [row["varied"] for row in found] == ["nothing", "late=last"]
    assert "violation_difference" not in found[0]
    assert (found[1]["violation_difference"], found[1]["violation_verdict"]) == (pytest.approx(1 / 300), "undecided")


def test_a_class_that_judged_nobody_is_violated_and_undecided() -> None:
    (found,) = pooled(rows("wisp", [0, 0], judged=0), 0.05)
    assert (found["violation"], found["class_verdict"]) == (1.0, "undecided")
