"""Platt scaling, checked against the generating parameters and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from testbed.decision_head.platt import LEAST_SLOPE, platt


def test_the_generating_parameters_are_found_as_by_logistic_regression() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(0.4, 2, 20_000)
    labels = rng.random(z.size) < expit(0.6 * z - 1.5)
    slope, intercept = platt(z, labels)
    assert (slope, intercept) == (pytest.approx(0.6, abs=0.03), pytest.approx(-1.5, abs=0.05))
    peer = LogisticRegression(C=np.inf, tol=1e-8).fit(z[:, None], labels)
    assert slope == pytest.approx(peer.coef_[0, 0], rel=2e-3)
    assert intercept == pytest.approx(peer.intercept_[0], rel=2e-3)


def test_separated_classes_stay_finite_and_short_of_certain() -> None:
    z = np.array([-3.0, -2, -1, 1, 2, 3])
    slope, intercept = platt(z, z > 0)
    p = expit(slope * z + intercept)
    assert (p[z > 0] > 0.5).all() and (p > 0.02).all() and (p < 0.98).all()


def test_a_head_worse_than_chance_is_not_inverted() -> None:
    rng = np.random.default_rng(1)
    z = rng.standard_normal(2000)
    slope, intercept = platt(z, rng.random(2000) < expit(-2 * z - 1))
    assert slope == LEAST_SLOPE
    assert expit(intercept) == pytest.approx(0.32, abs=0.05)
