"""Hinted windows: the length that the BS hints, below which another rule may stop earlier."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.ue.drafters.base import DraftToken
from testbed.ue.records import RoundRecord
from testbed.ue.windows.base import WindowPolicy, WindowRule, window_of
from testbed.ue.windows.predictor import RejectionPredictor


class Hinted:
    """Drafts as many tokens as the BS hints; another rule may stop earlier.

    Args:
        rule: its largest window is the limit of all hints, and the window until the first one.
    """

    def __init__(self, rule: WindowPolicy) -> None:
        self._rule = rule
        self.limit = self._window = rule.max_window

    @property
    def off(self) -> bool:
        """Whether the latest hint was 0: the BS decodes alone."""
        return self._window == 0

    @property
    def max_window(self) -> int:
        """Most tokens of a round: the hint, but at least 1."""
        return max(1, self._window)

    def hinted(self, window: int) -> None:
        """Take a hint of the BS."""
        self._window = min(window, self.limit)

    def keep_drafting(self, drafted: Sequence[DraftToken]) -> bool:
        """Keep drafting up to the hint, or until the rule stops."""
        return len(drafted) < self.max_window and self._rule.keep_drafting(drafted)

    def to_send(self, drafted: Sequence[DraftToken]) -> int:
        """As many tokens as the rule sends."""
        return window_of(self._rule, drafted)

    def observe(self, record: RoundRecord) -> None:
        """Let the rule learn from rounds with drafted tokens."""
        if record.drafted:
            self._rule.observe(record)

    def fresh(self) -> Hinted:
        """The same rule, with nothing learnt or hinted."""
        return Hinted(self._rule.fresh())


def hinted(rule: WindowRule, kind: str) -> WindowRule:
    """The rule of that kind that stops by `rule` below what the BS hints."""

    def make(max_window: int, predictor: RejectionPredictor | None) -> WindowPolicy:
        return Hinted(rule.make(max_window, predictor))

    return WindowRule(kind, f"as the BS hints, below that: {rule.about}", make, rule.predictor, True, rule.withholds)
