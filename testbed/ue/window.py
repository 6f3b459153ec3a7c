"""When to stop drafting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from testbed.errors import BadInput
from testbed.ue.drafting import DraftToken

MAX_WINDOW = 256


class WindowPolicy(Protocol):
    """Asked after every drafted token of a round."""

    @property
    def max_window(self) -> int:
        """No round drafts more."""

    def keep_drafting(self, drafted: Sequence[DraftToken]) -> bool:
        """Whether to draft another token after `drafted` (at least one)."""


@dataclass(frozen=True)
class FixedWindow:
    """K tokens a round.

    Raises:
        BadInput: K outside 1..MAX_WINDOW.
    """

    max_window: int

    def __post_init__(self) -> None:
        if not 1 <= self.max_window <= MAX_WINDOW:
            raise BadInput(f"window must lie in 1..{MAX_WINDOW}, not {self.max_window}")

    def keep_drafting(self, drafted: Sequence[DraftToken]) -> bool:
        """Until K are there."""
        return len(drafted) < self.max_window
