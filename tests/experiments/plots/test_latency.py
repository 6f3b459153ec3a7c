"""Grouping of points into curves, and their position on the collapsed curve."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.experiments.plots.latency import _costs_of, _groups
from testbed.optim.serving.fit import fit
from testbed.optim.serving.model import CycleCosts, collapse, collapsed, latency
from testbed.optim.serving.points import Points

COSTS = CycleCosts(0.3, 0.02, 0.002, 0.01, 4e-4, 8e-5)


def measured() -> tuple[Points, np.ndarray]:
    """Loads of two windows and two acceptance rates with measurement noise, and of the target alone."""
    random, rows = np.random.default_rng(0), []
    for k, alpha in ((0, 0.0), (2, 0.5), (2, 0.8), (6, 0.5), (6, 0.8)):
        for load in (0.1, 0.3, 0.5, 0.7):
            seen = max(0.0, alpha + random.uniform(-0.02, 0.02)) if k else 0.0
            decode = 60 + random.uniform(0, 2)
            costs = COSTS.effective(seen, k, decode)
            rows.append((load / costs.c2_s, seen, k, decode, latency(load / costs.c2_s, *costs)))
    rps, alpha, k, decode, seconds = np.array(rows).T
    return Points(rps, alpha=alpha, k=k, prefill=np.full(rps.size, 64.0), decode=decode), seconds


def test_points_share_a_curve_by_what_was_set_not_by_what_was_measured() -> None:
    points, seconds = measured()
    groups = _groups(fit(points, seconds), points)
    assert [label.split(",")[0] for label, _ in groups] == ["K 0", "K 2", "K 2", "K 6", "K 6"]
    assert [int(rows.sum()) for _, rows in groups] == [4] * 5
    alphas = [float(label.split("α ")[1]) for label, _ in groups]
    assert alphas == pytest.approx([0, 0.5, 0.8, 0.5, 0.8], abs=0.02)
    assert (sum(rows.astype(int) for _, rows in groups) == 1).all()


def test_every_point_collapses_by_its_own_acceptance() -> None:
    points, seconds = measured()
    x, y = collapse(points.rps, seconds, *_costs_of(fit(points, seconds), points))
    assert y == pytest.approx(collapsed(x), rel=1e-4)
