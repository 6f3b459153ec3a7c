"""Window rules by name."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.errors import BadInput
from testbed.ue.drafters.base import DraftToken
from testbed.ue.windows.fixed import FixedWindow
from testbed.ue.windows.gain import ExpectedGain
from testbed.ue.windows.predicted import PredictedWindow
from testbed.ue.windows.registry import window_policy
from tests.support.predictors import stump

TOKEN = DraftToken(1, 1.0, 0.0, 1.0, 0.0, np.zeros(1, np.float16))


def test_rules_by_name() -> None:
    predictor = stump(0.2, 0.9, threshold=0.3)
    assert window_policy("fixed", 5) == FixedWindow(5)
    assert window_policy("predicted", 5, predictor) == PredictedWindow(predictor, 0.3, 5)
    assert isinstance(window_policy("gain", 5, predictor), ExpectedGain)
    with pytest.raises(BadInput, match="known: fixed, predicted, before-rejection, gain"):
        window_policy("best", 5)
    with pytest.raises(BadInput, match="needs a predictor"):
        window_policy("gain", 5)
