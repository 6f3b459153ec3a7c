"""Fixed windows: K tokens a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.ue.drafters.base import DraftToken
from testbed.ue.records import RoundRecord
from testbed.ue.windows.base import WindowPolicy, WindowRule, check_window
from testbed.ue.windows.predictor import RejectionPredictor


@dataclass(frozen=True)
class FixedWindow:
    """K tokens a round.

    Raises:
        BadInput: K outside 1..MAX_WINDOW.
    """

    max_window: int

    def __post_init__(self) -> None:
        check_window(self.max_window)

    def keep_drafting(self, drafted: Sequence[DraftToken]) -> bool:
        """Keep drafting up to K tokens."""
        return len(drafted) < self.max_window

    def observe(self, record: RoundRecord) -> None:
        """Nothing is learnt."""

    def fresh(self) -> FixedWindow:
        """Itself."""
        return self


def _fixed(max_window: int, predictor: RejectionPredictor | None) -> WindowPolicy:
    return FixedWindow(max_window)


FIXED = WindowRule("fixed", "K tokens", _fixed)
