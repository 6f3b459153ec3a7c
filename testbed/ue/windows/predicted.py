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

    WISP's eq. 25 leaves the token predicted rejected out, so that a window may be empty (`before`). Otherwise it is
    sent as the window's last: its drafting is already paid for (the prediction needs its logits), another position
    costs the verifier next to nothing, and where the predictor is wrong, the token and the bonus after it are gained.

    Both keep the output's distribution under rejection sampling: predictions depend on the distribution that a token is
    drawn from, not on the token.

    Raises:
        BadInput: K_max outside 1..MAX_WINDOW, a threshold outside [0, 1], or `least` other than 0 or 1.
    """

    predictor: RejectionPredictor
    threshold: float
    """Least acceptance probability of a token that is predicted accepted."""
    max_window: int
    before: bool = False
    """Whether the token predicted rejected is left out."""
    least: int = 0
    """Tokens sent at least, with `before`: 0, as in eq. 25, or 1."""

    def __post_init__(self) -> None:
        check_window(self.max_window)
        if self.least not in (0, 1):
            raise BadInput(f"a predicted window has at least 0 or 1 tokens, not {self.least}")
        if not 0 <= self.threshold <= 1:
            raise BadInput(f"the predictor's threshold must lie in [0, 1], not {self.threshold:g}")

    def keep_drafting(self, drafted: Sequence[DraftToken]) -> bool:
        """While the newest token is predicted accepted."""
        if len(drafted) >= self.max_window:
            return False
        return self._accepts(drafted)

    def to_send(self, drafted: Sequence[DraftToken]) -> int:
        """Send all of them, or those before the token predicted rejected (eq. 25)."""
        if not self.before or self._accepts(drafted):
            return len(drafted)
        return max(self.least, len(drafted) - 1)

    def _accepts(self, drafted: Sequence[DraftToken]) -> bool:
        """Whether the newest token is predicted accepted."""
        return self.predictor.accept_probability(drafted[-1], len(drafted)) >= self.threshold

    def observe(self, record: RoundRecord) -> None:
        """Nothing is learnt."""

    def fresh(self) -> PredictedWindow:
        """Itself."""
        return self


def _predicted(max_window: int, predictor: RejectionPredictor | None) -> WindowPolicy:
    assert predictor is not None
    return PredictedWindow(predictor, predictor.info.threshold, max_window)


def _before(max_window: int, predictor: RejectionPredictor | None) -> WindowPolicy:
    assert predictor is not None
    return PredictedWindow(predictor, predictor.info.threshold, max_window, before=True)


PREDICTED = WindowRule("predicted", "up to the first predicted rejection", _predicted, predictor=True)
BEFORE = WindowRule(
    "before-rejection",
    "the tokens before the first predicted rejection, possibly none",
    _before,
    predictor=True,
    withholds=True,
)
