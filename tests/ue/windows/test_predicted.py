"""Windows that the predictor ends."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.errors import BadInput
from testbed.ue.drafters.base import DraftToken
from testbed.ue.windows.predicted import PredictedWindow
from tests.support.predictors import draft, stump, token

TOKEN = DraftToken(1, 1.0, 0.0, 1.0, 0.0, np.zeros(1, np.float16))


@pytest.mark.parametrize(
    ("tops", "window", "sent"),
    [
        ([0.9, 0.9, 0.1, 0.9], 8, 3),  # the doubted token is the last one sent
        ([0.1, 0.9], 8, 1),
        ([0.9] * 9, 4, 4),
        ([0.1], 1, 1),
    ],
)
def test_a_predicted_window_ends_at_the_first_doubted_token(tops: list[float], window: int, sent: int) -> None:
    policy = PredictedWindow(stump(0.2, 0.9), 0.5, window)
    assert draft(policy, tops) == sent


def test_a_token_at_the_threshold_is_predicted_accepted() -> None:
    predictor = stump(0.2, 0.9)
    exact = predictor.accept_probability(token(0.9), 1)
    assert PredictedWindow(predictor, exact, 8).keep_drafting([token(0.9)])
    assert not PredictedWindow(predictor, min(1.0, exact + 1e-9), 8).keep_drafting([token(0.9)])


@pytest.mark.parametrize(
    ("tops", "window", "sent"),
    [([0.9, 0.9, 0.1, 0.9], 8, 2), ([0.1, 0.9], 8, 0), ([0.9] * 9, 4, 4), ([0.9, 0.1], 2, 1), ([0.1], 1, 0)],
)
def test_with_the_papers_equation_the_doubted_token_is_left_out(tops: list[float], window: int, sent: int) -> None:
    """Eq. 25: the largest k with no doubt up to k; at least one token if told so."""
    for least in (0, 1):
        policy = PredictedWindow(stump(0.2, 0.9), 0.5, window, before=True, least=least)
        drafted = [token(top) for top in tops[: draft(policy, tops)]]
        assert policy.to_send(drafted) == max(least, sent)


@pytest.mark.parametrize(("threshold", "window"), [(-0.1, 8), (1.1, 8), (0.5, 0)])
def test_predicted_windows_out_of_bounds_are_refused(threshold: float, window: int) -> None:
    with pytest.raises(BadInput, match="must lie in"):
        PredictedWindow(stump(0.2, 0.9), threshold, window)
