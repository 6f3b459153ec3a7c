"""Predicted windows: up to the first token that the verifier will probably reject."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.errors import BadInput
from testbed.ue.drafters.base import DraftToken
from testbed.ue.records import RoundRecord
from testbed.ue.windows.base import WindowPolicy, WindowRule, check_window
from testbed.ue.windows.predictor import RejectionPredictor


@dataclass(frozen=True)
class PredictedWindow:
    """Drafts until the first predicted rejection, at most K_max tokens (WISP, Section 4.1).

    The token predicted rejected is sent as the window's last. WISP's eq. 25 leaves it out; but its drafting is already
    paid for (the prediction needs its logits), another position costs the verifier next to nothing, and where the
    predictor is wrong, the token and the bonus after it are gained. So a window has one token at least.

    Raises:
        BadInput: K_max outside 1..MAX_WINDOW, or a threshold outside [0, 1].
    """

    predictor: RejectionPredictor
    threshold: float
    """Least acceptance probability of a token that is predicted accepted."""
    max_window: int

    def __post_init__(self) -> None:
        check_window(self.max_window)
        if not 0 <= self.threshold <= 1:
            raise BadInput(f"the predictor's threshold must lie in [0, 1], not {self.threshold:g}")

    def keep_drafting(self, drafted: Sequence[DraftToken]) -> bool:
        """While the newest token is predicted accepted."""
        if len(drafted) >= self.max_window:
            return False
        return self.predictor.accept_probability(drafted[-1], len(drafted)) >= self.threshold

    def observe(self, record: RoundRecord) -> None:
        """Nothing is learnt."""

    def fresh(self) -> PredictedWindow:
        """Itself."""
        return self


def _predicted(max_window: int, predictor: RejectionPredictor | None) -> WindowPolicy:
    assert predictor is not None
    return PredictedWindow(predictor, predictor.info.threshold, max_window)


PREDICTED = WindowRule("predicted", "up to the first predicted rejection", _predicted, predictor=True)
