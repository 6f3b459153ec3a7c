"""Window rules: when a round stops drafting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from testbed.errors import BadInput
from testbed.ue.drafters.base import DraftToken
from testbed.ue.records import RoundRecord
from testbed.ue.windows.predictor import RejectionPredictor

MAX_WINDOW = 256


class WindowPolicy(Protocol):
    """Decides after every drafted token of a round whether to draft another, and observes the round when it ended."""

    @property
    def max_window(self) -> int:
        """Most tokens of a round; may change from round to round."""

    def keep_drafting(self, drafted: Sequence[DraftToken]) -> bool:
        """Whether to draft another token after `drafted` (at least one)."""

    def observe(self, record: RoundRecord) -> None:
        """A round ended."""

    def fresh(self) -> WindowPolicy:
        """The same policy with nothing learnt, for another protocol."""


@runtime_checkable
class Guided(WindowPolicy, Protocol):
    """A window policy that follows windows hinted by the BS."""

    @property
    def limit(self) -> int:
        """Largest window of all hints."""

    @property
    def off(self) -> bool:
        """Whether the latest hint was 0: the BS decodes alone."""

    def hinted(self, window: int) -> None:
        """Take a hint of the BS."""


def window_of(policy: WindowPolicy, drafted: Sequence[DraftToken]) -> int:
    """Length of the window after drafting ended: all of `drafted`, or what the policy's method `to_send` returns, if it
    has one: only the first tokens, possibly none.
    """
    to_send: Callable[[Sequence[DraftToken]], int] | None = getattr(policy, "to_send", None)
    return len(drafted) if to_send is None else to_send(drafted)


class WindowRule(NamedTuple):
    """A registry entry."""

    kind: str
    about: str
    make: Callable[[int, RejectionPredictor | None], WindowPolicy]
    """Takes the most tokens of a round, and a predictor, which is there where the rule needs one."""
    predictor: bool = False
    """Whether it needs a rejection predictor."""
    hinted: bool = False
    """Whether the BS hints windows: its policy is `Guided`."""
    withholds: bool = False
    """Whether drafted tokens that are predicted to be rejected are not sent."""


def check_window(window: int) -> None:
    """Refuse a largest window.

    Raises:
        BadInput: outside 1..MAX_WINDOW.
    """
    if not 1 <= window <= MAX_WINDOW:
        raise BadInput(f"window must lie in 1..{MAX_WINDOW}, not {window}")
